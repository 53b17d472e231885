"""Class tx of 0-9: what is rejected in a transaction that is rolled back goes back to its queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.broker.transactions import REQUEUE
from leveret.protocols.amqp091 import tx_methods
from leveret.protocols.amqp091.channel import Channel


def rollback(channel: Channel) -> None:
    """tx.rollback. Qpid's clients reject everything that they have before it, to get it again: the rejection does not
    count, so that it may come back to this channel, but the client has forgotten it all the same."""
    given_back = sorted([tag for tag, _, outcome in channel.tx_settlements if outcome == REQUEUE])
    tx_methods.rollback(channel)
    channel.run_steps(channel.requeuing_tags(given_back), channel.wake)


HANDLERS: Final[dict[str, Callable[..., None]]] = {**tx_methods.HANDLERS, "tx.rollback": rollback}
