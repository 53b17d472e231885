"""Class tx of 0-9. A rollback requeues the messages that were rejected in the transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from leveret.broker.transactions.transaction import REQUEUE
from leveret.protocols.amqp091.channel.channel import Channel
from leveret.protocols.amqp091.methods import tx as tx091


def rollback(channel: Channel) -> None:
    """Perform tx.rollback.

    Before a rollback, Qpid clients reject all their messages to get them again. The rollback undoes the rejections, so this
    channel may get the messages again. They are requeued instead of staying unacknowledged, because the client has dropped
    them.
    """
    tx091.check_transacted(channel, "rollback")
    channel.run_steps(_rolling_back(channel), partial(_rolled_back, channel))


def _rolling_back(channel: Channel) -> Iterator[int]:
    settlements = channel.transaction.settlements
    rejected = sorted([tag for tag, _, outcome in settlements if outcome == REQUEUE])
    yield len(settlements) >> 4
    yield from tx091.rolling_back(channel)
    yield from channel.unacked.requeuing_tags(rejected)


def _rolled_back(channel: Channel) -> None:
    tx091.rolled_back(channel)
    channel.wake()


HANDLERS: Final[dict[str, Callable[..., None]]] = {**tx091.HANDLERS, "tx.rollback": rollback}
