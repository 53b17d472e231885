"""Live tails of queues and exchanges as server-sent events."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from leveret.management.http.control import Row
from leveret.management.http.errors import BrokerRefused, BrokerUnavailable, bad_request
from leveret.management.http.event_stream import NO_KIND, EventStream, PolledStream
from leveret.management.http.events import Subscriber, encode_event
from leveret.management.http.in_place import check_fields
from leveret.management.http.request import Answer, Request, exchange_of

_COUNTS: Final = ("examined", "skipped", "omitted", "dropped")


class _TailReader:
    """The events of one live tail: `message` for each message, and `counts` when they have changed."""

    def __init__(self, request: Request, number: str, subscriber: Subscriber) -> None:
        self._control = request.control
        self._user = request.identity.name
        self._masks = request.masks
        self._number = number
        self._subscriber = subscriber
        self._counts = dict.fromkeys(_COUNTS, 0)

    async def read(self) -> bytes:
        """Return the events since the last read."""
        try:
            found: Row = await self._control.call("tails.read", {"id": self._number}, user=self._user)
        except (BrokerRefused, BrokerUnavailable) as error:
            self._subscriber.end(str(error))
            return b""
        await self._masks.apply(found["messages"])
        events = [encode_event("message", message) for message in found["messages"]]
        if any(found[key] for key in _COUNTS):
            for key in _COUNTS:
                self._counts[key] += found[key]
            events.append(encode_event("counts", self._counts))
        if found["ended"]:
            self._subscriber.end(found["ended"])
        return b"".join(events)

    async def close(self) -> None:
        """Stop to watch."""
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
        subscriber = request.events.subscribe(request.identity, (NO_KIND,), "")
    except BaseException:
        await request.control.call("tails.close", {"id": number}, user=user)
        raise
    reader = _TailReader(request, number, subscriber)
    return Answer(body=EventStream(PolledStream(request.events, subscriber, reader)))


async def follow_queue(request: Request) -> Answer:
    """Stream the messages that arrive in a queue; `where`, `selector`, `rate` and `truncate` of the query select them."""
    await request.get("queues.show", {"vhost": request.vhost, "name": request.name})
    return await _follow(request, {"queue": request.name})


async def follow_exchange(request: Request) -> Answer:
    """Stream the messages that are published to an exchange; the parameters are those for queues."""
    name = exchange_of(request.name)
    await request.get("exchanges.show", {"vhost": request.vhost, "name": name})
    return await _follow(request, {"exchange": name})
