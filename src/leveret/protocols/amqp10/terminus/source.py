"""Sources from which the broker sends, and their unsettled deliveries (transport section 2.6.12).

During a session, the deliveries of its links are in its `unacked`, by delivery-id. Their tags consist of the delivery-id
and the number of attaches of the terminus, so that the common path stores nothing but the entry. When the session ends,
or the link is attached elsewhere, `collect` moves them here, by tag. Their entries stay acquired.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from leveret.broker import settlement
from leveret.broker.message import Entry
from leveret.broker.queues.frozen import FrozenQueues
from leveret.broker.queues.queue import Queue
from leveret.protocols.amqp10.messages import head_of
from leveret.protocols.amqp10.session import outcomes
from leveret.protocols.amqp10.terminus import terminus_store
from leveret.protocols.amqp10.terminus.terminus import UNSETTLED_STATE, Key, Terminus
from leveret.protocols.amqp10.transaction import acquisition
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.broker.log import Log
    from leveret.protocols.amqp10.link.link import Link
    from leveret.protocols.amqp10.link.outgoing import LinkConsumer, OutgoingLink
    from leveret.protocols.amqp10.link.pending_attach import PendingAttach
    from leveret.protocols.amqp10.terminus.recovery import TerminusRecovery
    from leveret.protocols.amqp10.terminus.registry import TerminusRegistry
    from leveret.wire.amqp10.messaging import Source


# Deliveries that are moved from a session between two checks of the budget.
COLLECTED_AT_ONCE: Final = 64
# Units of work to store the state of a delivery, and to remove it.
STORE_WORK: Final = 5
REMOVE_WORK: Final = 3


class Unsettled:
    """A delivery that is in no session.

    Attributes:
        entry: the entry; None if there is nothing left to send.
        state: the broker's state: None while the whole message can be sent, an outcome, or the first position that can be
            sent (`received`).
        head: the sections before the body as they were sent; None to encode them again.
    """

    __slots__ = ("entry", "head", "state")

    def __init__(self, entry: Entry | None, state: Composite | None = None, head: bytes | None = None) -> None:
        self.entry = entry
        self.state = state
        self.head = head


def _release(entry: Entry) -> None:
    entry.queue.requeue(entry, False)


def _returning(entries: Iterator[Entry], apply: Callable[[Entry], None]) -> Iterator[int]:
    """Apply an outcome to entries, in steps."""
    frozen = FrozenQueues()
    try:
        for entry in entries:
            frozen.freeze(entry.queue)
            apply(entry)
            yield 3
    finally:
        frozen.thaw()


def _removing_stored(log: Log, id: str, stored: list[tuple[bytes, Entry]]) -> Iterator[int]:
    """Remove the deliveries of a terminus, which had this id, from the log in steps."""
    for tag, entry in stored:
        if terminus_store.is_stored(entry):
            terminus_store.remove_delivery(log, id, tag)
        yield REMOVE_WORK


class SourceTerminus(Terminus):
    """A source.

    Attributes:
        source: as last sent to the client; None before.
        queue: the queue of its messages.
        last: the link whose deliveries are in a session; None if there is none.
        unsettled: deliveries in no session, by delivery-tag, in their order.
        seen: state of a browser of the queue; see `broker.consumer.Consumer`.
    """

    acquires_messages = True

    def __init__(self, registry: TerminusRegistry, key: Key) -> None:
        super().__init__(registry, key)
        self.source: Source | None = None
        self.queue: Queue | None = None
        self.last: OutgoingLink | None = None
        self.unsettled: dict[bytes, Unsettled] = {}
        self.seen: dict[int, int] = {}
        # Tags of deliveries whose state is not yet in the log.
        self.to_store: deque[bytes] = deque()

    def seen_in(self, queue: Queue) -> dict[int, int]:
        """Return what a browser of the queue has seen; nothing if the terminus had another queue before."""
        if self.queue is not queue:
            self.seen = {}
        return self.seen

    def attach_to(self, queue: Queue, link: OutgoingLink, description: Source) -> None:
        """Attach a link that sends messages of a queue."""
        self.queue = queue
        self.attach(link, description)
        self.last = link
        link.bind(self)

    def attach(self, link: Link, description: Checked) -> None:
        before = self.stores_unsettled()
        former = self.id
        if before and description.durable != UNSETTLED_STATE:
            self.to_store.clear()
            if description.durable:
                self.forget_id()  # the stored deliveries are of no terminus from now on
        super().attach(link, description)
        self.source = description
        if self.stores_unsettled() and not before:
            self.to_store.extend(self.unsettled)
        elif before and former != self.id:
            stored = [(tag, item.entry) for tag, item in self.unsettled.items() if item.entry is not None]
            self.registry.broker.jobs.run_steps(_removing_stored(self.registry.broker.log, former, stored))

    def stores_unsettled(self) -> bool:
        """Return whether the unsettled deliveries survive a restart."""
        return self.durable == UNSETTLED_STATE

    def storing(self) -> Iterator[int]:
        """Store the deliveries of a terminus that has become durable, in steps."""
        to_store = self.to_store
        while to_store:
            tag = to_store.popleft()
            item = self.unsettled.get(tag)
            if item is not None:
                self._store(tag, item)
            yield STORE_WORK

    def _store(self, tag: bytes, item: Unsettled) -> None:
        entry = item.entry
        if entry is not None and terminus_store.is_stored(entry):
            if item.head is None:
                item.head = head_of(entry, self.registry.broker.timers)
            terminus_store.put_sent(self.registry.broker.log, self.id, tag, entry.queue.id, entry.seq, item.head)

    def _remove_stored(self, tag: bytes, item: Unsettled) -> None:
        entry = item.entry
        if entry is not None and terminus_store.is_stored(entry):
            terminus_store.remove_delivery(self.registry.broker.log, self.id, tag)

    def prefix(self) -> bytes:
        """Return the prefix of the tags of the current link: delivery-ids repeat in each session."""
        return b"" if self.attached <= 1 else self.attached.to_bytes(4, "big")

    def collect(self) -> None:
        for _ in self.collecting():
            pass

    def collecting(self) -> Iterator[int]:
        link = self.last
        if link is None:
            return
        consumer = link.consumer
        if consumer.unacked:
            if link.session.acquired:
                acquisition.undo_for(link.session, link)
            unacked = link.session.unacked
            self.registry.hold()
            unsettled = self.unsettled
            plain = not link.tags and not link.heads
            prefix = link.prefix
            done = 0
            for number in link.session.numbers_of(consumer):
                entry = unacked.pop(number, None)
                if entry is None:
                    continue
                settlement.detach(entry)
                if plain:
                    unsettled[prefix + number.to_bytes(4, "big")] = Unsettled(entry)
                else:
                    unsettled[link.tag_of(number)] = Unsettled(entry, None, link.heads.get(number))
                done += 1
                if done == COLLECTED_AT_ONCE:
                    done = 0
                    yield COLLECTED_AT_ONCE
                    if self.last is not link:
                        return  # the terminus was destroyed meanwhile
            yield done
        self.last = None

    def last_consumer(self) -> LinkConsumer | None:
        return None if self.last is None else self.last.consumer

    def preparing(self, pending: PendingAttach) -> Iterator[int]:
        if not self.attached:
            return
        if pending.continues:
            before = self.last
            if before is not None and before.session is pending.session:
                tags = pending.tags
                for number in before.session.numbers_of(before.consumer):
                    tags[number] = before.tag_of(number)
                    if len(tags) % COLLECTED_AT_ONCE == 0:
                        yield COLLECTED_AT_ONCE
            if not self.unsettled:
                return
        yield from pending.encode(list(self.unsettled)).encoding(self._state_of, pending.remote)

    def _state_of(self, tag: bytes) -> Composite | None:
        item = self.unsettled.get(tag)
        return None if item is None else item.state

    def move(self, link: OutgoingLink, tags: dict[int, bytes]) -> None:
        """Move the deliveries to a link in the same session, where they continue unchanged, with these tags."""
        before = self.last
        if before is None or link.session is not before.session:
            return
        consumer = link.consumer
        self._requeue_unsent(before)
        known = before.consumer
        unacked = before.session.unacked
        for number in tags:
            entry = unacked.get(number)
            if entry is not None and entry.holder is known:
                settlement.detach(entry)
                settlement.assign(entry, consumer)
        link.continue_from(before, tags)
        self.last = None

    def _requeue_unsent(self, before: OutgoingLink) -> None:
        """Requeue deliveries that were incomplete when their link was detached. The next link sends them as new ones."""
        session = before.session
        # Youngest first, so that each is requeued in front of the previous one.
        for number in sorted(before.unsent, reverse=True):
            entry = session.unacked.get(number)
            if entry is None or entry.holder is not before.consumer or number in session.acquired:
                continue
            session.forget_link_state(number, entry)
            del session.unacked[number]
            entry.queue.requeue(entry, False)
        before.unsent.clear()

    def description(self) -> Checked:
        return self.source

    def restore(self, description: Checked, id: str, attached: int) -> None:
        super().restore(description, id, attached)
        self.source = description

    def restore_entry(self, queue: Queue, tag: bytes, entry: Entry, head: bytes) -> None:
        """Restore an unsettled delivery whose entry was read back from the log."""
        self.queue = queue
        self.unsettled[tag] = Unsettled(entry, None, head)

    def restore_delivery(self, recovery: TerminusRecovery, tag: bytes, value: bytes) -> bool:
        recovery.add_sent(self, tag, *terminus_store.sent_of(value))
        return True

    def unacked_entries(self) -> list[Entry]:
        return [item.entry for item in self.unsettled.values() if item.entry is not None]

    def drop(self) -> None:
        source = self.source
        default = None if source is None else source.default_outcome
        self._return_all(partial(outcomes.settle_by, default=default))
        self.queue = None

    def take(self, tag: bytes) -> Unsettled:
        """Remove and return a delivery that a session takes over."""
        return self.unsettled.pop(tag)

    def settle(self, tag: bytes) -> Unsettled:
        """Remove and return a delivery that is in no session. The caller disposes of its entry in the same turn."""
        item = self.unsettled.pop(tag)
        if self.stores_unsettled():
            self._remove_stored(tag, item)
        return item

    def release_all(self) -> int:
        return self._return_all(_release)

    def _return_all(self, apply: Callable[[Entry], None]) -> int:
        """Apply an outcome to all unsettled deliveries, in steps. Return their number."""
        self.released += 1
        count = self.unsettled_count()
        unsettled = self.unsettled
        self.unsettled = {}
        link = self.last
        self.last = None
        # Youngest first, so that each is requeued in front of the previous one.
        entries = self._taking(unsettled)
        if link is not None and link.consumer.unacked:
            session = link.session
            if session.acquired:
                acquisition.undo_for(session, link)
            entries = chain(self._taking_sent(link, session.numbers_of(link.consumer), session.unacked), entries)
        self.registry.broker.jobs.run_steps(_returning(entries, apply))
        return count

    def _taking_sent(self, link: OutgoingLink, numbers: list[int], unacked: dict[int, Entry]) -> Iterator[Entry]:
        """Take the entries of deliveries that are still in the session of a link, youngest first."""
        stores = self.stores_unsettled()
        while numbers:
            number = numbers.pop()
            entry = unacked.pop(number, None)
            if entry is None:
                continue  # it was settled, or its session has ended
            settlement.detach(entry)
            if stores:
                self._remove_stored(link.tag_of(number), Unsettled(entry))
            yield entry

    def _taking(self, unsettled: dict[bytes, Unsettled]) -> Iterator[Entry]:
        """Take the entries of deliveries that are in no session, youngest first."""
        stores = self.stores_unsettled()
        while unsettled:
            tag, item = unsettled.popitem()
            if stores:
                self._remove_stored(tag, item)
            if item.entry is not None:
                yield item.entry

    def unsettled_count(self) -> int:
        return len(self.unsettled) + (0 if self.last is None else self.last.consumer.unacked)

    def address(self) -> str:
        return "" if self.source is None else str(self.source.address or "")
