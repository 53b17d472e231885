"""Export of spans: takes trace points from the broker, and sends their spans to the collector."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from leveret.management.http.control import Control
from leveret.management.http.errors import BrokerRefused, BrokerUnavailable
from leveret.management.telemetry.collector import Collector, make_session
from leveret.management.telemetry.points import Point
from leveret.management.telemetry.spans import SpanMaker

# Seconds between two calls of the broker. It is called again at once after a reply with this number of trace points.
_INTERVAL: Final = 0.5
_MANY: Final = 1000
# Maximum number of spans per export.
_MAX_SPANS: Final = 2000


class _Ended(SpanProcessor):
    """The spans that have ended."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: only complete spans are exported."""

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        """Return the spans, and forget them."""
        spans, self._spans = self._spans, []
        return spans


class Traces:
    """The export of spans. While an export runs, the broker keeps new trace points, up to its limit."""

    def __init__(self, control: Control, collector: Collector, resource: Resource, endpoint: str, version: str) -> None:
        self._control = control
        self._collector = collector
        self._exporter: SpanExporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", session=make_session())
        self._ended = _Ended()
        # The publisher has decided about sampling.
        provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._maker = SpanMaker(provider.get_tracer("leveret", version))

    async def run(self, stopping: asyncio.Event) -> None:
        """Export spans until the process stops, and then once more."""
        while True:
            is_last = stopping.is_set()
            has_more = await self._export()
            if is_last:
                return
            if not has_more:
                try:
                    async with asyncio.timeout(_INTERVAL):
                        await stopping.wait()
                except TimeoutError:
                    pass

    async def _export(self) -> bool:
        """Export the spans of the current trace points; return whether there are probably more."""
        try:
            rows = await self._control.call("traces.take")
        except (BrokerUnavailable, BrokerRefused):
            return False  # the broker reopens its store, or stops
        for row in rows:
            point = msgspec.convert(row, Point)
            if point.dropped:
                self._collector.lose(point.dropped)
            else:
                self._maker.add(point)
        self._maker.flush()
        spans = self._ended.take()
        for at in range(0, len(spans), _MAX_SPANS):
            part = spans[at : at + _MAX_SPANS]
            accepted = await asyncio.to_thread(self._exporter.export, part) is SpanExportResult.SUCCESS
            self._collector.note(accepted)
            if not accepted:
                self._collector.lose(len(spans) - at)
                break
        return len(rows) >= _MANY
