"""Live tails of queues and exchanges as server-sent events."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import msgspec

from leveret.management.http.control import Row
from leveret.management.http.errors import BrokerRefused, BrokerUnavailable, bad_request
from leveret.management.http.event_stream import EventStream
from leveret.management.http.events import Subscriber, encode_event
from leveret.management.http.in_place import check_fields
from leveret.management.http.request import Answer, Request, exchange_of

# Seconds between two reads.
INTERVAL: Final = 0.5
# A kind that no event has: the subscriber gets only the end of the stream.
_KIND: Final = "tail"
_COUNTS: Final = ("examined", "skipped", "omitted", "dropped")


class TailStream:
    """The events of one live tail: `message` for each message, and `counts` when they have changed.

    The stream ends for the same reasons as one of events: the session or the permissions of the user, or its duration.
    """

    def __init__(self, request: Request, number: str, subscriber: Subscriber) -> None:
        self._control = request.control
        self._user = request.identity.name
        self._masks = request.masks
        self._number = number
        self._events = request.events
        self._subscriber = subscriber
        self._notice: asyncio.Task[bytes] | None = None
        self._counts = dict.fromkeys(_COUNTS, 0)

    async def next(self) -> bytes:
        """Return what is to be sent next; nothing at the end."""
        while True:
            if self._notice is None:
                self._notice = asyncio.create_task(self._subscriber.next())
            await asyncio.wait((self._notice,), timeout=INTERVAL)
            if self._notice.done():
                content = self._notice.result()
                self._notice = None
                return content
            content = await self._read()
            if content:
                return content

    async def _read(self) -> bytes:
        try:
            found: Row = await self._control.call("tails.read", {"id": self._number}, user=self._user)
        except (BrokerRefused, BrokerUnavailable) as error:
            self.end(str(error))
            return b""
        await self._masks.apply(found["messages"])
        events = [encode_event("message", message) for message in found["messages"]]
        if any(found[key] for key in _COUNTS):
            for key in _COUNTS:
                self._counts[key] += found[key]
            events.append(encode_event("counts", self._counts))
        if found["ended"]:
            self.end(found["ended"])
        return b"".join(events)

    def end(self, reason: str) -> None:
        """Send the reason, then end the stream."""
        self._subscriber.end(reason)

    async def close(self) -> None:
        """Stop to watch."""
        self._events.unsubscribe(self._subscriber)
        if self._notice is not None:
            self._notice.cancel()
        with suppress(BrokerRefused, BrokerUnavailable):
            await self._control.call("tails.close", {"id": self._number}, user=self._user)


def _wanted(request: Request) -> Row:
    """Return the parameters of the query. Raises `HttpError` (400)."""
    query = request.query
    wanted: Row = {name: query[name] for name in ("selector", "encoding") if name in query}
    for name in ("rate", "truncate"):
        if name in query:
            if not query[name].isdecimal():
                raise bad_request(f"invalid value of '{name}'; expected a number")
            wanted[name] = int(query[name])
    if "where" in query:
        try:
            wanted["where"] = msgspec.json.decode(query["where"], type=list[Row])
        except (msgspec.DecodeError, UnicodeEncodeError):
            raise bad_request("invalid value of 'where'; expected a list of conditions as JSON") from None
    return wanted


async def _follow(request: Request, source: Row) -> Answer:
    user = request.identity.name
    wanted = {"vhost": request.vhost, **source, **_wanted(request)}
    check_fields(request, wanted.get("where", []))
    if wanted.get("selector"):
        request.masks.check_selector()
    number = (await request.control.call("tails.open", wanted, user=user))["id"]
    try:
        subscriber = request.events.subscribe(request.identity, (_KIND,), "")
    except BaseException:
        await request.control.call("tails.close", {"id": number}, user=user)
        raise
    return Answer(body=EventStream(TailStream(request, number, subscriber)))


async def follow_queue(request: Request) -> Answer:
    """Stream the messages that arrive in a queue; `where`, `selector`, `rate` and `truncate` of the query select them."""
    await request.get("queues.show", {"vhost": request.vhost, "name": request.name})
    return await _follow(request, {"queue": request.name})


async def follow_exchange(request: Request) -> Answer:
    """Stream the messages that are published to an exchange; the parameters are those for queues."""
    name = exchange_of(request.name)
    await request.get("exchanges.show", {"vhost": request.vhost, "name": name})
    return await _follow(request, {"exchange": name})
