"""Events about message activity, published to the exchange `amq.leveret.events` of each vhost.

An event is a message with the routing key EVENT.NAME, where NAME is a queue or an exchange. Events without a binding are
never created: when the bindings of the exchange change, each queue with a bound event gets `QueueEvents`, which its watch
(see `watches`) calls. A queue without them does no work for events.

The activity of a turn is counted and turned into messages at the end of the turn; much of it in later turns. Events never
block: events that a queue rejects are counted and reported later.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.consumer import Output
from leveret.broker.exchanges.base import Binding, Effort
from leveret.broker.exchanges.topic import TopicExchange
from leveret.broker.jobs import STEP_WORK, Sliced
from leveret.broker.message import PROTOCOLS, Entry, Message, address_of
from leveret.broker.outcomes import ACCEPTED, REJECTED
from leveret.broker.watches import events_of, set_events

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue
    from leveret.broker.vhost import Vhost

EVENTS: Final = "amq.leveret.events"
PUBLISHED: Final = "published"
ROUTED: Final = "routed"
UNROUTABLE: Final = "unroutable"
DELIVERED: Final = "delivered"
SETTLED: Final = "settled"
EXPIRED: Final = "expired"
DEAD_LETTERED: Final = "dead-lettered"
DROPPED: Final = "dropped"
OF_QUEUES: Final = (ROUTED, DELIVERED, SETTLED, EXPIRED, DEAD_LETTERED)

# Outcomes of an entry that was removed, of a dead letter without a queue, and of a browsed entry.
REMOVED: Final = "dropped"
NO_QUEUE: Final = "unroutable"
COPY: Final = "copy"

CONTENT_TYPE: Final = "application/json"
# Start of the address of an event.
FROM_EVENTS: Final = bytes((len(EVENTS),)) + EVENTS.encode()
# Maximum number of events that wait to be published; more count as dropped.
MAX_PENDING: Final = 20_000
# Units of work to publish an event, and of the events that are published at the end of a turn. Events count as work when
# they are recorded, too, so that a turn records about as many as its end publishes.
EVENT_WORK: Final = 4
MAX_WORK: Final = 2 * STEP_WORK
# Maximum number of timestamps that a queue keeps for arrivals, and for deliveries.
MAX_TIMESTAMPS: Final = 16_384
MAX_UNREPORTED: Final = 100_000
_MAX_CACHED_NAMES: Final = 4096
_MAX_KEY_BYTES: Final = 255
UNKNOWN: Final = -1


# Steps of routing reserved for the broker.
NO_LIMIT: Final = 1 << 62


class EventsExchange(TopicExchange):
    """The events exchange. `changed` has the patterns of bindings added or removed since it was last read."""

    def __init__(self) -> None:
        super().__init__(EVENTS, True, False, True, None)
        self.changed: set[str] = set()

    def added(self, binding: Binding) -> None:
        self.changed.add(binding.routing_key)
        super().added(binding)

    def removed(self, binding: Binding) -> None:
        self.changed.add(binding.routing_key)
        super().removed(binding)

    def binds_all(self, event: str) -> bool:
        """Return whether all events of a kind are bound, whatever their names."""
        return self.has_pattern("#") or self.has_pattern(f"{event}.#")


class Series:
    """Events of one kind, name and outcome, of which one in `every` is published; it represents the others."""

    __slots__ = ("address", "begin", "count", "end", "every", "outcome", "protocol", "reason")

    def __init__(self, outcome: str, reason: str, protocol: str, address: bytes, begin: str, end: str, every: int) -> None:
        self.outcome = outcome
        self.reason = reason
        self.protocol = protocol
        self.address = address
        self.begin = begin
        self.end = end
        self.every = every
        # The first one is published in the middle of the first `every`, so that the counts are right on average.
        self.count = every >> 1

    def is_due(self) -> bool:
        count = self.count + 1
        if count < self.every:
            self.count = count
            return False
        self.count = 0
        return True


class Kind:
    """Events of one kind and one name, with any outcome."""

    __slots__ = ("address", "event", "events", "last", "name", "of_queue", "series")

    def __init__(self, events: Events, event: str, name: str, of_queue: bool) -> None:
        self.events = events
        self.event = event
        self.name = name
        self.of_queue = of_queue
        # Most queues never have an event, so this is created with the first one.
        self.address = b""
        self.series: dict[tuple[str, str, str], Series] | None = None
        # Most events equal the previous one.
        self.last: Series | None = None

    def note(self, address: bytes, size: int, age: int, outcome: str, reason: str, protocol: str, count: int = 0) -> None:
        """Record the event of a message, or of `count` messages. `age` is in milliseconds, or UNKNOWN."""
        series = self.last
        if series is None or series.outcome != outcome or series.protocol != protocol or series.reason != reason:
            if self.series is None:
                self.series = {}
                self.address = event_address(self.event, self.name)
            series = self.series.get((outcome, reason, protocol))
            if series is None:
                series = self.series[outcome, reason, protocol] = self._new_series(outcome, reason, protocol)
            self.last = series
        if count or series.is_due():
            self.events.add(series, address, size, age, count or series.every)

    def _new_series(self, outcome: str, reason: str, protocol: str) -> Series:
        events = self.events
        begin = f'{{"event":"{self.event}","vhost":{_json(events.vhost.name)},"time":'
        end = ""
        if self.of_queue:
            end += f',"queue":{_json(self.name)}'
        for name, value in (("outcome", outcome), ("reason", reason), ("protocol", protocol)):
            if value:
                end += f',"{name}":{_json(value)}'
        return Series(outcome, reason, protocol, self.address, begin, end, events.vhost.broker.event_sample)


class Noted:
    """An event that is not published yet. `time` is that of its turn in milliseconds."""

    __slots__ = ("address", "age", "sample", "series", "size", "time")

    def __init__(self, series: Series, time: int, address: bytes, size: int, age: int, sample: int) -> None:
        self.series = series
        self.time = time
        self.address = address
        self.size = size
        self.age = age
        self.sample = sample


class Times:
    """Arrival times of the entries of a queue: a pair of sequence number and milliseconds per turn."""

    __slots__ = ("seqs", "times")

    def __init__(self) -> None:
        self.seqs: array[int] = array("Q")
        self.times: array[int] = array("Q")

    def note(self, seq: int, now: int) -> None:
        times = self.times
        if times and times[-1] == now:
            return
        if len(times) >= MAX_TIMESTAMPS:  # use a coarser resolution
            self.seqs = self.seqs[::2]
            self.times = times = times[::2]
        self.seqs.append(seq)
        times.append(now)

    def age(self, seq: int, now: int) -> int:
        """Return the milliseconds since an entry arrived; UNKNOWN if it arrived before the watch."""
        index = bisect_right(self.seqs, seq)
        return max(now - self.times[index - 1], 0) if index else UNKNOWN


class QueueEvents:
    """The events of one queue; None for events without a binding."""

    __slots__ = (
        "dead_lettered_kind",
        "delivered_at",
        "delivered_kind",
        "events",
        "expired_kind",
        "routed_kind",
        "settled_kind",
        "times",
    )

    def __init__(self, events: Events) -> None:
        self.events = events
        self.routed_kind: Kind | None = None
        self.delivered_kind: Kind | None = None
        self.settled_kind: Kind | None = None
        self.expired_kind: Kind | None = None
        self.dead_lettered_kind: Kind | None = None
        self.times: Times | None = None
        # Delivery times of unacked entries.
        self.delivered_at: dict[Entry, int] = {}

    def watches_deliveries(self) -> bool:
        """Return whether events of deliveries and settlements are bound."""
        return self.delivered_kind is not None or self.settled_kind is not None

    def _age(self, entry: Entry, now: int) -> int:
        """Return the milliseconds since an entry arrived, if known."""
        times = self.times
        return UNKNOWN if times is None or not entry.seq else times.age(entry.seq, now)

    def routed(self, entry: Entry) -> None:
        """Record the arrival of an entry."""
        message = entry.message
        if message.address.startswith(FROM_EVENTS):
            return
        times = self.times
        if times is None:
            times = self.times = Times()
        times.note(entry.seq, self.events.turn())
        kind = self.routed_kind
        if kind is not None:
            kind.note(address_of(entry), message.size, UNKNOWN, "", "", PROTOCOLS[message.format])

    def delivered(self, entry: Entry, protocol: str, copy: bool = False) -> None:
        """Record a delivery; `copy`: to a browser, so that the entry stays."""
        message = entry.message
        if message.address.startswith(FROM_EVENTS):
            return
        now = self.events.turn()
        kind = self.delivered_kind
        if kind is not None:
            kind.note(address_of(entry), message.size, self._age(entry, now), COPY if copy else "", "", protocol)
        if self.settled_kind is not None and not copy and len(self.delivered_at) < MAX_UNREPORTED:
            self.delivered_at[entry] = now

    def settled(self, entry: Entry, outcome: str, protocol: str) -> None:
        """Record the outcome of a delivery."""
        message = entry.message
        if message.address.startswith(FROM_EVENTS):
            return
        since = self.delivered_at.pop(entry, UNKNOWN)
        kind = self.settled_kind
        if kind is not None:
            age = UNKNOWN if since < 0 else max(self.events.turn() - since, 0)
            kind.note(address_of(entry), message.size, age, outcome, "", protocol)

    def left(self, entry: Entry, reason: str) -> None:
        """Record that an entry leaves the queue for a reason other than an outcome."""
        message = entry.message
        if reason == REJECTED or message.address.startswith(FROM_EVENTS):
            return
        age = self._age(entry, self.events.turn())
        if reason == EXPIRED:
            if self.expired_kind is not None:
                self.expired_kind.note(address_of(entry), message.size, age, "", "", "")
        elif self.settled_kind is not None:
            self.settled_kind.note(address_of(entry), message.size, age, REMOVED, reason, "")

    def removed(self, reason: str, count: int) -> None:
        """Record the removal of several entries at once."""
        if count and self.settled_kind is not None:
            self.settled_kind.note(b"", 0, UNKNOWN, REMOVED, reason, "", count)

    def committed(self, count: int) -> None:
        """Record the settlement of several leased entries at once."""
        if count and self.settled_kind is not None:
            self.settled_kind.note(b"", 0, UNKNOWN, ACCEPTED, "lease", "", count)

    def dead_lettered(self, entry: Entry, reason: str, targets: int) -> None:
        """Record that an entry was dead-lettered to `targets` queues."""
        message = entry.message
        kind = self.dead_lettered_kind
        if kind is None or message.address.startswith(FROM_EVENTS):
            return
        age = self._age(entry, self.events.turn())
        kind.note(address_of(entry), message.size, age, ROUTED if targets else NO_QUEUE, reason, "")


class ExchangeEvents:
    """The events of one exchange."""

    __slots__ = ("published_kind", "unroutable_kind")

    def __init__(self, published: Kind | None, unroutable: Kind | None) -> None:
        self.published_kind = published
        self.unroutable_kind = unroutable

    def published(self, message: Message, queues: list[Queue]) -> None:
        """Record the publish of a message that was routed to these queues."""
        protocol = PROTOCOLS[message.format]
        if self.published_kind is not None:
            self.published_kind.note(message.address, message.size, UNKNOWN, "", "", protocol)
        if self.unroutable_kind is not None and not queues:
            self.unroutable_kind.note(message.address, message.size, UNKNOWN, "", "", protocol)


class Events(Output):
    """The events of a vhost.

    Attributes:
        dropped: Events that a queue rejected, or that exceeded a limit.
    """

    def __init__(self, vhost: Vhost, exchange: EventsExchange) -> None:
        self.vhost = vhost
        self.exchange = exchange
        self.bound = False
        self.dropped = 0
        self._all: frozenset[str] = frozenset()
        self._exchanges: dict[str, ExchangeEvents | None] = {}
        self._pending: deque[Noted] = deque()
        # Whether events of earlier turns are being published in steps.
        self._in_steps = False
        self._now = 0
        self._lost: dict[str, int] = {}
        self._names: dict[bytes, str] = {}
        self._headers: dict[int, bytes] = {}

    # Watches

    def rebind(self) -> None:
        """Update the watches after a change of the exchange's bindings."""
        exchange = self.exchange
        changed = exchange.changed
        if not changed:
            return
        exchange.changed = set()
        self.bound = exchange.is_bound()
        self._exchanges.clear()
        self._all = frozenset(event for event in OF_QUEUES if exchange.binds_all(event))
        queues = self.vhost.queues
        names = [_queue_of(pattern) for pattern in changed]
        if None in names:
            for queue in queues.values():
                self.watch(queue)
            return
        for name in names:
            found = queues.get(name) if name else None
            if found is not None:
                self.watch(found)

    def watch(self, queue: Queue) -> None:
        """Start or stop to watch a queue, depending on the bindings."""
        name = queue.name
        routed = self._kind(ROUTED, name)
        delivered = self._kind(DELIVERED, name)
        settled = self._kind(SETTLED, name)
        expired = self._kind(EXPIRED, name)
        dead_lettered = self._kind(DEAD_LETTERED, name)
        watch = events_of(queue)
        if routed is None and delivered is None and settled is None and expired is None and dead_lettered is None:
            if watch is not None:
                set_events(queue, None)
            return
        if watch is None:
            watch = QueueEvents(self)
        watch.routed_kind = routed
        watch.delivered_kind = delivered
        watch.settled_kind = settled
        watch.expired_kind = expired
        watch.dead_lettered_kind = dead_lettered
        if settled is None:
            watch.delivered_at.clear()
        set_events(queue, watch)

    def of_exchange(self, name: str) -> ExchangeEvents | None:
        """Return the watch of an exchange; None for events without a binding."""
        if not self.bound or name == EVENTS:
            return None
        if name in self._exchanges:
            return self._exchanges[name]
        published = self._kind(PUBLISHED, name)
        unroutable = self._kind(UNROUTABLE, name)
        watch = None if published is None and unroutable is None else ExchangeEvents(published, unroutable)
        if len(self._exchanges) > 2 * len(self.vhost.exchanges):
            self._exchanges.clear()  # of deleted exchanges
        self._exchanges[name] = watch
        return watch

    def _kind(self, event: str, name: str) -> Kind | None:
        if event not in self._all and not (
            self.bound and self.exchange.match(dotted_key(event, name), {}, "", Effort(NO_LIMIT))
        ):
            return None
        return Kind(self, event, name, event not in (PUBLISHED, UNROUTABLE))

    # Events of a turn

    def turn(self) -> int:
        """Return the time of this turn in milliseconds."""
        now = self._now
        if not now:
            now = self._now = self.vhost.broker.timers.unix()
            self.vhost.broker.outputs.append(self)
        return now

    def add(self, series: Series, address: bytes, size: int, age: int, sample: int) -> None:
        now = self.turn()
        if len(self._pending) >= MAX_PENDING:
            self._lose("", sample)
            return
        self._pending.append(Noted(series, now, address, size, age, sample))
        self.vhost.broker.work += EVENT_WORK

    def _lose(self, queue: str, count: int) -> None:
        self.dropped += count
        self._lost[queue] = self._lost.get(queue, 0) + count

    def flush(self) -> None:
        """Publish the events of the turn. If there are many, the rest follows in later turns."""
        self._now = 0
        pending = self._pending
        if self._lost and pending and not self.vhost.removed:
            self._report_lost(pending[0].time)
        left = MAX_WORK
        while pending and left > 0:
            left -= self._publish_next()
        if pending and not self._in_steps:
            self._in_steps = True
            jobs = self.vhost.broker.jobs
            jobs.add(Sliced(jobs, self._publishing(), None, self._drop_pending))

    def _publishing(self) -> Iterator[int]:
        """Publish the pending events in steps."""
        while self._pending:
            yield self._publish_next()
        self._in_steps = False

    def _drop_pending(self) -> None:
        """Drop the pending events after an error."""
        self._in_steps = False
        self.dropped += len(self._pending)
        self._pending.clear()

    def _publish_next(self) -> int:
        """Publish the oldest event; return the units of work."""
        noted = self._pending.popleft()
        if self.vhost.removed:
            return 1
        series = noted.series
        body = series.begin + str(noted.time)
        if noted.address:
            body += self._names_of(noted.address) + str(noted.size)
        body += series.end
        if noted.age >= 0:
            body += ',"age_ms":' + str(noted.age)
        before = self.vhost.broker.work
        queues = self._publish(series.address, body + ',"sample":' + str(noted.sample) + "}", noted.sample)
        return EVENT_WORK + queues + self.vhost.broker.work - before

    def _publish(self, address: bytes, text: str, count: int) -> int:
        """Publish an event that represents `count` to the queues; return how many of them accepted it."""
        vhost = self.vhost
        body = text.encode("ascii")
        size = len(body)
        header = self._headers.get(size)
        if header is None:
            header = self._headers[size] = vhost.broker.make_header(CONTENT_TYPE, size)
        message = Message(address, header, body, size, False)
        taken = 0
        for queue in vhost.route_own(message):
            if queue.push(message):
                taken += 1
            elif count:
                self._lose(queue.name, count)
        return taken

    def _report_lost(self, now: int) -> None:
        lost = self._lost
        self._lost = {}
        name = _json(self.vhost.name)
        for queue, count in lost.items():
            text = f'{{"event":"{DROPPED}","vhost":{name},"time":{now},"queue":{_json(queue)},"sample":{count}}}'
            if not self._publish(event_address(DROPPED, queue), text, 0):
                self._lost[queue] = count  # reported when there is room

    def _names_of(self, address: bytes) -> str:
        """Return exchange and routing key as JSON fields, truncated to the limit."""
        found = self._names.get(address)
        if found is None:
            if len(self._names) >= _MAX_CACHED_NAMES:
                self._names.clear()
            length = address[0]
            exchange = address[1 : 1 + length].decode("utf-8", "surrogateescape")
            routing_key = address[2 + length :].decode("utf-8", "surrogateescape")
            found = f',"exchange":{_json(exchange)},"routing_key":{_json(routing_key)},"size":'
            self._names[address] = found
        return found


def event_address(event: str, name: str) -> bytes:
    """Return the address of an event of a queue or an exchange."""
    key = dotted_key(event, name).encode("utf-8", "surrogateescape")
    return FROM_EVENTS + bytes((len(key),)) + key


def _queue_of(pattern: str) -> str | None:
    """Return the queue that a binding matches: "" for none, None for possibly many."""
    event, _, name = pattern.partition(".")
    if event not in ("*", "#") and event not in OF_QUEUES:
        return ""
    # The name in a long pattern may be truncated.
    if event == "#" or "*" in name or "#" in name or 4 * len(pattern) > _MAX_KEY_BYTES:
        return None
    return name


def dotted_key(event: str, name: str) -> str:
    """Return the routing key of an event or a trace message, with a truncated name if necessary."""
    key = f"{event}.{name}"
    encoded = key.encode("utf-8", "surrogateescape")
    return key if len(encoded) <= _MAX_KEY_BYTES else encoded[:_MAX_KEY_BYTES].decode("utf-8", "ignore")


def _json(text: str) -> str:
    """Return a text as JSON; invalid UTF-8 becomes question marks."""
    return json.dumps(text.encode("utf-8", "replace").decode("utf-8"))
