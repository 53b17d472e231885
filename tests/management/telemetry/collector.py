"""An OTLP collector: an HTTP server that keeps the spans and metrics that it gets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from tests.support.broker import free_port
from tests.support.polling import wait_until

Value = str | int | bool


@dataclass(frozen=True)
class Span:
    """A span, with its ids in hexadecimal and its times in nanoseconds."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    began: int
    ended: int
    attributes: dict[str, Value]
    links: list[str]


@dataclass(frozen=True)
class Measurement:
    """A point of a metric."""

    value: float
    attributes: dict[str, Value]


class Collector:
    """A collector on a port of its own. `status` is the status of its answers."""

    def __init__(self, port: int = 0) -> None:
        self.status = 200
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._metrics: dict[str, list[Measurement]] = {}
        self.requests = 0
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.receive(self.path, body)
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def receive(self, path: str, body: bytes) -> None:
        with self._lock:
            self.requests += 1
            if self.status != 200:
                return
            if path == "/v1/traces":
                self._spans += _spans(body)
            elif path == "/v1/metrics":
                self._metrics.update(_metrics(body))
            else:
                raise AssertionError(f"unexpected path {path}")

    def spans(self, trace_id: str | None = None) -> list[Span]:
        """Return the spans, or those of one trace, by the time of their ends."""
        with self._lock:
            found = [span for span in self._spans if trace_id is None or span.trace_id == trace_id]
        return sorted(found, key=lambda span: span.ended)

    def metric(self, name: str) -> list[Measurement]:
        """Return the latest measurements of a metric."""
        with self._lock:
            return list(self._metrics.get(name, []))

    def wait_spans(self, trace_id: str, names: list[str]) -> list[Span]:
        """Wait until the broker's spans of a trace have these names, in any order, and return them."""
        expected = sorted(names)

        def found() -> bool:
            return sorted(span.name for span in self.broker_spans(trace_id)) == expected

        wait_until(found, lambda: f"spans: {[span.name for span in self.spans(trace_id)]}, expected {expected}")
        return self.broker_spans(trace_id)

    def broker_spans(self, trace_id: str) -> list[Span]:
        return [span for span in self.spans(trace_id) if span.service == "leveret"]


def _spans(body: bytes) -> Iterator[Span]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = str(_attributes(resource.resource.attributes)["service.name"])
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    span.name,
                    service,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.kind,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    _attributes(span.attributes),
                    [link.span_id.hex() for link in span.links],
                )


def _metrics(body: bytes) -> Iterator[tuple[str, list[Measurement]]]:
    for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield (
                    metric.name,
                    [
                        Measurement(point.as_int or point.as_double, _attributes(point.attributes))
                        for point in metric.sum.data_points
                    ],
                )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Value]:
    return {pair.key: _value(pair) for pair in pairs}


def _value(pair: KeyValue) -> Value:
    value: Value = getattr(pair.value, str(pair.value.WhichOneof("value")))
    return value


@contextmanager
def unreachable() -> Iterator[tuple[str, Callable[[], Collector]]]:
    """Yield a URL at which nothing listens, and a function that starts a collector there."""
    started: list[Collector] = []
    port = free_port()

    def start() -> Collector:
        collector = Collector(port)
        collector.__enter__()
        started.append(collector)
        return collector

    try:
        yield f"http://127.0.0.1:{port}", start
    finally:
        for collector in started:
            collector.__exit__(None, None, None)
