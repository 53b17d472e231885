"""Live tails: messages that arrive in a queue, or that are published to an exchange, while a reader watches.

A reader opens a tail with conditions, and reads it about twice a second. It gets a limited number of messages and bytes per
second; what was left out is counted. A tail that is not read for some time is closed.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Final, Literal

from msgspec import field

from leveret.broker.bodies import Body, size_of
from leveret.broker.errors import NotFound, PreconditionFailed, ResourceError
from leveret.broker.message import PROTOCOLS, address_of
from leveret.broker.tails import Arrival, ExchangeTail, QueueTail, Tail
from leveret.broker.values import FieldTable
from leveret.management.json_values import ClientTable
from leveret.management.operations.browsing import Decoded, Matching, Turns, find_queue, id_of
from leveret.management.operations.message_search import Condition
from leveret.management.operations.messages import Encoding, encode, start_of
from leveret.management.operations.operation import EACH, Context, Operation, Operations, check
from leveret.management.structs import Reply, Request

if TYPE_CHECKING:
    pass

MAX_TAILS: Final = 32
# Seconds after which a tail that is not read is closed.
TIMEOUT: Final = 60.0
# Maximum messages per second, bytes of them per second, and bytes of one payload.
MAX_RATE: Final = 200
MAX_BYTE_RATE: Final = 1 << 20
MAX_PAYLOAD: Final = 64 << 10
# Messages that are looked at in one step, and seconds of one read.
STEP: Final = 16
SECONDS: Final = 0.1


class OpenTail(Request, kw_only=True):
    """Request for a live tail of a queue or of an exchange.

    Attributes:
        where: Conditions that the messages must meet.
        selector: A JMS message selector that they must match, as for consumers.
        rate: Maximum number of messages per second.
        encoding: Whether payloads that are UTF-8 are returned as text.
        truncate: Maximum number of bytes of a payload to return.
    """

    vhost: str = "/"
    queue: str | None = None
    exchange: str | None = None
    where: list[Condition] = field(default_factory=list)
    selector: str = ""
    rate: int = 50
    encoding: Encoding = "auto"
    truncate: int = 4096


class OpenedTail(Reply, kw_only=True):
    """The id of a live tail."""

    id: str


class ReadTail(Request, kw_only=True):
    """Request about a live tail."""

    id: str


class TailMessage(Reply, kw_only=True):
    """A message of a live tail.

    Attributes:
        time: When it arrived, in milliseconds of Unix time.
        id: Identifies the message in its queue, as for `messages.browse`; None for an exchange.
    """

    time: int
    id: int | None
    exchange: str
    routing_key: str
    persistent: bool
    protocol: str
    properties: ClientTable
    payload: str
    payload_bytes: int
    payload_encoding: Literal["string", "base64"]


class TailMessages(Reply, kw_only=True):
    """The messages of a live tail since the last read.

    Attributes:
        examined: Number of messages that were looked at.
        skipped: Those that do not match because a condition is on a value and their JSON is too large to be decoded.
        omitted: Those that match beyond the maximum rate.
        dropped: Number of messages that were not looked at because too many arrived.
        ended: Why the tail has ended; "" if it has not.
    """

    messages: list[TailMessage] = field(default_factory=list)
    examined: int = 0
    skipped: int = 0
    omitted: int = 0
    dropped: int = 0
    ended: str = ""


class _Arrived(Decoded):
    """A decoded message that has arrived."""

    __slots__ = ("time",)

    def __init__(self, arrival: Arrival, properties: FieldTable, body: Body) -> None:
        entry, message = arrival.entry, arrival.message
        super().__init__(message, entry, message.address if entry is None else address_of(entry), properties, body)
        self.time = arrival.time


class _Allowance:
    """A number per second that a reader may get; that of one second is saved at most."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._left = float(rate)
        self._at = time.monotonic()

    def refill(self) -> None:
        now = time.monotonic()
        self._left = min(self._left + (now - self._at) * self._rate, float(self._rate))
        self._at = now

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def take(self, amount: int) -> None:
        self._left -= amount


class LiveTail:
    """A tail with its conditions and the limits of its reader. Raises `BrokerError` if the request is invalid."""

    def __init__(self, context: Context, request: OpenTail) -> None:
        if not 0 < request.rate <= MAX_RATE or not 0 <= request.truncate <= MAX_PAYLOAD:
            raise PreconditionFailed(
                f"invalid rate or truncate; expected 1 to {MAX_RATE} messages, and at most {MAX_PAYLOAD} bytes"
            )
        self._request = request
        self._matching: Matching[_Arrived] = Matching(context, request.where, request.selector)
        self._messages = _Allowance(request.rate)
        self._bytes = _Allowance(MAX_BYTE_RATE)
        # Whether topic permissions apply to the messages.
        self._has_topics = False
        self._source = ""
        self._tail = self._watch(context)
        self.read_at = time.monotonic()

    def _watch(self, context: Context) -> Tail:
        request = self._request
        if request.queue is not None and request.exchange is None:
            self._source = request.queue
            return QueueTail(find_queue(context, request.vhost, request.queue))
        if request.exchange is not None and request.queue is None:
            self._source = request.exchange
            check(context, request.vhost, "read", self._source)
            vhost = context.vhost(request.vhost)
            exchange = vhost.exchange(request.exchange)
            self._has_topics = exchange.has_topics
            return ExchangeTail(vhost, exchange)
        raise PreconditionFailed("no single source; expected one of queue and exchange")

    def close(self) -> None:
        """Stop to watch."""
        self._tail.close()

    async def read(self, context: Context) -> TailMessages:
        """Return the messages since the last read. Raises `AccessRefused` if the principal may not read them any more."""
        check(context, self._request.vhost, "read", self._source)
        self.read_at = time.monotonic()
        self._messages.refill()
        self._bytes.refill()
        arrivals, dropped = self._tail.take()
        result = TailMessages(dropped=dropped)
        if self._tail.has_ended():
            result.dropped += len(arrivals)
            result.ended = "the queue was deleted" if self._request.exchange is None else "the exchange was deleted"
            return result
        if self._has_topics:
            arrivals = [arrival for arrival in arrivals if self._may_read_topic(context, arrival)]
        until = self.read_at + SECONDS
        turns = Turns(context)
        for at in range(0, len(arrivals), STEP):
            if time.monotonic() >= until:
                result.dropped += len(arrivals) - at
                break
            step = arrivals[at : at + STEP]
            found = await self._matching.matching((self._decode(context, arrival) for arrival in step), turns)
            result.examined += len(step)
            result.skipped += len(self._matching.skipped)
            for item in found:
                self._add(item, result)
                await turns.pause()
        return result

    def _may_read_topic(self, context: Context, arrival: Arrival) -> bool:
        message = arrival.message
        return context.principal.may_topic(self._request.vhost, "read", message.exchange, message.routing_key)

    def _decode(self, context: Context, arrival: Arrival) -> _Arrived:
        entry = arrival.entry
        if entry is None:
            return _Arrived(arrival, *context.broker.as_basic(arrival.message))
        return _Arrived(arrival, *context.managed.codec.decode(entry))

    def _add(self, item: _Arrived, result: TailMessages) -> None:
        """Add a message to a reply, or count it as omitted."""
        if self._messages.is_spent or self._bytes.is_spent:
            result.omitted += 1
            return
        content = start_of(item.body, self._request.truncate)
        self._messages.take(1)
        self._bytes.take(len(content) + len(item.message.header))
        payload, payload_encoding = encode(content, self._request.encoding)
        result.messages.append(
            TailMessage(
                time=item.time,
                id=None if item.place is None else id_of(item.place),
                exchange=item.exchange,
                routing_key=item.routing_key,
                persistent=item.message.persistent,
                protocol=PROTOCOLS[item.message.format],
                properties=ClientTable(item.properties),
                payload=payload,
                payload_bytes=size_of(item.body),
                payload_encoding=payload_encoding,
            )
        )


class Tails:
    """The open live tails."""

    def __init__(self) -> None:
        self._tails: dict[str, LiveTail] = {}

    def open(self, context: Context, request: OpenTail) -> str:
        """Open a tail and return its id. Raises `BrokerError`."""
        if len(self._tails) >= MAX_TAILS:
            raise ResourceError(f"{MAX_TAILS} live tails are open; expected fewer: close another one")
        number = secrets.token_urlsafe(16)
        self._tails[number] = LiveTail(context, request)
        asyncio.get_running_loop().call_later(TIMEOUT, self._expire, number)
        return number

    def tail(self, number: str) -> LiveTail:
        """Return the tail with an id. Raises `NotFound`."""
        found = self._tails.get(number)
        if found is None:
            raise NotFound(f"no live tail '{number}'; one that is not read for {TIMEOUT:g} seconds is closed")
        return found

    def close(self, number: str) -> None:
        """Close a tail, if there is one with this id."""
        found = self._tails.pop(number, None)
        if found is not None:
            found.close()

    def _expire(self, number: str) -> None:
        """Close a tail if it was not read for some time."""
        found = self._tails.get(number)
        if found is None:
            return
        left = found.read_at + TIMEOUT - time.monotonic()
        if left <= 0:
            self.close(number)
        else:
            asyncio.get_running_loop().call_later(left, self._expire, number)


async def open_tail(context: Context, request: OpenTail) -> OpenedTail:
    """Watch a queue or an exchange."""
    return OpenedTail(id=context.managed.tails.open(context, request))


async def read_tail(context: Context, request: ReadTail) -> TailMessages:
    """Return the messages since the last read."""
    tails = context.managed.tails
    result = await tails.tail(request.id).read(context)
    if result.ended:
        tails.close(request.id)
    return result


def close_tail(context: Context, request: ReadTail) -> None:
    """Stop to watch."""
    context.managed.tails.close(request.id)


OPERATIONS: Final[Operations] = {
    "tails.open": Operation(open_tail, OpenTail, OpenedTail, EACH),
    "tails.read": Operation(read_tail, ReadTail, TailMessages, EACH),
    "tails.close": Operation(close_tail, ReadTail, None, EACH),
}
