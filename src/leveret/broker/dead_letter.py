"""Dead-lettering of messages that leave a queue undelivered, and their `x-death` headers.

The body is not copied: the entry in the target queue refers to the same message, with an overlay that has the new address
and headers.

Queues that dead-letter to each other multiply a message: each of n overflowing queues can send n - 1 copies to the
others. A queue drops a limited number of messages in one turn, so the copies would pile up. `DeadLetters.overflow`
counts dead letters in queues that exceed their length limits; at its maximum, such queues get no more dead letters.

Queues without length limits multiply a message that expires in one queue after another, so the number of its copies is
limited, too. The product of the copies that each queue on the way made is an upper bound for it.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from leveret.broker.delay import HEADER, Delay
from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import Entry, Message, Overlay, make_address
from leveret.broker.queues.classic import expiry
from leveret.broker.routing import check_keys, resolve_delayed
from leveret.broker.values import FieldTable, FieldValue

if TYPE_CHECKING:
    from leveret.broker.exchanges.base import Exchange
    from leveret.broker.queues.queue import Queue
    from leveret.broker.vhost import Vhost


logger = logging.getLogger("leveret.broker")

# The reason for an unroutable message of a sink transaction, which was never in a queue.
UNROUTABLE: Final = "unroutable"

# Maximum overflow of a vhost: dead letters in queues beyond their length limits, each counted with the deaths in its
# header, which use the memory.
MAX_OVERFLOW: Final = 10_000

# Maximum number of copies of a message that has died before and then expired, without a rejection.
MAX_COPIES: Final = 1000
# Milliseconds between two log entries about messages with more copies.
REPORT_INTERVAL: Final = 60_000
# Bytes of headers that are decoded in a unit of work, as a power of two.
DECODING_SHIFT: Final = 3

# Keeps counts within 64 bits, whatever count a publisher has sent.
MAX_DEATH_COUNT: Final = (1 << 63) - 2


class DeadLetters:
    """The dead-lettering of a vhost.

    publishing    set while a dead letter is being published
    prepared      collects the dead letters of a transaction, which become visible with it
    overflow      total deaths of the dead letters in queues that exceed their length limits
    max_overflow  its maximum
    dropped       dead letters dropped because of it since `overflow` was 0
    max_copies    maximum number of copies of a message that has died before and then expired
    pruned        dead letters dropped because of `max_copies` and not logged yet
    undelivered   deliveries that clients could not receive, and not logged yet
    """

    def __init__(self, vhost: Vhost) -> None:
        self.vhost = vhost
        self.publishing = False
        self.prepared: list[Entry] | None = None
        self.overflow = 0
        self.max_overflow = MAX_OVERFLOW
        self.dropped = 0
        self.max_copies = MAX_COPIES
        self.pruned = 0
        self.report_due = 0
        self.undelivered = 0
        self.undelivered_due = 0
        # The parts of `overflow`, and the maximum number of copies of one message, by the ids of the queues.
        self._overflows: dict[int, int] = {}
        self._copies_of: dict[int, int] = {}

    def publish(self, entry: Entry, reason: str) -> None:
        """Publish a copy of the entry to the dead-letter exchange of its queue, if it has one."""
        queue = entry.queue
        name = queue.settings.dead_letter_exchange
        if name is None:
            return
        exchange = self.vhost.exchanges.get(name)
        if exchange is None:
            return
        message = entry.message
        headers = self.headers_of(entry)
        old_address = message.address
        if entry.overlay is not None and entry.overlay.address is not None:
            old_address = entry.overlay.address
        old_exchange, old_key = split_address(old_address)
        old_keys = [old_key, *_strings(headers.get("CC"))]
        deaths = self._add_death(headers, queue.name, reason, old_exchange, old_keys, entry)
        changes: FieldTable = dict(entry.overlay.headers) if entry.overlay is not None else {}
        changes.pop("x-delivery-count", None)
        changes["x-death"] = [*deaths]
        if "x-first-death-queue" not in headers:
            changes["x-first-death-exchange"] = old_exchange
            changes["x-first-death-queue"] = queue.name
            changes["x-first-death-reason"] = reason
        key = queue.settings.dead_letter_routing_key
        if key is None:
            keys = old_keys
            key = old_key
        else:
            keys = [key]
            if "CC" in headers:
                changes["CC"] = None
        merged: FieldTable = {k: v for k, v in {**headers, **changes}.items() if v is not None}
        address = make_address(name, key)
        targets = 0
        passed = set() if reason == UNROUTABLE else _unrejected(deaths)
        self.vhost.broker.work += len(deaths)
        nested = self.publishing
        self.publishing = True
        try:
            # Exclude cycles and full queues.
            found, delay = self._route(exchange, keys, merged, message)
            routed = [target for target in found if target.name not in passed and not target.limits.would_reject(message)]
            if len(routed) > 1:
                self._note_copies(queue, len(routed))
                if reason == expiry.EXPIRED and len(passed) > 1 and self._copies(passed, len(routed)) > self.max_copies:
                    self._prune(queue)
                    routed = []
            for target in routed:
                if self.overflow >= self.max_overflow and target.limits.is_overflowing():
                    self._drop(target)
                    continue
                overlay = Overlay(address, dict(changes), True, 0)
                if delay is not None and target in delay.queues:
                    overlay.headers[HEADER] = -delay.milliseconds
                    overlay.visible_at = delay.due
                dead_letter = target.prepare(message, overlay)
                targets += 1
                if self.prepared is not None:
                    target.hidden.add(dead_letter.seq, message.size)
                    self.prepared.append(dead_letter)
                    continue
                target.insert_new(dead_letter)
                if target.limits.is_overflowing():
                    self.overflow += len(deaths)
                    self._overflows[target.id] = self._overflows.get(target.id, 0) + len(deaths)
        finally:
            self.publishing = nested
        self.vhost.broker.work += targets
        if queue.watch is not None:
            queue.watch.dead_lettered(entry, reason, targets)

    def _note_copies(self, queue: Queue, count: int) -> None:
        """Note that `count` queues got a copy of a message of this queue."""
        if not queue.deleted and count > self._copies_of.get(queue.id, 1):
            self._copies_of[queue.id] = count

    def forget(self, queue: Queue) -> None:
        """Forget the copies of a deleted queue."""
        self._copies_of.pop(queue.id, None)

    def _copies(self, passed: set[str], copies: int) -> int:
        """Return an upper bound for the copies of a message that has passed these queues.

        A deleted queue may have made as many as the present one.
        """
        product = 1
        for name in passed:
            queue = self.vhost.queues.get(name)
            product *= copies if queue is None else self._copies_of.get(queue.id, 1)
            if product > self.max_copies:
                break
        return product

    def _prune(self, queue: Queue) -> None:
        """Drop a dead letter that may have too many copies; log this at most once per REPORT_INTERVAL."""
        self.pruned += 1
        now = self.vhost.broker.timers.now()
        if now < self.report_due:
            return
        self.report_due = now + REPORT_INTERVAL
        logger.warning(
            "dead letters of queue '%s' and others in vhost '%s' were dropped (%d since the last entry): their"
            " messages may have more than %d copies; check which queues dead-letter to each other",
            queue.name,
            self.vhost.name,
            self.pruned,
            self.max_copies,
        )
        self.pruned = 0

    def note_undelivered(self, queue: Queue, text: str, dead: bool) -> None:
        """Log a delivery that its client cannot receive, at most once per REPORT_INTERVAL."""
        self.undelivered += 1
        now = self.vhost.broker.timers.now()
        if now < self.undelivered_due:
            return
        self.undelivered_due = now + REPORT_INTERVAL
        logger.warning(
            "a message of queue '%s' in vhost '%s' was %s: %s (%d in this vhost since the last entry)",
            queue.name,
            self.vhost.name,
            "dead-lettered" if dead else "left to other consumers",
            text,
            self.undelivered,
        )
        self.undelivered = 0

    def _drop(self, target: Queue) -> None:
        """Drop a dead letter to a queue that exceeds its limit. Only the first one is logged."""
        if not self.dropped:
            logger.warning(
                "dropping dead letters to queue '%s' in vhost '%s': queues exceed their length limits by dead"
                " letters with more than %d deaths; check which queues dead-letter to each other",
                target.name,
                self.vhost.name,
                self.max_overflow,
            )
        self.dropped += 1

    def end_overflow(self, queue: Queue) -> None:
        """Note that a queue is within its length limits again, or deleted."""
        deaths = self._overflows.pop(queue.id, 0) if self.overflow else 0
        if not deaths:
            return
        self.overflow -= deaths
        if not self.overflow and self.dropped:
            logger.warning("no longer dropping dead letters in vhost '%s': %d were dropped", self.vhost.name, self.dropped)
            self.dropped = 0

    def _route(
        self, exchange: Exchange, keys: list[str], headers: FieldTable, message: Message
    ) -> tuple[list[Queue], Delay | None]:
        """Return the queues of a dead letter, none if it exceeds a routing limit, and its delay."""
        try:
            # Without deduplication: a message that returns is no duplicate.
            return resolve_delayed(self.vhost, exchange, check_keys(self.vhost.broker, keys), headers, message, False)
        except PreconditionFailed as error:
            logger.warning(
                "a dead letter to exchange '%s' in vhost '%s' was dropped: %s", exchange.name, self.vhost.name, error
            )
            return [], None

    def headers_of(self, entry: Entry) -> FieldTable:
        """Return the headers as a consumer of this entry sees them."""
        self.vhost.broker.work += len(entry.message.header) >> DECODING_SHIFT
        headers = self.vhost.broker.decode_headers(entry.message)
        if entry.overlay is not None:
            for name, value in entry.overlay.headers.items():
                if value is None:
                    headers.pop(name, None)
                else:
                    headers[name] = value
        return headers

    def _add_death(
        self, headers: FieldTable, queue_name: str, reason: str, exchange: str, keys: list[str], entry: Entry
    ) -> list[FieldTable]:
        """Return the list of `x-death` tables with this death first; its count is increased if it happened before."""
        previous = headers.get("x-death")
        deaths = _grouped(previous) if isinstance(previous, list) else []
        for index, death in enumerate(deaths):
            if death.get("queue") == queue_name and death.get("reason") == reason:
                count = death.get("count")
                death["count"] = min(count, MAX_DEATH_COUNT) + 1 if isinstance(count, int) else 1
                return [death, *deaths[:index], *deaths[index + 1 :]]
        now = datetime.fromtimestamp(self.vhost.broker.timers.unix() // 1000, UTC)
        new: FieldTable = {
            "count": 1,
            "exchange": exchange,
            "queue": queue_name,
            "reason": reason,
            "routing-keys": [*keys],
            "time": now,
        }
        if entry.overlay is None or not entry.overlay.drop_expiration:
            expiration = self.vhost.broker.expiration_of(entry.message)
            if expiration is not None:
                new["original-expiration"] = expiration
        return [new, *deaths]


def _grouped(previous: list[FieldValue]) -> list[FieldTable]:
    """Merge the deaths of a message by queue and reason: some publishers repeat them without a count."""
    groups: dict[tuple[str, str], FieldTable] = {}
    deaths: list[FieldTable] = []
    for item in previous:
        if not isinstance(item, dict):
            continue
        queue, reason, count = item.get("queue"), item.get("reason"), item.get("count", 1)
        if not isinstance(queue, str) or not isinstance(reason, str) or not isinstance(count, int):
            deaths.append(dict(item))
            continue
        first = groups.get((queue, reason))
        if first is None:
            groups[queue, reason] = first = {**item, "count": count}
            deaths.append(first)
        else:
            before = first["count"]
            first["count"] = min(before + count, MAX_DEATH_COUNT) if isinstance(before, int) else count
    return deaths


def _unrejected(deaths: list[FieldTable]) -> set[str]:
    """Return the queues that the message has left without a rejection on the way: it must not return to them."""
    queues: set[str] = set()
    for death in deaths:
        if death.get("reason") == "rejected":
            break
        queue = death.get("queue")
        if isinstance(queue, str):
            queues.add(queue)
    return queues


def split_address(address: bytes) -> tuple[str, str]:
    """Return exchange and routing key of a canonical address."""
    length = address[0]
    return (
        address[1 : 1 + length].decode("utf-8", "surrogateescape"),
        address[2 + length :].decode("utf-8", "surrogateescape"),
    )


def _strings(value: FieldValue) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
