"""Class tx of 0-9: what is rejected in a transaction that is rolled back goes back to its queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.broker.transactions import REQUEUE
from leveret.protocols.v0_9_1 import tx_methods
from leveret.protocols.v0_9_1.channel import Channel


def rollback(channel: Channel) -> None:
    """tx.rollback. Qpid's clients reject everything that they have before it, to get it again: the rejection does not
    count, so that it may come back to this channel, but the client has forgotten it all the same."""
    given_back = sorted([(tag, entry) for tag, entry, outcome in channel.tx_settlements if outcome == REQUEUE])
    tx_methods.rollback(channel)
    for tag, entry in reversed(given_back):
        del channel.unacked[tag]
        channel.uncount(tag, entry)
        entry.queue.requeue(entry)
    channel.wake()


HANDLERS: Final[dict[str, Callable[..., None]]] = {**tx_methods.HANDLERS, "tx.rollback": rollback}
