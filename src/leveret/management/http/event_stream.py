"""Subscriptions to live events: the handler, and the stream that it answers with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from leveret.management.http.events import Events, Subscriber
from leveret.management.http.request import Answer, Request

if TYPE_CHECKING:
    from starlette.types import Receive, Send

# Seconds between two reads of a source without events of its own.
INTERVAL: Final = 0.5
# A kind that no event has: its subscriber gets only the end of the stream.
NO_KIND: Final = "none"
# Seconds for which a client may take no events.
_SEND_TIMEOUT: Final = 30.0
_RETRY: Final = b"retry: 2000\n\n"


class Source(Protocol):
    """The origin of the events of a stream."""

    async def next(self) -> bytes:
        """Return what is to be sent next; nothing at the end."""

    def end(self, reason: str) -> None:
        """Send the reason, then end the stream."""

    async def close(self) -> None:
        """Release what the stream uses."""


class Subscription:
    """Live events for one subscriber."""

    def __init__(self, events: Events, subscriber: Subscriber) -> None:
        self._events = events
        self._subscriber = subscriber

    async def next(self) -> bytes:
        return await self._subscriber.next()

    def end(self, reason: str) -> None:
        self._subscriber.end(reason)

    async def close(self) -> None:
        self._events.unsubscribe(self._subscriber)


class Reader(Protocol):
    """The origin of the events of a polled stream."""

    async def read(self) -> bytes:
        """Return the events since the last read."""

    async def close(self) -> None:
        """Release what the reader uses."""


class PolledStream:
    """The events that a reader finds twice a second.

    The stream ends for the same reasons as one of events: the session or the permissions of the user, or its duration.

    Args:
        events: Where the subscriber is.
        subscriber: Gets only the end of the stream.
        reader: Finds the events. The stream closes it.
    """

    def __init__(self, events: Events, subscriber: Subscriber, reader: Reader) -> None:
        self._events = events
        self._subscriber = subscriber
        self._reader = reader
        self._notice: asyncio.Task[bytes] | None = None

    async def begin(self) -> None:
        """Have the stream begin with the events that there are."""
        try:
            content = await self._reader.read()
        except BaseException:
            await self.close()
            raise
        if content:
            self._subscriber.put(content)

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
            content = await self._reader.read()
            if content:
                return content

    def end(self, reason: str) -> None:
        """Send the reason, then end the stream."""
        self._subscriber.end(reason)

    async def close(self) -> None:
        """Release what the stream uses."""
        self._events.unsubscribe(self._subscriber)
        if self._notice is not None:
            self._notice.cancel()
        await self._reader.close()


class EventStream:
    """The body of an answer with events."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def respond(self, method: str, headers: Iterable[tuple[str, str]], receive: Receive, send: Send) -> None:
        """Send events until the client disconnects or takes none for too long, or the stream ends."""
        if method == "HEAD":
            self._source.end("")
        sending = asyncio.ensure_future(self._send(headers, send))
        disconnected = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((sending, disconnected), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, disconnected):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                    await task
            await self._source.close()

    async def _send(self, headers: Iterable[tuple[str, str]], send: Send) -> None:
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": 200, "headers": encoded})
        content = _RETRY
        while content:
            async with asyncio.timeout(_SEND_TIMEOUT):
                await send({"type": "http.response.body", "body": content, "more_body": True})
            content = await self._source.next()
        await send({"type": "http.response.body", "body": b""})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def subscribe(request: Request) -> Answer:
    """Stream events. `kinds` of the query selects some; the header `Last-Event-ID` continues an earlier stream."""
    kinds = [kind for kind in request.query.get("kinds", "").split(",") if kind]
    last_id = request.headers.get("last-event-id", request.query.get("last_event_id", ""))
    subscriber = request.events.subscribe(request.identity, kinds, last_id)
    return Answer(body=EventStream(Subscription(request.events, subscriber)))
