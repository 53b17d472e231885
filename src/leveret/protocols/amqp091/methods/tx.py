"""Class tx: select, commit, rollback (0-9-1 section 1.9). A commit is atomic over any number of queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from leveret.broker.errors import BrokerError, PreconditionFailed
from leveret.broker.jobs import logged
from leveret.broker.message import AT_ONCE
from leveret.broker.queues.queue import Queue
from leveret.broker.transactions.transaction import ACCEPT, LARGE, REQUEUE, Transaction
from leveret.protocols.amqp091.channel.channel import Channel
from leveret.protocols.amqp091.channel.transaction import PendingPublish
from leveret.protocols.amqp091.reply_codes import CODES

# Class and method id of tx.commit.
COMMIT: Final = (90, 20)


def select(channel: Channel) -> None:
    """Perform tx.select."""
    channel.select_transactions()
    channel.connection.engine.send(channel.number, "tx.select-ok", {})


def commit(channel: Channel) -> None:
    """Perform tx.commit. The reply is sent when the transaction is on disk."""
    check_transacted(channel, "commit")
    pending = channel.transaction
    if len(pending) > LARGE or channel.vhost.firehose.on:
        channel.stall()
        large = _LargeCommit(channel)
        channel.broker.jobs.commits.add(large.pieces(), large.written, large.failed)
        return
    channel.broker.work += len(pending)
    transaction = Transaction(channel.log)
    for publish in pending.publishes:
        transaction.publish(publish.message, queues_of(channel, publish), 0, publish.route.delay)
    for tag, entry, outcome in pending.settlements:
        channel.unacked.uncount(tag, entry)
        if outcome == REQUEUE and channel.excludes_rejecting_channel():
            entry.queue.refuse(entry, channel.scope)
        transaction.settle(entry, outcome)
    channel.count_acks(sum(1 for _, _, outcome in pending.settlements if outcome == ACCEPT))
    pending.take()
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
        self.publishes = channel.transaction.begin_commit()
        self.refusal: BrokerError | None = None
        channel.transaction_ended(True)

    def pieces(self) -> Iterator[int]:
        channel = self.channel
        transaction = self.transaction
        # Routing errors must be found before anything is written.
        for pending in self.publishes:
            try:
                transaction.publish(pending.message, queues_of(channel, pending), 0, pending.route.delay)
            except BrokerError as error:
                self.refusal = error
                return
            yield 2
        acknowledged = channel.transaction
        acknowledged.begin_settling()
        transaction.begin(channel.broker.jobs)
        failure: Exception | None = None
        try:
            yield from transaction.writing()
            # Entries count in the windows of the channel until they are settled.
            while (settlement := acknowledged.next_settlement()) is not None:
                tag, entry, outcome = settlement
                channel.unacked.uncount(tag, entry)
                if outcome == REQUEUE and channel.excludes_rejecting_channel():
                    entry.queue.refuse(entry, channel.scope)
                transaction.write_settlement(entry, outcome)
                if outcome == ACCEPT:
                    channel.count_acks(1)
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
        channel.transaction.end_commit()
        if channel.closing:
            channel.broker.jobs.run_steps(logged(channel.requeuing_all()))

    def written(self) -> None:
        channel = self.channel
        refusal = self.refusal
        if refusal is None:
            channel.transaction.end_commit()
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
    yield from channel.transaction.rolling_back(channel.unacked)
    channel.transaction_ended(False)


def rolled_back(channel: Channel) -> None:
    channel.connection.engine.send(channel.number, "tx.rollback-ok", {})


def check_transacted(channel: Channel, method: str) -> None:
    if not channel.transacted:
        raise PreconditionFailed(f"tx.{method}: the channel is not transacted; send tx.select first")


HANDLERS: Final[dict[str, Callable[..., None]]] = {"tx.select": select, "tx.commit": commit, "tx.rollback": rollback}
