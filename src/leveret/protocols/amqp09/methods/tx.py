"""Class tx of 0-9. A rollback requeues the messages that were settled in the transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from leveret.protocols.amqp091.channel.channel import Channel
from leveret.protocols.amqp091.methods import tx as tx091


def rollback(channel: Channel) -> None:
    """Perform tx.rollback.

    The specification does not say what happens to deliveries that were acknowledged or rejected in the transaction. Qpid's
    brokers deliver them again, and its clients have dropped them; before a rollback, they also reject all other messages to
    get them again. The rollback undoes the rejections, so this channel may get these messages, too.
    """
    tx091.check_transacted(channel, "rollback")
    channel.run_steps(_rolling_back(channel), partial(_rolled_back, channel))


def _rolling_back(channel: Channel) -> Iterator[int]:
    settlements = channel.transaction.settlements
    tags = sorted([tag for tag, _, _ in settlements])
    yield len(settlements) >> 4
    yield from tx091.rolling_back(channel)
    yield from channel.unacked.requeuing_tags(tags)


def _rolled_back(channel: Channel) -> None:
    tx091.rolled_back(channel)
    channel.wake()


HANDLERS: Final[dict[str, Callable[..., None]]] = {**tx091.HANDLERS, "tx.rollback": rollback}
