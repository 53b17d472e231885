"""The broker's log: the latest records as JSON, and live as server-sent events."""

from __future__ import annotations

from typing import Final

import msgspec

from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request
from leveret.management.http.event_stream import NO_KIND, EventStream, PolledStream
from leveret.management.http.events import encode_event
from leveret.management.http.log_records import LogStream
from leveret.management.http.places import LOGS
from leveret.management.http.request import Answer, Request
from leveret.management.recent_log import LEVELS, MAX_RECORDS, LogFilter

_EVENTS: Final = "text/event-stream"
DEFAULT_LIMIT: Final = 200


class _LogReader:
    """The events of a stream: `record`; `counts` when records were dropped; `reset` if it does not continue another one."""

    def __init__(self, stream: LogStream, continues: bool) -> None:
        self._stream = stream
        self._continues = continues
        self._dropped = 0

    async def read(self) -> bytes:
        """Return the next events."""
        page = await self._stream.read()
        found: list[tuple[str, Row | msgspec.Struct]] = [("record", record) for record in page.records]
        if self._continues and self._stream.is_new:
            found.insert(0, ("reset", {}))
        self._continues = False
        if page.dropped:
            self._dropped += page.dropped
            found.append(("counts", {"dropped": self._dropped}))
        if not found:
            return b""
        # A client that does not get the last event reads the others again.
        *events, (name, data) = found
        return b"".join([*(encode_event(*event) for event in events), encode_event(name, data, self._stream.id)])

    async def close(self) -> None:
        """Do nothing: the stream uses nothing else."""


def _number(request: Request, name: str, maximum: int) -> int | None:
    """Return a number of the query, if it is there. Raises `HttpError` (400)."""
    value = request.query.get(name, "")
    if not value:
        return None
    if not value.isdecimal() or len(value) > 18 or int(value) > maximum:
        raise bad_request(f"invalid value of '{name}'; expected a number of at most {maximum}")
    return int(value)


def _filter(request: Request) -> LogFilter:
    """Return the conditions of the query. Raises `HttpError` (400)."""
    query = request.query
    level = query.get("level", "")
    if level and level not in LEVELS:
        raise bad_request(f"invalid value of 'level'; expected one of {', '.join(LEVELS)}")
    return LogFilter(
        level=level,
        logger=query.get("logger", ""),
        text=query.get("text", ""),
        connection=_number(request, "connection", 1 << 53),
        vhost=query.get("vhost", ""),
    )


async def show(request: Request) -> Answer:
    """Return the latest log records, or stream them and further ones to a client that accepts events."""
    wanted = _filter(request)
    limit = _number(request, "limit", MAX_RECORDS)
    if limit is None:
        limit = DEFAULT_LIMIT
    if _EVENTS not in request.headers.get("accept", ""):
        return Answer(body=await request.logs.latest(wanted, limit))
    await request.occupy(LOGS)
    last_id = request.headers.get("last-event-id", request.query.get("last_event_id", ""))
    reader = _LogReader(request.logs.open(wanted, limit, last_id), bool(last_id))
    subscriber = request.events.subscribe(request.identity, (NO_KIND,), "")
    stream = PolledStream(request.events, subscriber, reader)
    await stream.begin()
    return Answer(body=EventStream(stream))
