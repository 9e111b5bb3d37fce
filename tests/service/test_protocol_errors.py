"""What is no HTTP, or asks for what HTTP does not give here, is answered like everything else."""

import json
import socket

import pytest
from service_rig import ServiceThread

POST = b"POST /v1/completions HTTP/1.1\r\nHost: test\r\n"


def ask(service: ServiceThread, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the first answer to `raw`."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as client:
        client.sendall(raw)
        received = b""
        while b"\r\n\r\n" not in received:
            data = client.recv(65536)
            assert data, received
            received += data
        head, _, body = received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        while len(body) < int(headers.get("content-length", 0)):
            body += client.recv(65536)
    return int(first.split()[1]), headers, body


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "invalid_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "invalid_http"),
        (b"GET /health HTTP/1.1\r\nHost test\r\n\r\n", 400, "invalid_http"),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400, "invalid_http"),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 9000 + b"\r\n\r\n", 400, "header_too_large"),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 400, "header_too_large"),
        (POST + b"Expect: miracles\r\nContent-Length: 2\r\n\r\n{}", 417, "expectation_failed"),
        (POST + b"Expect: 100-continue\r\nContent-Length: 999999999\r\n\r\n", 413, "request_too_large"),
        (POST + b"Content-Length: 999999999\r\n\r\n", 413, "request_too_large"),
    ],
)
def test_a_refusal_has_the_shape_of_all_errors(service: ServiceThread, raw: bytes, status: int, code: str) -> None:
    got, headers, body = ask(service, raw)
    assert got == status, body
    assert headers["content-type"].startswith("application/json") and headers.get("connection", "close") == "close"
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["code"], error["type"]) == (code, "invalid_request_error")
    told = (body.decode() + str(headers)).lower()
    assert headers["server"] == "diptych" and "python" not in told and "aiohttp" not in told
    service.complete("still alive", 1)


def test_a_body_is_asked_for_with_100_continue(service: ServiceThread) -> None:
    body = b'{"prompt":"a","max_tokens":1}'
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as client:
        client.sendall(POST + b"Expect: 100-Continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        assert client.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
