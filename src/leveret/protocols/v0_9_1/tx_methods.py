"""Class tx: select, commit, rollback (0-9-1 section 1.9). Atomic over any number of queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import AT_ONCE
from leveret.broker.queues.base import Queue
from leveret.broker.transactions import REQUEUE, Transaction
from leveret.protocols.v0_9_1.channel import Channel, PendingPublish


def select(channel: Channel) -> None:
    """tx.select"""
    if channel.confirming:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    channel.transacted = True
    channel.connection.engine.send(channel.number, "tx.select-ok", {})


def commit(channel: Channel) -> None:
    """tx.commit: answered when everything durable in it is on disk."""
    _check(channel, "commit")
    transaction = Transaction(channel.log)
    for pending in channel.tx_publishes:
        transaction.publish(pending.message, queues_of(channel, pending))
    for tag, entry, outcome in channel.tx_settlements:
        channel.uncount(tag, entry)
        if outcome == REQUEUE and channel.keeps_away():
            entry.queue.refuse(entry, channel.scope)
        transaction.settle(entry, outcome)
    begin_again(channel)
    channel.transaction_ended(True)
    channel.stall()
    transaction.commit(_Commit(channel).done)


def queues_of(channel: Channel, pending: PendingPublish) -> list[Queue]:
    """The queues that a publish goes to which was held back until now; it is returned where it asked for that."""
    message = pending.message
    if message.expires_at > AT_ONCE:
        message.expires_at += channel.broker.timers.now() - pending.sent_at  # its time starts with the commit
    queues = [queue for queue in channel.route_message(pending.route, message) if not queue.deleted]
    if pending.flags or not queues:
        return channel.flagged(message, queues, pending.flags)
    return queues


class _Commit:
    """What happens when a transaction is on disk."""

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
    """tx.rollback: publishes are forgotten, acknowledgements too; what was delivered stays with the client."""
    _check(channel, "rollback")
    for tag, entry, _ in channel.tx_settlements:
        channel.unacked[tag] = entry
        channel.low_tag = min(channel.low_tag, tag)
    begin_again(channel)
    channel.transaction_ended(False)
    channel.connection.engine.send(channel.number, "tx.rollback-ok", {})


def _check(channel: Channel, what: str) -> None:
    if not channel.transacted:
        raise PreconditionFailed(f"tx.{what}: the channel is not transacted, tx.select comes first")


def begin_again(channel: Channel) -> None:
    """The channel has collected nothing."""
    channel.tx_publishes = []
    channel.tx_settlements = []
    channel.tx_size = 0


HANDLERS: Final[dict[str, Callable[..., None]]] = {"tx.select": select, "tx.commit": commit, "tx.rollback": rollback}
