"""The required contents of the queues after a crash, given what was confirmed and settled before it.

A message is identified by (publisher, number). Its possible place is a `Group`: one queue, or two between which the broker
moves messages (dead-lettering), so that it must be in exactly one of them. Messages that a group still expects are live; a
message that is found and not live was invented, has returned, or was never committed.

A publish is UNKNOWN until its confirm arrives, and then CERTAIN. A settlement is uncertain until a transaction with it has
been committed, because a plain acknowledgement has no answer. Transactions whose commit was sent but not answered took
effect completely or not at all.
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from dataclasses import dataclass, field

UNKNOWN, CERTAIN = 0, 1

Key = tuple[int, int]
"""Publisher and number."""

_HEAD = struct.Struct(">4sHQII")
_MAGIC = b"LvKl"


def make_body(key: Key, size: int) -> bytes:
    """A body with its identity and a checksum: `size` bytes after a head of 22."""
    pattern = b"%d/%d;" % key
    payload = (pattern * (size // len(pattern) + 1))[:size]
    return _HEAD.pack(_MAGIC, key[0], key[1], size, zlib.crc32(payload)) + payload


def read_body(body: bytes) -> Key | None:
    """Return the identity of a body, None if it is damaged."""
    if len(body) < _HEAD.size:
        return None
    magic, publisher, number, size, checksum = _HEAD.unpack_from(body)
    payload = body[_HEAD.size :]
    if magic != _MAGIC or len(payload) != size or zlib.crc32(payload) != checksum:
        return None
    return publisher, number


@dataclass(slots=True)
class Status:
    """One message in one group."""

    known: int = UNKNOWN
    settling: bool = False
    delivered: bool = False
    priority: int = 0
    transaction: Transaction | None = None


@dataclass(slots=True, eq=False)
class Transaction:
    """Publishes and acknowledgements that take effect together once the commit is sent."""

    publishes: list[tuple[Group, Key]] = field(default_factory=list)
    acks: list[tuple[Group, Key]] = field(default_factory=list)
    asked: bool = False


@dataclass(slots=True)
class Found:
    """A message that the check found."""

    queue: str
    key: Key | None
    redelivered: bool


class Group:
    """One queue, or a source and the target that it dead-letters to.

    prioritized   messages are delivered by priority first
    moves_oldest  messages in the target are older than those in the source
    any_order     the target is in no particular order
    """

    def __init__(
        self, *queues: str, prioritized: bool = False, moves_oldest: bool = False, any_order: bool = False
    ) -> None:
        self.queues = queues
        self.prioritized = prioritized
        self.moves_oldest = moves_oldest
        self.any_order = any_order
        self.live: dict[Key, Status] = {}


class Model:
    """All groups, and the totals for the report."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.open: set[Transaction] = set()
        self.highest: dict[int, int] = defaultdict(int)
        self.totals: dict[str, int] = defaultdict(int)

    def group(self, *queues: str, **options: bool) -> Group:
        group = Group(*queues, **options)
        self.groups.append(group)
        return group

    # Calls of the clients

    def next(self, publisher: int) -> Key:
        """Return the identity of a publisher's next message."""
        self.highest[publisher] += 1
        return publisher, self.highest[publisher]

    def published(self, groups: list[Group], key: Key, priority: int = 0, transaction: Transaction | None = None) -> None:
        """Record a publish before it is sent."""
        self.totals["published"] += 1
        for group in groups:
            group.live[key] = Status(priority=priority, transaction=transaction)
            if transaction is not None:
                transaction.publishes.append((group, key))

    def confirmed(self, groups: list[Group], key: Key) -> None:
        self.totals["confirmed"] += 1
        for group in groups:
            status = group.live.get(key)
            # A consumer may have settled it before the confirm arrives.
            if status is not None:
                status.known = CERTAIN

    def delivered(self, group: Group, key: Key) -> str | None:
        """Record a delivery. Returns what is wrong with it, if anything."""
        self.totals["delivered"] += 1
        status = group.live.get(key)
        if status is None:
            return f"{key} of {group.queues} was delivered although it is settled or was never published"
        if status.settling:
            return f"{key} of {group.queues} was delivered again after its acknowledgement"
        if status.transaction is not None and not status.transaction.asked:
            return f"{key} of {group.queues} was delivered before its transaction was committed"
        status.delivered = True
        return None

    def acked(self, group: Group, key: Key) -> None:
        """Record a settlement, which has no answer."""
        self.totals["acks sent"] += 1
        group.live[key].settling = True

    def begin(self) -> Transaction:
        transaction = Transaction()
        self.open.add(transaction)
        return transaction

    def ask(self, transaction: Transaction) -> None:
        """Record that the commit is about to be sent."""
        transaction.asked = True

    def forget(self, transaction: Transaction) -> None:
        """Record a rollback: the publishes must never be seen."""
        self.open.discard(transaction)
        for group, key in transaction.publishes:
            del group.live[key]

    def acked_in(self, transaction: Transaction, group: Group, key: Key) -> None:
        transaction.acks.append((group, key))

    def committed(self, transaction: Transaction) -> None:
        """Record a commit-ok."""
        self.open.discard(transaction)
        self.totals["transactions"] += 1
        for group, key in transaction.publishes:
            status = group.live.get(key)
            if status is not None:
                status.known = CERTAIN
                status.transaction = None
        for group, key in transaction.acks:
            self.settled(group, key)

    def settled(self, group: Group, key: Key) -> None:
        """Record a settlement that is certain."""
        self.totals["certainly settled"] += 1
        del group.live[key]

    # The check

    def check(self, found: dict[str, list[Found]], redelivery: bool) -> list[str]:
        """Return everything that is wrong with the contents of all queues, which are given from front to back.

        redelivery: whether a message that a consumer received before must be marked as redelivered.
        """
        wrong: list[str] = []
        present: dict[int, set[Key]] = {}
        for index, group in enumerate(self.groups):
            present[index] = self._check_group(group, found, redelivery, wrong)
        self._check_transactions(present, wrong)
        for index, group in enumerate(self.groups):
            for key, status in list(group.live.items()):
                if key in present[index]:
                    # It is on disk, even if its publisher got no confirm.
                    status.known, status.settling, status.transaction = CERTAIN, False, None
                    # The check itself is a consumer.
                    status.delivered = True
                    self.totals["found"] += 1
                    continue
                if status.known == CERTAIN and not status.settling and not self._acked_by_unknown(group, key):
                    wrong.append(f"lost: {key} of {group.queues} was confirmed and not settled")
                del group.live[key]
        self.open.clear()
        return wrong

    def _check_group(self, group: Group, found: dict[str, list[Found]], redelivery: bool, wrong: list[str]) -> set[Key]:
        present: set[Key] = set()
        newest: dict[int, int] = {}
        for position, queue in reversed(list(enumerate(group.queues))):
            last: dict[tuple[int, int], int] = {}
            highest_priority = 1 << 30
            for message in found[queue]:
                key = message.key
                if key is None:
                    wrong.append(f"damaged: a body in {queue}")
                    continue
                if key in present:
                    wrong.append(f"twice: {key} of {group.queues}")
                present.add(key)
                status = group.live.get(key)
                if status is None:
                    kind = "came back" if key[1] <= self.highest.get(key[0], 0) else "invented"
                    wrong.append(f"{kind}: {key} in {queue}")
                    continue
                if status.transaction is not None and not status.transaction.asked:
                    wrong.append(f"uncommitted: {key} in {queue}")
                if redelivery and status.delivered and position == 0 and not message.redelivered:
                    wrong.append(f"not marked as redelivered: {key} in {queue}")
                priority = status.priority if group.prioritized else 0
                lane = (key[0], priority)
                if last.get(lane, 0) >= key[1] and not (position and group.any_order):
                    wrong.append(f"out of order: {key} in {queue} behind {last[lane]}")
                last[lane] = key[1]
                if priority > highest_priority:
                    wrong.append(f"out of order: {key} in {queue} with priority {priority} behind {highest_priority}")
                highest_priority = min(highest_priority, priority)
                if group.moves_oldest:
                    if position:
                        newest[key[0]] = max(newest.get(key[0], 0), key[1])
                    elif newest.get(key[0], 0) > key[1]:
                        wrong.append(f"out of order: {key} is in {queue}, a newer one was moved before it")
        return present

    def _check_transactions(self, present: dict[int, set[Key]], wrong: list[str]) -> None:
        """A transaction must have taken effect completely or not at all."""
        where = {id(group): keys for group, keys in zip(self.groups, present.values(), strict=True)}
        for transaction in self.open:
            if not transaction.asked:
                continue
            done: list[bool] = []
            for group, key in transaction.publishes:
                status = group.live.get(key)
                if status is not None and not status.settling:
                    done.append(key in where[id(group)])
            for group, key in transaction.acks:
                status = group.live.get(key)
                if status is not None and status.known == CERTAIN:
                    done.append(key not in where[id(group)])
            if len(set(done)) > 1:
                wrong.append(f"half a transaction: {sum(done)} of {len(done)} effects are present")
            self.totals["transactions in doubt"] += 1

    def _acked_by_unknown(self, group: Group, key: Key) -> bool:
        """Whether a transaction that may have taken effect settles the message."""
        return any(transaction.asked and (group, key) in transaction.acks for transaction in self.open)
