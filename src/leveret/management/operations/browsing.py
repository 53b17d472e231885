"""Messages of a queue in their places: browse and search. Nothing is acquired, and no counter changes.

A request looks at a limited number of messages, in steps, and returns a cursor at which the next one continues.
"""

from __future__ import annotations

import asyncio
import base64
import heapq
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeAlias, TypeVar

from msgspec import field

from leveret.broker.bodies import Body, size_of
from leveret.broker.consumer import UNACKED_PIECE
from leveret.broker.dead_letter import split_address
from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import ACQUIRED, FORMAT_AMQP1, PROTOCOLS, Entry, Message
from leveret.broker.queues.inspection import FIRST_LEVEL, Walk
from leveret.broker.queues.queue import Queue
from leveret.broker.values import FieldTable
from leveret.management.descriptions import number_of
from leveret.management.json_values import ClientTable
from leveret.management.operations.message_search import Condition, Search
from leveret.management.operations.messages import (
    MAX_BYTES,
    MAX_MESSAGES,
    Encoding,
    address_of,
    encode,
    start_of,
)
from leveret.management.operations.operation import EACH, Context, Operation, Operations, check
from leveret.management.operations.times import since_of
from leveret.management.structs import Reply, Request

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer

# Maximum values of the limits of one request.
MAX_EXAMINED: Final = 100_000
MAX_EXAMINED_BYTES: Final = 256 << 20
MAX_SECONDS: Final = 10.0
# Entries of one step, bytes of their bodies, and seconds after which other work is done.
STEP: Final = 64
STEP_BYTES: Final = 1 << 20
TURN: Final = 0.002
# States of messages in their places.
State: TypeAlias = Literal["ready", "unacked", "delayed"]
# Maximum bytes of a body of AMQP 1.0 that are returned with its sections.
MAX_ENCODED_BODY: Final = 64 << 10
# Bytes that an encoded byte of properties may take as JSON.
TABLE_WEIGHT: Final = 4


class Limited(Request, kw_only=True):
    """The messages of a request, and the limits of its work.

    Attributes:
        where: Conditions that the messages must meet.
        selector: A JMS message selector that they must match, as for consumers.
        since: A time, as ISO 8601 or milliseconds of Unix time, or an interval before now such as `1h`. Messages of a
            stream begin at the chunk that contains the time, as for consumers. Those of other queues must have a
            `timestamp` of that second or later; the broker does not know when they arrived.
        cursor: Where an earlier request ended, to continue there.
        examine: Maximum number of messages to look at.
        examine_bytes: Maximum number of bytes of their bodies.
        seconds: Maximum time.
    """

    vhost: str = "/"
    queue: str
    where: list[Condition] = field(default_factory=list)
    selector: str = ""
    since: str = ""
    cursor: str = ""
    examine: int = 10_000
    examine_bytes: int = 64 << 20
    seconds: float = 2.0


class Browse(Limited, kw_only=True):
    """Request to look at messages.

    Attributes:
        state: `ready`, `unacked` for messages that consumers have, or `delayed` for messages that become ready later.
        offset: Number of messages to skip; for a stream the offset of the first message.
        count: Maximum number of messages to return.
        encoding: Whether payloads that are UTF-8 are returned as text.
        truncate: Maximum number of bytes of a payload to return.
        encoded: Whether to return messages as their publishers have encoded them, too.
    """

    state: State = "ready"
    offset: int = 0
    count: int = 100
    encoding: Encoding = "auto"
    truncate: int = 64 << 10
    encoded: bool = False


class Count(Limited, kw_only=True):
    """Request to count messages.

    Attributes:
        state: `ready`, or `delayed` for messages that become ready later.
    """

    state: Literal["ready", "delayed"] = "ready"


class Holder(Reply, kw_only=True):
    """The consumer that has an unacked message. A message fetched with `basic.get` has none."""

    consumer_tag: str
    connection: int | None
    channel: int | None


class BrowsedMessage(Reply, kw_only=True):
    """A message in its place.

    Attributes:
        id: Identifies the message in its queue; for a stream its offset.
        deliveries: Deliveries so far.
        failures: Deliveries that failed.
        protocol: The protocol of the publisher.
        holder: The consumer that has it.
        unacked_age: Minimum seconds since its delivery; None unless a channel or session has it unacked.
        ready_at: When a delayed message becomes ready, in milliseconds of Unix time; None for others.
        encoded: In base64, the content header of AMQP 0-9-1 and 0-9, or the message of AMQP 1.0 up to some bytes of the
            body; None unless requested.
    """

    id: int
    exchange: str
    routing_key: str
    redelivered: bool
    deliveries: int
    failures: int
    persistent: bool
    protocol: str
    properties: ClientTable
    payload: str
    payload_bytes: int
    payload_encoding: Literal["string", "base64"]
    holder: Holder | None = None
    unacked_age: int | None = None
    ready_at: int | None = None
    encoded: str | None = None


class Browsed(Reply, kw_only=True):
    """Messages of a queue.

    Attributes:
        queue_id: Identifies the queue: another one of its name has another id.
        examined: Number of messages that were looked at.
        skipped: Those that do not match because a condition is on a value and their JSON is too large to be decoded.
        cursor: Where the next request continues; None at the end.
    """

    queue_id: int
    messages: list[BrowsedMessage]
    examined: int
    skipped: int
    cursor: str | None


class Counted(Reply, kw_only=True):
    """The number of messages that meet conditions.

    Attributes:
        queue_id: Identifies the queue.
        bytes: The bytes of the messages.
        examined: Number of messages that were looked at.
        skipped: Those that do not match because a condition is on a value and their JSON is too large to be decoded.
        cursor: Where the next request continues; None at the end. Its numbers are to be added to these.
    """

    queue_id: int
    messages: int = 0
    bytes: int = 0
    examined: int = 0
    skipped: int = 0
    cursor: str | None = None


class Decoded:
    """A message with its decoded properties. `place` is its entry; None for a message that is in no queue."""

    __slots__ = ("body", "exchange", "message", "place", "properties", "routing_key")

    def __init__(self, message: Message, place: Entry | None, address: bytes, properties: FieldTable, body: Body) -> None:
        self.message = message
        self.place = place
        self.exchange, self.routing_key = split_address(address)
        self.properties = properties
        self.body = body


class Found(Decoded):
    """An entry with its decoded properties."""

    __slots__ = ("entry",)

    def __init__(self, entry: Entry, properties: FieldTable, body: Body) -> None:
        super().__init__(entry.message, entry, address_of(entry), properties, body)
        self.entry = entry


D = TypeVar("D", bound=Decoded)
Describe: TypeAlias = Callable[[Found, Browse, Holder | None], BrowsedMessage]


class Turns:
    """Interrupts long work, so that the broker does other work in between."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._until = time.monotonic() + TURN

    @property
    def is_over(self) -> bool:
        """Whether the turn has lasted long enough."""
        return time.monotonic() > self._until

    async def pause(self) -> None:
        """End the turn if it has lasted long enough."""
        if self.is_over:
            await self.end()

    async def end(self) -> None:
        """End the turn."""
        self._context.broker.end_turn()
        await asyncio.sleep(0)
        self._until = time.monotonic() + TURN


class Matching(Generic[D]):
    """Finds the messages that meet the conditions of a request. Raises `PreconditionFailed` if one is invalid.

    Attributes:
        skipped: Those of the last messages that do not match because their JSON is too large to be decoded.
    """

    def __init__(self, context: Context, where: list[Condition], selector: str, since: int = 0) -> None:
        self._context = context
        self._search = Search(where, selector, since)
        self.skipped: list[D] = []

    async def matching(self, messages: Iterable[D], turns: Turns) -> list[D]:
        """Return the messages that meet the conditions. They may be decoded while they are iterated over."""
        search = self._search
        found: list[D] = []
        self.skipped = []
        for item in messages:
            if search.accepts(item.exchange, item.routing_key, item.properties) and self._is_selected(item):
                if search.skips(item.body):
                    self.skipped.append(item)
                else:
                    found.append(item)
            await turns.pause()
        if not found or not search.looks_into_bodies:
            return found
        return await self._context.managed.search_in_thread(
            lambda: [item for item in found if search.accepts_body(item.body)]
        )

    def _is_selected(self, item: D) -> bool:
        selector = self._search.selector
        return selector is None or self._context.managed.codec.is_selected(item.message, item.place, selector)


class Selection:
    """The messages that a request selects, and the work that is left of its limits.

    Attributes:
        walk: The walk over the messages.
        matching: The conditions that messages must meet.
        examined: Number of messages that were looked at.
        skipped: Those that do not match because their JSON is too large to be decoded.
    """

    def __init__(self, context: Context, queue: Queue, request: Limited, state: State = "ready") -> None:
        """Begin with messages that are ready, or delayed. Raises `PreconditionFailed` if the request is invalid."""
        if request.examine < 1 or request.examine_bytes < 1 or request.seconds <= 0:
            raise PreconditionFailed("invalid examine, examine_bytes or seconds; expected more than 0")
        self._context = context
        stream = queue.vhost.streams.get(queue.id)
        since = since_of(request.since, context.broker.timers.unix())
        # The chunks of a stream have times.
        self.matching: Matching[Found] = Matching(context, request.where, request.selector, since if stream is None else 0)
        self._left = min(request.examine, MAX_EXAMINED)
        self._bytes_left = min(request.examine_bytes, MAX_EXAMINED_BYTES)
        self._until = time.monotonic() + min(request.seconds, MAX_SECONDS)
        self.turns = Turns(context)
        self.examined = 0
        self.skipped = 0
        self._step: list[Entry] = []
        inspection = queue.inspect()
        self.walk = inspection.walk_delayed() if state == "delayed" else inspection.walk()
        self.walk.start_after(*_read_cursor(queue, request.cursor))
        if stream is not None and since and not request.cursor:
            self.walk.start_after(FIRST_LEVEL, stream.offset_at(since), self.walk.until)

    @property
    def is_spent(self) -> bool:
        """Whether the work of the request is done."""
        return self._left <= 0 or self._bytes_left <= 0 or time.monotonic() >= self._until

    @property
    def cursor(self) -> str | None:
        """The place at which the next request continues, None at the end."""
        walk = self.walk
        return None if walk.ended else f"{walk.queue.id}-{walk.level}-{walk.seq}-{walk.until}"

    def end_behind(self, entry: Entry) -> None:
        """End behind an entry of the last step. The next request looks at those behind it."""
        rest = self._step[self._step.index(entry) + 1 :]
        self.examined -= len(rest)
        self.skipped -= sum(1 for skipped in self.matching.skipped if skipped.entry in rest)
        self.walk.start_behind(entry)

    async def found(self, count: int) -> AsyncIterator[list[Found]]:
        """Yield the next messages that meet the conditions, until the end of the queue or of the limits.

        A search for the first ones exceeds the limits if it must: the next request would begin it again.

        Args:
            count: Maximum number of messages to look at in one step.
        """
        walk = self.walk
        while not walk.ended and (not self.is_spent or (walk.searching and not self.examined)):
            self._step = entries = await next_entries(walk, min(count, STEP, self._left))
            self._left -= len(entries)
            self._bytes_left -= sum(entry.message.size for entry in entries)
            self.examined += len(entries)
            found = await self.matching.matching(describe_entries(self._context, entries), self.turns)
            self.skipped += len(self.matching.skipped)
            if found:
                yield found
            await self.turns.pause()


def describe_entry(context: Context, entry: Entry) -> Found:
    """Decode an entry."""
    return Found(entry, *context.managed.codec.decode(entry))


def describe_entries(context: Context, entries: list[Entry]) -> Iterator[Found]:
    """Decode entries while they are iterated over."""
    return (describe_entry(context, entry) for entry in entries)


async def next_entries(walk: Walk, count: int) -> list[Entry]:
    """Return the next entries of a walk, which may have to be read."""
    while True:
        entries = walk.next(count, STEP_BYTES)
        if entries or not walk.must_read:
            return entries
        await _read(walk)


async def _read(walk: Walk) -> None:
    """Read the next entries of a walk."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    walk.read(_resolver(future))
    await future


def _resolver(future: asyncio.Future[None]) -> Callable[[], None]:
    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    return resolve


def find_queue(context: Context, vhost: str, name: str) -> Queue:
    """Return a queue whose messages the principal may read. Raises `BrokerError`."""
    check(context, vhost, "read", name)
    return context.vhost(vhost).queue(name, None)


def _read_cursor(queue: Queue, cursor: str) -> tuple[int, int, int]:
    if not cursor:
        return FIRST_LEVEL, 0, queue.next_seq - 1
    try:
        queue_id, level, seq, until = (int(part) for part in cursor.split("-"))
    except ValueError:
        raise PreconditionFailed(f"invalid cursor '{cursor}'; expected that of an earlier request") from None
    check_same(queue, queue_id)
    return level, seq, until


def check_same(queue: Queue, queue_id: int) -> None:
    """Raise `PreconditionFailed` if a queue is not the one that an earlier request has shown."""
    if queue.id != queue_id:
        raise PreconditionFailed(f"{queue} was deleted and declared again; browse it again")


async def browse(context: Context, request: Browse) -> Browsed:
    """Look at messages of a queue."""
    return await browse_with(context, request, describe)


async def browse_with(context: Context, request: Browse, describe: Describe) -> Browsed:
    """Look at messages of a queue, which a function describes."""
    if request.count < 1 or request.offset < 0 or request.truncate < 0:
        raise PreconditionFailed("invalid count, offset or truncate; expected a count of at least 1, and at least 0")
    queue = find_queue(context, request.vhost, request.queue)
    if request.state == "unacked":
        return await _browse_unacked(context, queue, request, describe)
    selection = Selection(context, queue, request, request.state)
    if not request.cursor:
        await _skip(selection, request.offset)
    messages: list[BrowsedMessage] = []
    count = min(request.count, MAX_MESSAGES)
    size = 0
    # Without conditions, all messages of a step are returned.
    async for found in selection.found(STEP if request.where or request.selector else count):
        for item in found:
            messages.append(describe(item, request, None))
            if request.state == "delayed":
                messages[-1].ready_at = _ready_at(context, item.entry)
            size += _returned_size(item.entry.message, request)
            if len(messages) == count or size > MAX_BYTES:
                selection.end_behind(item.entry)
                break
            await selection.turns.pause()
        if len(messages) == count or size > MAX_BYTES:
            break
    return Browsed(
        queue_id=queue.id,
        messages=messages,
        examined=selection.examined,
        skipped=selection.skipped,
        cursor=selection.cursor,
    )


async def count_messages(context: Context, request: Count) -> Counted:
    """Count the ready or delayed messages of a queue that meet conditions."""
    queue = find_queue(context, request.vhost, request.queue)
    selection = Selection(context, queue, request, request.state)
    counted = Counted(queue_id=queue.id)
    async for found in selection.found(STEP):
        counted.messages += len(found)
        counted.bytes += sum(item.entry.message.size for item in found)
    counted.examined = selection.examined
    counted.skipped = selection.skipped
    counted.cursor = selection.cursor
    return counted


async def _skip(selection: Selection, count: int) -> None:
    walk = selection.walk
    if walk.queue.replayable:
        walk.start_after(FIRST_LEVEL, max(count, walk.seq), walk.until)  # the offset is a place
        return
    while count and not walk.ended:
        count = walk.skip(count)
        if walk.must_read:
            await _read(walk)
        await selection.turns.pause()


def describe(found: Found, request: Browse, holder: Holder | None) -> BrowsedMessage:
    """Return a message of a reply."""
    entry = found.entry
    content = start_of(found.body, request.truncate)
    payload, payload_encoding = encode(content, request.encoding)
    # An unacked entry counts its present delivery, too.
    before = entry.acquired_count - (1 if request.state == "unacked" else 0)
    return BrowsedMessage(
        id=id_of(entry),
        exchange=found.exchange,
        routing_key=found.routing_key,
        redelivered=before > 0,
        deliveries=entry.acquired_count,
        failures=entry.delivery_count,
        persistent=entry.message.persistent,
        protocol=PROTOCOLS[entry.message.format],
        properties=ClientTable(found.properties),
        payload=payload,
        payload_bytes=size_of(found.body),
        payload_encoding=payload_encoding,
        holder=holder,
        encoded=base64.b64encode(_encoded(entry.message, request.truncate)).decode() if request.encoded else None,
    )


def _ready_at(context: Context, entry: Entry) -> int | None:
    """Return when a delayed entry becomes ready, in milliseconds of Unix time."""
    return None if entry.overlay is None else entry.overlay.visible_at + context.broker.timers.step


def id_of(entry: Entry) -> int:
    """Return the id of a message in its queue: for a stream its offset."""
    return entry.seq - 1 if entry.queue.replayable else entry.seq


def _encoded(message: Message, truncate: int) -> bytes:
    """Return a message as its publisher has encoded it: the content header, or the sections of AMQP 1.0 with the body."""
    if message.format != FORMAT_AMQP1:
        return message.header
    at = message.headers_at if message.headers_at >= 0 else len(message.header)  # the footer is behind the other sections
    body = start_of(message.body, min(truncate, MAX_ENCODED_BODY))
    footer = message.header[at:] if len(body) == size_of(message.body) else b""
    return message.header[:at] + body + footer


def _returned_size(message: Message, request: Browse) -> int:
    """Return the approximate bytes of a message in an answer."""
    size = min(message.size, request.truncate)
    properties = TABLE_WEIGHT * len(message.header)
    return size + properties + len(message.header) + min(size, MAX_ENCODED_BODY) if request.encoded else size + properties


async def _browse_unacked(context: Context, queue: Queue, request: Browse, describe: Describe) -> Browsed:
    """Look at the messages that consumers have, in the order of their arrival."""
    selection = Selection(context, queue, request)
    after = selection.walk.seq
    count = min(request.count, MAX_MESSAGES)
    matching = selection.matching
    entries = await first_unacked(context, queue, after, selection.turns, MAX_EXAMINED)
    messages: list[BrowsedMessage] = []
    size = 0
    examined = skipped = 0
    left = request.offset if not request.cursor else 0
    cursor: str | None = None
    without_age: dict[Entry, BrowsedMessage] = {}
    for entry in entries:
        if entry.state != ACQUIRED:
            continue  # settled or requeued meanwhile
        if left:
            left -= 1
            continue
        if len(messages) == count or size > MAX_BYTES or examined == min(request.examine, MAX_EXAMINED):
            cursor = f"{queue.id}-0-{after}-{selection.walk.until}"
            break
        after = entry.seq
        examined += 1
        for found in await matching.matching(describe_entries(context, [entry]), selection.turns):
            messages.append(describe(found, request, _holder(entry.holder)))
            without_age[entry] = messages[-1]
            size += _returned_size(entry.message, request)
        skipped += len(matching.skipped)
        await selection.turns.pause()
    await _add_ages(context, without_age, selection.turns)
    return Browsed(queue_id=queue.id, messages=messages, examined=examined, skipped=skipped, cursor=cursor)


async def _add_ages(context: Context, messages: dict[Entry, BrowsedMessage], turns: Turns) -> None:
    """Set the ages of unacked entries. Removes the messages whose age is set."""
    ages, timers = context.managed.unacked_ages, context.broker.timers
    for owner in list(context.broker.holders):
        deliveries = owner.deliveries()
        if deliveries is None or not messages:
            continue
        for numbers in deliveries.numbers():
            for number in numbers:
                entry = deliveries.entries.get(number)
                message = None if entry is None else messages.pop(entry, None)
                if message is not None:
                    message.unacked_age = ages.age_of_delivery(owner, number, deliveries, timers.now())
            await turns.pause()


async def first_unacked(context: Context, queue: Queue, after: int, turns: Turns, count: int) -> list[Entry]:
    """Return the first acquired entries of a queue behind a sequence number, at most `count`."""
    first = _First(count)
    for holder in list(context.broker.holders):
        for entries in holder.unacked_pieces():
            for at in range(0, len(entries), UNACKED_PIECE):
                for entry in entries[at : at + UNACKED_PIECE]:
                    if entry.queue is queue and entry.seq > after:
                        first.add(entry)
                await turns.pause()
    ordered: list[Entry] = []
    while first:
        ordered += first.take_last(UNACKED_PIECE)
        await turns.pause()
    ordered.reverse()
    return ordered


class _First:
    """The entries of a queue with the lowest sequence numbers. Each is added and removed in little time.

    Args:
        limit: The maximum number of entries.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[int, Entry] = {}
        # Their negated sequence numbers: the highest number is the first item.
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, entry: Entry) -> None:
        """Add an entry, which may be known."""
        seq = entry.seq
        if seq in self._entries:
            return
        if len(self._heap) < self._limit:
            heapq.heappush(self._heap, -seq)
        elif -seq > self._heap[0]:
            del self._entries[-heapq.heapreplace(self._heap, -seq)]
        else:
            return
        self._entries[seq] = entry

    def take_last(self, count: int) -> list[Entry]:
        """Remove and return entries, the last one first."""
        return [self._entries.pop(-heapq.heappop(self._heap)) for _ in range(min(count, len(self._heap)))]


def _holder(consumer: Consumer | None) -> Holder | None:
    if consumer is None:
        return None
    return Holder(
        consumer_tag=consumer.tag,
        connection=number_of(consumer.owner),
        channel=number_of(consumer.channel),
    )


OPERATIONS: Operations = {
    "messages.browse": Operation(browse, Browse, Browsed, EACH),
    "messages.count": Operation(count_messages, Count, Counted, EACH),
}
