"""Recovery of durable termini from the log, and of the entries that they had acquired.

`TerminusRecovery` removes those entries from the recovered queues, so that no consumer receives them, and reads them back
when the log has started; clients cannot attach before that. A stop of the broker counts as a detach and as the end of the
connection: expiry timers restart.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

from leveret.broker import metadata, settlement
from leveret.broker.log import Loaded, RecoveredQueue, Recovery
from leveret.broker.message import Entry
from leveret.broker.queues.frozen import thaw
from leveret.protocols.amqp10.terminus import terminus_store
from leveret.protocols.amqp10.terminus.addresses import TEMPORARY_KEY, TOPIC_SCHEME, key_of_topic
from leveret.protocols.amqp10.terminus.dynamic_node import DynamicNode
from leveret.protocols.amqp10.terminus.shared_subscription import SharedSubscription
from leveret.protocols.amqp10.terminus.source import SourceTerminus
from leveret.protocols.amqp10.terminus.target import TargetTerminus
from leveret.protocols.amqp10.terminus.terminus import NEVER, Terminus
from leveret.wire.amqp10.messaging import Source, Target

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue
    from leveret.protocols.amqp10.terminus.registry import TerminusRegistry

logger = logging.getLogger("leveret.broker")


class Sent:
    """A delivery of a source whose entry will be read back."""

    __slots__ = ("head", "row", "seq", "slot", "tag", "terminus")

    def __init__(self, terminus: SourceTerminus, tag: bytes, seq: int, head: bytes) -> None:
        self.terminus = terminus
        self.tag = tag
        self.seq = seq
        self.head = head
        self.row = 0
        self.slot = 0


class TerminusRecovery:
    """The recovery at one start. `done` is true when every terminus and its acquired entries are restored."""

    def __init__(self, termini: TerminusRegistry, recovery: Recovery) -> None:
        self.termini = termini
        self.log = termini.broker.log
        self.by_id: dict[str, Terminus] = {}
        # Dynamic queues by terminus: id and lifetime policy.
        self.nodes: dict[Terminus, tuple[int, int]] = {}
        self.sent: dict[int, list[Sent]] = {}
        self.loading = 0
        self.done = False
        for (kind, key), value in recovery.metadata.items():
            if kind == metadata.TERMINUS:
                self._restore(key, metadata.unpack(value))
        for (kind, key), value in recovery.metadata.items():
            if kind == metadata.LINK_STATE:
                self._restore_delivery(key, value)
        for (kind, key), value in recovery.metadata.items():
            if kind == metadata.LINK_PART:
                self._restore_part(key, value)
        for queue_id, sent in self.sent.items():
            self.sent[queue_id] = _remove_acquired(recovery, queue_id, sent, self)

    def _restore(self, key: str, value: metadata.Record) -> None:
        termini = self.termini
        identity, role = terminus_store.identity_of(key)
        description = terminus_store.description_of(value)
        terminus: Terminus
        if role in (terminus_store.SHARED_DURABLE, terminus_store.SHARED_VOLATILE) and isinstance(description, Source):
            terminus = SharedSubscription(termini, identity, role == terminus_store.SHARED_DURABLE)
        elif isinstance(description, Source):
            terminus = SourceTerminus(termini, identity)
        elif isinstance(description, Target):
            terminus = TargetTerminus(termini, identity)
        else:
            return
        terminus.restore(description, str(value["id"]), int(value["attached"]))
        if description.dynamic and isinstance(description.address, str):
            address = description.address
            if address.startswith(TOPIC_SCHEME + TEMPORARY_KEY):
                termini.create_topic(terminus, key_of_topic(address))
        node = value["node"]
        if isinstance(node, list):
            self.nodes[terminus] = (node[0], node[1])
        self.by_id[terminus.id] = terminus
        terminus.register()

    def _restore_delivery(self, key: str, value: bytes) -> None:
        id, tag = terminus_store.delivery_of(key)
        terminus = self.by_id.get(id)
        if terminus is None or not terminus.restore_delivery(self, tag, value):
            self.log.put(metadata.LINK_STATE, key, None)

    def add_sent(self, terminus: SourceTerminus, tag: bytes, queue_id: int, seq: int, head: bytes) -> None:
        """Schedule the entry of a delivery to be read back."""
        self.sent.setdefault(queue_id, []).append(Sent(terminus, tag, seq, head))

    def _restore_part(self, key: str, value: bytes) -> None:
        id, tag = terminus_store.delivery_of(key)
        terminus = self.by_id.get(id)
        if terminus is None or not terminus.restore_part(tag, value):
            self.log.put(metadata.LINK_PART, key, None)

    def forget(self, sent: Sent) -> None:
        """Forget a delivery whose entry no longer exists."""
        terminus_store.remove_delivery(self.log, sent.terminus.id, sent.tag)

    # After the start of the log

    def start(self) -> None:
        """Read the entries back, after the broker has recovered its queues and started its log."""
        queues = {queue.id: queue for vhost in self.termini.broker.vhosts.values() for queue in vhost.queues.values()}
        for terminus, (queue_id, policy) in self.nodes.items():
            if queue_id in queues:
                terminus.own(DynamicNode(queues[queue_id], policy))
        for queue_id, sent in self.sent.items():
            queue = queues.get(queue_id)
            if queue is None:
                self.log.settle_range(
                    queue_id,
                    0,
                    max([item.seq for item in sent], default=0),
                    (),
                    [item.row for item in sent],
                    [item.slot for item in sent],
                )
                for item in sent:
                    self.forget(item)
            elif sent:
                self._load(queue, sent)
        self._finish()

    def _load(self, queue: Queue, sent: list[Sent]) -> None:
        self.loading += 1
        queue.consumers.freeze()  # its order may depend on acquired entries
        load = _Load(self, queue, sent)
        self.log.load(array("Q", [item.row for item in sent]), array("I", [item.slot for item in sent]), load.loaded)

    def loaded(self) -> None:
        self.loading -= 1
        self._finish()

    def _finish(self) -> None:
        if self.loading or self.done:
            return
        self.done = True
        self.termini.terminus_recovery = None
        termini = list(self.by_id.values())
        for terminus in termini:
            if terminus.key[0] not in self.termini.broker.vhosts:
                terminus.destroy()
            elif terminus.expiry_policy != NEVER:
                terminus.expire()
        if termini:
            logger.info(
                "recovered %d durable links, %d with unsettled deliveries",
                len(termini),
                sum(1 for terminus in termini if terminus.unsettled_count()),
            )


class _Load:
    """A load of the entries of one queue."""

    def __init__(self, terminus_recovery: TerminusRecovery, queue: Queue, sent: list[Sent]) -> None:
        self.terminus_recovery = terminus_recovery
        self.queue = queue
        self.sent = sent

    def loaded(self, loaded: list[Loaded]) -> None:
        queue = self.queue
        for sent, item in zip(self.sent, loaded, strict=True):
            entry = Entry(queue, item.message, item.seq)
            entry.row = item.row
            entry.slot = item.slot
            entry.overlay = item.overlay
            settlement.restore_counts(entry, item.acquired_count, item.delivery_count)
            queue.restore(entry)
            sent.terminus.restore_entry(queue, sent.tag, entry, sent.head)
        thaw(queue)
        self.terminus_recovery.termini.hold()
        self.terminus_recovery.loaded()


def _remove_acquired(
    recovery: Recovery, queue_id: int, sent: list[Sent], terminus_recovery: TerminusRecovery
) -> list[Sent]:
    """Remove the entries of deliveries from a recovered queue. Return the deliveries found, in order."""
    recovered = recovery.queues.get(queue_id)
    found: list[Sent] = []
    taken: set[int] = set()
    sent.sort(key=_seq_of)
    for item in sent:
        seqs = recovered.seqs if recovered is not None else array("Q")
        at = bisect_left(seqs, item.seq)
        if recovered is None or at == len(seqs) or seqs[at] != item.seq or at in taken:
            terminus_recovery.forget(item)
            continue
        item.row = recovered.rows[at]
        item.slot = recovered.slots[at]
        taken.add(at)
        found.append(item)
    if recovered is not None and taken:
        recovery.queues[queue_id] = _without(recovered, taken)
    return found


def _without(recovered: RecoveredQueue, taken: set[int]) -> RecoveredQueue:
    left = RecoveredQueue()
    for at in range(len(recovered.seqs)):
        if at not in taken:
            left.seqs.append(recovered.seqs[at])
            left.rows.append(recovered.rows[at])
            left.slots.append(recovered.slots[at])
            left.priorities.append(recovered.priorities[at])
            left.sizes.append(recovered.sizes[at])
    return left


def _seq_of(sent: Sent) -> int:
    return sent.seq
