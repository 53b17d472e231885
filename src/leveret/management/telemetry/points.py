"""Trace points as the broker sends them to the telemetry process."""

from __future__ import annotations

from leveret.management.structs import Reply


class Point(Reply, array_like=True, kw_only=True, gc=False):
    """A trace point, as `leveret.broker.tracing.TracePoint`. If `dropped` is set: that many trace points were dropped."""

    step: str = ""
    time: int = 0
    parent: str = ""
    vhost: str = ""
    name: str = ""
    queue: int = 0
    seq: int = 0
    exchange: str = ""
    routing_key: str = ""
    size: int = 0
    protocol: str = ""
    outcome: str = ""
    reason: str = ""
    queues: int = 0
    dropped: int = 0
