"""A client on a bare socket, which can do what well-behaved ones do not: stop reading, half-close, reset, vanish."""

import json
import socket
import struct
import time
from typing import Any, Self


class RawClient:
    """One connection. `receive_buffer` in bytes bounds what the kernel takes in while nobody reads."""

    def __init__(self, port: int, receive_buffer: int | None = None) -> None:
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(20)
        self._socket.connect(("127.0.0.1", port))
        self.received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Self:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [
            f"POST {path} HTTP/1.1",
            "Host: test",
            f"Content-Length: {len(raw)}",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        self._socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)
        return self

    def read_until(self, marker: bytes, limit: float = 20.0) -> bytes:
        """Everything received so far, once it contains `marker`."""
        end = time.monotonic() + limit
        while marker not in self.received:
            assert time.monotonic() < end, f"{marker!r} did not arrive; got {self.received[-500:]!r}"
            if not self._receive():
                raise AssertionError(f"closed before {marker!r}; got {self.received[-500:]!r}")
        return self.received

    def read_response(self) -> tuple[int, bytes]:
        """Status and body of a response, whose end is told by its length or by the last chunk."""
        head = self.read_until(b"\r\n\r\n").partition(b"\r\n\r\n")[0].decode("latin-1")
        status = int(head.split()[1])
        if "transfer-encoding: chunked" in head.lower():
            return status, dechunk(self.read_until(b"\r\n0\r\n\r\n").partition(b"\r\n\r\n")[2])
        length = int(head.lower().partition("content-length: ")[2].split()[0])
        while len(body := self.received.partition(b"\r\n\r\n")[2]) < length:
            assert self._receive(), "closed before the end of the body"
        return status, body

    def read_to_end(self) -> bytes:
        while self._receive():
            pass
        return self.received

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()

    def reset(self) -> None:
        """Close with a RST instead of a FIN."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def _receive(self) -> bytes:
        data = self._socket.recv(65536)
        self.received += data
        return data


def dechunk(body: bytes) -> bytes:
    """The content of a complete chunked body."""
    content = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        content, body = content + body[:length], body[length + 2 :]
    return content


def events(body: bytes) -> list[Any]:
    """A strict parser of server-sent events: the JSON of each event, and `[DONE]` as that string."""
    assert body.endswith(b"\n\n"), body[-100:]
    result: list[Any] = []
    for event in body[:-2].split(b"\n\n"):
        lines = event.decode("utf-8").splitlines()
        assert len(lines) == 1 and lines[0].startswith("data: "), event
        data = lines[0].removeprefix("data: ")
        result.append(data if data == "[DONE]" else json.loads(data))
    return result
