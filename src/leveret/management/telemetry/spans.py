"""Spans of trace points.

Each step of a message becomes a span whose parent is the span that the message's `traceparent` names. A publish ends when
the message is in its queues. A delivery begins when the message entered the queue, and a settlement begins with the
delivery, so that their durations are the time in the queue and the time at the consumer. If the beginning is not known,
the span has no duration.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from leveret.management.telemetry.points import Point

K = TypeVar("K")

# Steps and outcomes of `leveret.broker.tracing`.
_PUBLISH: Final = "publish"
_ROUTE: Final = "route"
_DELIVER: Final = "deliver"
_SETTLE: Final = "settle"
_COPY: Final = "copy"
_RELEASED: Final = "released"

# Values of `messaging.operation.type`.
_TYPES: Final = {_PUBLISH: "send", _DELIVER: "receive", _SETTLE: "settle"}
# AMQP clients for RabbitMQ report this value, so that all spans of a trace have the same one.
_SYSTEM: Final = "rabbitmq"
_DEFAULT_EXCHANGE: Final = "amq.default"
_VERSIONS: Final = {"0-9-1": "0.9.1", "0-9": "0.9", "1.0": "1.0"}
# Maximum number of entries whose times are known.
MAX_TIMES: Final = 100_000


class Times(Generic[K]):
    """The times of the latest MAX_TIMES keys."""

    def __init__(self) -> None:
        self._times: OrderedDict[K, int] = OrderedDict()

    def note(self, key: K, time: int) -> None:
        self._times[key] = time
        self._times.move_to_end(key)
        if len(self._times) > MAX_TIMES:
            self._times.popitem(last=False)

    def get(self, key: K, default: int) -> int:
        return self._times.get(key, default)

    def pop(self, key: K, default: int) -> int:
        return self._times.pop(key, default)


class SpanMaker:
    """Maker of the spans of trace points, which it gets in the order of time."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        # When an entry, by queue and sequence number, became ready, and when it was delivered.
        self._ready: Times[tuple[int, int]] = Times()
        self._delivered: Times[tuple[int, int]] = Times()
        # The last publish while its message is being routed.
        self._publish: tuple[Span, str, int] | None = None
        self._published_until = 0

    def add(self, point: Point) -> None:
        """Make the span of a trace point."""
        began = point.time
        key = (point.queue, point.seq)
        if point.step == _ROUTE and self._publish is not None and self._publish[1] == point.parent:
            began = self._publish[2]
            self._published_until = point.time
        else:
            self.flush()
        if point.step == _PUBLISH:
            self._publish = (self._span(point, SpanKind.SERVER, began), point.parent, began)
            self._published_until = began
            return
        if point.step == _ROUTE:
            self._ready.note(key, point.time)
        elif point.step == _DELIVER:
            began = self._ready.get(key, point.time)
            self._delivered.note(key, point.time)
        elif point.step == _SETTLE:
            began = self._delivered.pop(key, point.time)
            if point.outcome == _RELEASED:
                self._ready.note(key, point.time)
            else:
                self._ready.pop(key, 0)
        else:
            began = self._ready.pop(key, point.time)
        self._span(point, SpanKind.INTERNAL, began).end(point.time)

    def flush(self) -> None:
        """End the last publish."""
        if self._publish is not None:
            self._publish[0].end(self._published_until)
            self._publish = None

    def _span(self, point: Point, kind: SpanKind, began: int) -> Span:
        trace_id, _, span_id = point.parent.partition("-")
        parent = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(TraceFlags.SAMPLED))
        name = point.name or _DEFAULT_EXCHANGE
        return self._tracer.start_span(
            f"{point.step} {name}",
            set_span_in_context(NonRecordingSpan(parent)),
            kind,
            _attributes(point, name),
            start_time=min(began, point.time),
        )


def _attributes(point: Point, name: str) -> dict[str, str | int]:
    """Return attributes with the names of the semantic conventions for messaging, and Leveret's own."""
    attributes: dict[str, str | int] = {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": point.step,
        "messaging.destination.name": name,
        "messaging.message.body.size": point.size,
        "leveret.vhost": point.vhost,
    }
    if point.step in _TYPES:
        attributes["messaging.operation.type"] = _TYPES[point.step]
    if point.routing_key:
        attributes["messaging.rabbitmq.destination.routing_key"] = point.routing_key
    if point.queue:
        attributes["messaging.destination.publish.name"] = point.exchange or _DEFAULT_EXCHANGE
    if point.protocol:
        attributes["network.protocol.name"] = "amqp"
        attributes["network.protocol.version"] = _VERSIONS.get(point.protocol, point.protocol)
    if point.outcome:
        attributes["leveret.outcome"] = point.outcome
    if point.reason:
        attributes["leveret.reason"] = point.reason
    if point.queues:
        attributes["leveret.queues"] = point.queues
    return attributes
