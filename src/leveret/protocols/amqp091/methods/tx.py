"""Class tx: select, commit, rollback (0-9-1 section 1.9). A commit is atomic over any number of queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from leveret.broker.errors import BrokerError, PreconditionFailed
from leveret.broker.jobs import logged
from leveret.broker.message import AT_ONCE
from leveret.broker.queues.queue import Queue
from leveret.broker.transactions.transaction import LARGE, REQUEUE, Transaction
from leveret.protocols.amqp091.channel.channel import Channel, PendingPublish
from leveret.protocols.amqp091.reply_codes import CODES

# Class and method id of tx.commit.
COMMIT: Final = (90, 20)


def select(channel: Channel) -> None:
    """Perform tx.select."""
    if channel.confirming:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    channel.transacted = True
    channel.connection.engine.send(channel.number, "tx.select-ok", {})


def commit(channel: Channel) -> None:
    """Perform tx.commit. The reply is sent when the transaction is on disk."""
    check_transacted(channel, "commit")
    if len(channel.tx_publishes) + len(channel.tx_settlements) > LARGE:
        channel.stall()
        large = _LargeCommit(channel)
        channel.broker.jobs.commits.add(large.pieces(), large.written, large.failed)
        return
    channel.broker.work += len(channel.tx_publishes) + len(channel.tx_settlements)
    transaction = Transaction(channel.log)
    for pending in channel.tx_publishes:
        transaction.publish(pending.message, queues_of(channel, pending))
    for tag, entry, outcome in channel.tx_settlements:
        channel.uncount(tag, entry)
        if outcome == REQUEUE and channel.excludes_rejecting_channel():
            entry.queue.refuse(entry, channel.scope)
        transaction.settle(entry, outcome)
    begin_transaction(channel)
    channel.transaction_ended(True)
    channel.stall()
    transaction.commit(_Commit(channel).done)


def queues_of(channel: Channel, pending: PendingPublish) -> list[Queue]:
    """Return the queues of a pending publish. An undeliverable mandatory or immediate message is returned to the client."""
    message = pending.message
    if message.expires_at > AT_ONCE:
        message.expires_at += channel.broker.timers.now() - pending.sent_at  # its time to live starts at the commit
    queues = [queue for queue in channel.route_message(pending.route, message) if not queue.deleted]
    if pending.flags or not queues:
        return channel.return_undeliverable(message, queues, pending.flags)
    return queues


class _LargeCommit:
    """A commit in steps. It completes even if the client closes the channel meanwhile."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.transaction = Transaction(channel.log)
        self.publishes = channel.tx_publishes
        self.refusal: BrokerError | None = None
        channel.committing = True
        channel.tx_publishes = []
        channel.tx_size = 0
        channel.transaction_ended(True)

    def pieces(self) -> Iterator[int]:
        channel = self.channel
        transaction = self.transaction
        # Routing errors must be found before anything is written.
        for pending in self.publishes:
            try:
                transaction.publish(pending.message, queues_of(channel, pending))
            except BrokerError as error:
                self.refusal = error
                return
            yield 2
        settlements = channel.tx_settlements
        settlements.reverse()
        transaction.begin(channel.broker.jobs)
        failure: Exception | None = None
        try:
            yield from transaction.writing()
            # Entries count in the windows of the channel until they are settled.
            while settlements:
                tag, entry, outcome = settlements.pop()
                channel.uncount(tag, entry)
                if outcome == REQUEUE and channel.excludes_rejecting_channel():
                    entry.queue.refuse(entry, channel.scope)
                transaction.write_settlement(entry, outcome)
                yield 2
        except Exception as error:
            failure = error
        if failure is None:
            yield from transaction.returning()
        else:
            yield from transaction.undoing()
            yield from transaction.requeuing()
        transaction.end()
        if failure is not None:
            raise failure

    def failed(self) -> None:
        self._roll_back()
        self.channel.fail()

    def _roll_back(self) -> None:
        """Return unsettled entries to the channel. If it has closed, requeue them."""
        channel = self.channel
        channel.committing = False
        if channel.closing:
            channel.broker.jobs.run_steps(logged(channel.requeuing_all()))

    def written(self) -> None:
        channel = self.channel
        refusal = self.refusal
        if refusal is None:
            channel.committing = False
            self.transaction.finish(_Commit(channel).done, channel.fail)
            return
        self._roll_back()
        if not channel.closing and not channel.abandoned:
            connection = channel.connection
            if refusal.closes_connection:
                connection.close(CODES[refusal.condition], str(refusal), *COMMIT)
            else:
                connection.refuse(channel, CODES[refusal.condition], str(refusal), *COMMIT)


class _Commit:
    """Completion of a commit: sends commit-ok when the transaction is on disk."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def done(self) -> None:
        channel = self.channel
        if channel.closing:
            return
        channel.connection.engine.send(channel.number, "tx.commit-ok", {})
        channel.connection.mark()
        channel.wake()
        channel.resume()


def rollback(channel: Channel) -> None:
    """Perform tx.rollback: drop publishes and acknowledgements. Deliveries stay unacknowledged."""
    check_transacted(channel, "rollback")
    channel.run_steps(rolling_back(channel), partial(rolled_back, channel))


def rolling_back(channel: Channel) -> Iterator[int]:
    """Roll the transaction of a channel back, in steps."""
    unacked = channel.unacked
    settlements = channel.tx_settlements
    settlements.reverse()
    while settlements:
        tag, entry, _ = settlements.pop()
        unacked[tag] = entry
        channel.low_tag = min(channel.low_tag, tag)
        yield 1
    publishes = channel.tx_publishes
    while publishes:
        publishes.pop()
        yield 1
    channel.tx_size = 0
    channel.transaction_ended(False)


def rolled_back(channel: Channel) -> None:
    channel.connection.engine.send(channel.number, "tx.rollback-ok", {})


def check_transacted(channel: Channel, method: str) -> None:
    if not channel.transacted:
        raise PreconditionFailed(f"tx.{method}: the channel is not transacted; send tx.select first")


def begin_transaction(channel: Channel) -> None:
    """Start a new transaction without publishes and settlements."""
    channel.tx_publishes = []
    channel.tx_settlements = []
    channel.tx_size = 0


HANDLERS: Final[dict[str, Callable[..., None]]] = {"tx.select": select, "tx.commit": commit, "tx.rollback": rollback}
