"""The service as a process, sending to an OTLP receiver, and to collectors that are of no use."""

import asyncio
import signal
import socket
import time
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from oteltap import OtelTapHttpProtobufReceiver, OtelTapHttpProtobufReceiverSettings
from raw_client import RawClient
from service_rig import CLIENT, ServiceProcess

PATH = "/v1/completions"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def attributes_of(span: Span) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}


def requests_of_every_fate(url: str, port: int) -> None:
    for number in range(3):
        assert CLIENT.post(url + PATH, json={"prompt": f"finished {number}", "max_tokens": 3}).status_code == 200
    for number in range(2):
        with RawClient(port) as client:
            client.post(PATH, {"prompt": f"left {number}", "max_tokens": 1500, "stream": True}).read_until(b"data: ")
    assert CLIENT.post(url + PATH, json={"prompt": "a", "max_tokens": 10**6}).status_code == 400
    assert CLIENT.post(url + PATH, content=b"{").status_code == 400


async def test_the_receiver_gets_one_complete_span_per_request(model_folder: Path) -> None:
    port = free_port()
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    async with OtelTapHttpProtobufReceiver(OtelTapHttpProtobufReceiverSettings(http_port=port)) as receiver:
        spans: list[Span] = []

        async def collect(count: int) -> None:
            async for span in receiver.stream_traces():
                spans.append(span)
                if len(spans) == count:
                    return

        collecting = asyncio.create_task(collect(7))

        def serve() -> int:
            with ServiceProcess(model_folder, "--script-step-ms", "5", environment=environment) as service:
                requests_of_every_fate(service.url, service.port)
                service.send(signal.SIGTERM)
                return service.wait()

        assert await asyncio.to_thread(serve) == 0
        await asyncio.wait_for(collecting, 10)
        surplus = asyncio.create_task(collect(8))
        await asyncio.sleep(0.5)
        surplus.cancel()
    assert len(spans) == 7
    assert all(span.kind == Span.SPAN_KIND_SERVER and span.end_time_unix_nano for span in spans)
    kinds = sorted(str(attributes_of(span).get("error.type")) for span in spans)
    assert kinds == ["None"] * 3 + ["aborted"] * 2 + ["context_length_exceeded", "invalid_json"]
    assert len({span.trace_id for span in spans}) == 7


def seconds_to_end(model_folder: Path, endpoint: str) -> float:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with ServiceProcess(model_folder, environment=environment) as service:
        for number in range(5):
            begun = time.monotonic()
            assert CLIENT.post(service.url + PATH, json={"prompt": f"p{number}", "max_tokens": 2}).status_code == 200
            assert time.monotonic() - begun < 2.0
        begun = time.monotonic()
        service.send(signal.SIGTERM)
        assert service.wait() == 0, service.log
        return time.monotonic() - begun


def test_a_collector_that_refuses_delays_nothing(model_folder: Path) -> None:
    assert seconds_to_end(model_folder, f"http://127.0.0.1:{free_port()}") < 8.0


def test_a_collector_that_never_answers_delays_nothing(model_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert seconds_to_end(model_folder, f"http://127.0.0.1:{silent.getsockname()[1]}") < 8.0
