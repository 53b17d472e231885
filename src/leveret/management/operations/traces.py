"""Trace points of messages, for the telemetry process."""

from __future__ import annotations

from collections.abc import Iterator

from leveret.broker.dead_letter import split_address
from leveret.broker.errors import PreconditionFailed
from leveret.broker.tracing import TracePoint
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.structs import Request
from leveret.management.telemetry.points import Point


def take(context: Context, request: Request) -> Iterator[Point]:
    """Remove the trace points and return them, in the order of time. Raises `PreconditionFailed` if tracing is off."""
    tracing = context.broker.tracing
    if tracing is None:
        raise PreconditionFailed("messages are not traced; the settings are telemetry.otlp_endpoint and telemetry.traces")
    points, dropped = tracing.take()
    return _points(points, dropped)


def _points(points: list[TracePoint], dropped: int) -> Iterator[Point]:
    if dropped:
        yield Point(dropped=dropped)
    for point in points:
        exchange, routing_key = split_address(point.address)
        yield Point(
            step=point.step,
            time=point.time,
            parent=point.parent,
            vhost=point.vhost,
            name=point.name,
            queue=point.queue,
            seq=point.seq,
            exchange=exchange,
            routing_key=routing_key,
            size=point.size,
            protocol=point.protocol,
            outcome=point.outcome,
            reason=point.reason,
            queues=point.queues,
        )


OPERATIONS: Operations = {"traces.take": Operation(take, Request, Point)}
