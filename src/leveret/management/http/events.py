"""Live events for subscribers: server-sent events with a bounded buffer each.

Events come from the copies that the process keeps of the broker's objects, and from the audit log. The latest ones are
kept, so that a client that reconnects misses none. While nothing happens, a subscriber costs a comment every few seconds.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request
from leveret.management.http.identity import POLICY, Identity

# Events that are kept for clients that reconnect.
_KEPT: Final = 2000
# Events that wait for a subscriber.
MAX_PENDING: Final = 1000
# Seconds between two comments, which show that the connection is alive.
_KEEP_ALIVE: Final = 15.0
# Seconds after which a client must connect again, since its token or session may have ended.
_MAX_AGE: Final = 600.0
# Seconds between two events about statistics of the node, which change all the time.
_NODE_INTERVAL: Final = 15

# Kinds of events that every subscriber sees if the vhost is visible; of other kinds only administrators do.
_IN_VHOST: Final = frozenset(("queue", "exchange", "policy", "operator_policy", "binding", "messages", "consumer", "alert"))
_FOR_ALL: Final = frozenset(("alarm", "statistics"))
# Kinds of the audit log that the copies of objects report, too.
_COPIED: Final = frozenset(("queue", "exchange", "connection"))
# Kinds after whose changes a user may see other objects than before.
_RIGHTS: Final = frozenset(("user", "permission", "topic_permission", "role"))


class Event:
    """An event.

    Attributes:
        number: Increases by one per event; 0 for one that is not kept.
        kind: The kind of the object.
        vhost: The vhost of the object.
        owner: The user who may see it, in addition to monitors.
        encoded: The event as it is sent.
    """

    __slots__ = ("encoded", "kind", "number", "owner", "vhost")

    def __init__(self, number: int, kind: str, vhost: str, owner: str, encoded: bytes) -> None:
        self.number = number
        self.kind = kind
        self.vhost = vhost
        self.owner = owner
        self.encoded = encoded

    def is_visible_to(self, identity: Identity) -> bool:
        """Return whether a user sees the object."""
        if self.kind in _FOR_ALL:
            return True
        if self.kind == "connection":
            return identity.is_monitor() or self.owner == identity.name
        if self.kind == "parameter":
            return identity.sees(self.vhost) and POLICY.allows(identity, self.vhost)
        if self.kind == "vhost" or self.kind in _IN_VHOST:
            return identity.sees(self.vhost)
        return identity.is_administrator()


def encode_event(name: str, data: Row | msgspec.Struct, number: str = "") -> bytes:
    """Return an event as it is sent; `number` is its id."""
    head = f"event: {name}\n" + (f"id: {number}\n" if number else "")
    return head.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"


class Subscriber:
    """A client that receives events.

    Attributes:
        identity: The user.
    """

    def __init__(self, identity: Identity, kinds: frozenset[str]) -> None:
        self.identity = identity
        self._kinds = kinds
        self._pending: deque[bytes] = deque()
        self._ready = asyncio.Event()
        self._ended = False
        self._until = time.monotonic() + _MAX_AGE

    def wants(self, event: Event) -> bool:
        return (not self._kinds or event.kind in self._kinds) and event.is_visible_to(self.identity)

    def put(self, encoded: bytes) -> None:
        """Add an event. A subscriber that has too many of them is dropped."""
        if self._ended:
            return
        if len(self._pending) >= MAX_PENDING:
            self._pending.clear()
            self.end(f"the client is too slow: {MAX_PENDING} events were waiting")
            return
        self._pending.append(encoded)
        self._ready.set()

    def end(self, reason: str) -> None:
        """Send the reason, then end the stream."""
        if not self._ended:
            self._pending.append(encode_event("dropped", {"reason": reason}))
            self._ended = True
            self._ready.set()

    async def next(self) -> bytes:
        """Return what is to be sent next; nothing at the end."""
        if time.monotonic() > self._until:
            self.end("the stream has a limited duration; connect again")
        if not self._pending and not self._ended:
            self._ready.clear()
            try:
                async with asyncio.timeout(_KEEP_ALIVE):
                    await self._ready.wait()
            except TimeoutError:
                return b": alive\n\n"
        content = b"".join(self._pending)
        self._pending.clear()
        return content


class Events:
    """The events of one broker, and their subscribers."""

    def __init__(self) -> None:
        self._subscribers: set[Subscriber] = set()
        self._kept: deque[Event] = deque(maxlen=_KEPT)
        self._last = 0
        # Distinguishes the numbers of this process from those of an earlier one.
        self._epoch = secrets.token_hex(4)
        self._statistics: set[str] = set()
        self._node_at = 0

    def publish(self, kind: str, action: str, data: Row, vhost: str = "", owner: str = "") -> None:
        """Publish an event `KIND.ACTION`."""
        self._last += 1
        encoded = encode_event(f"{kind}.{action}", data, f"{self._epoch}-{self._last}")
        event = Event(self._last, kind, vhost, owner, encoded)
        self._kept.append(event)
        self._send(event)

    def _send(self, event: Event) -> None:
        for subscriber in self._subscribers:
            if subscriber.wants(event):
                subscriber.put(event.encoded)

    def audited(self, record: Row) -> None:
        """Publish an event about a change in the audit log, unless the copies of objects report it."""
        kind = record["kind"]
        if kind in _RIGHTS:
            self.reconnect(record["name"], "the permissions of the user have changed; connect again")
        if kind in _COPIED:
            return
        action = "changed"
        if kind != "messages":
            action = "created" if record["before"] is None else "deleted" if record["after"] is None else "changed"
        data = {"name": record["name"], "vhost": record["vhost"], "user": record["user"], "action": record["action"]}
        self.publish(kind, action, data, record["vhost"])

    def reconnect(self, user: str, reason: str) -> None:
        """End the streams of a user, whose clients connect again if they may."""
        for subscriber in self._subscribers:
            if subscriber.identity.name == user:
                subscriber.end(reason)

    def note_statistics(self, kind: str) -> None:
        """Note that statistics of objects of a kind have changed."""
        self._statistics.add(kind)

    def ticked(self, tick: int) -> None:
        """Notify subscribers of the kinds whose statistics have changed since the last second."""
        if tick - self._node_at >= _NODE_INTERVAL:
            self._node_at = tick
            self._statistics.add("node")
        if self._statistics:
            if self._subscribers:
                data = {"kinds": sorted(self._statistics)}
                self._send(Event(0, "statistics", "", "", encode_event("statistics", data)))
            self._statistics = set()

    def reset(self) -> None:
        """Have subscribers read everything again: the broker was restarted."""
        self._kept.clear()
        self._last += 1
        for subscriber in self._subscribers:
            subscriber.put(self._reset_event())

    def _reset_event(self) -> bytes:
        return encode_event("reset", {}, f"{self._epoch}-{self._last}")

    def subscribe(self, identity: Identity, kinds: Iterable[str], last_id: str) -> Subscriber:
        """Add a subscriber. One that reconnects with the id of its last event gets those since.

        Raises:
            HttpError: The id is invalid.
        """
        subscriber = Subscriber(identity, frozenset(kinds))
        for encoded in self._missed(subscriber, last_id):
            subscriber.put(encoded)
        self._subscribers.add(subscriber)
        return subscriber

    def _missed(self, subscriber: Subscriber, last_id: str) -> Iterator[bytes]:
        if not last_id:
            # An id from which the client can continue.
            yield encode_event("hello", {}, f"{self._epoch}-{self._last}")
            return
        epoch, _, number = last_id.partition("-")
        if not number.isdecimal() or len(number) > 18:
            raise bad_request(f"invalid Last-Event-ID '{last_id}'; expected that of an earlier event")
        last = int(number)
        missed = [event for event in self._kept if event.number > last]
        if epoch != self._epoch or last > self._last or len(missed) < self._last - last or len(missed) >= MAX_PENDING:
            yield self._reset_event()
            return
        yield from (event.encoded for event in missed if subscriber.wants(event))

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.discard(subscriber)

    def close(self) -> None:
        """End all streams."""
        for subscriber in self._subscribers:
            subscriber.end("the broker stops")
