"""A stream with its sealed segments and its Iceberg table."""

from __future__ import annotations

from leveret.management.http.control import Row, renamed
from leveret.management.http.errors import BrokerRefused
from leveret.management.http.request import Answer, Request


async def show(request: Request) -> Answer:
    """Return a stream, its sealed segments, and its Iceberg table; null if streams of this broker have none."""
    wanted: Row = {"vhost": request.vhost, "name": request.name}
    stream: Row = await request.control.call("streams.show", wanted)
    segments = await request.control.call("streams.segments", wanted)
    try:
        (table,) = await request.control.call("streams.tables", wanted)
    except BrokerRefused:
        table = None
    return Answer(body={**renamed(stream), "sealed": [renamed(segment) for segment in segments], "table": table})
