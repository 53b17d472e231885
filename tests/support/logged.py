"""Events that have the broker log a record."""

from __future__ import annotations

from contextlib import suppress

from leveret import sync
from leveret.client.errors import Error
from tests.support.broker import Broker


def close_channel(broker: Broker, queue: str) -> None:
    """Have the broker log that it closed a channel with 404, since a queue does not exist."""
    with sync.connect(broker.url()) as connection, connection.channel() as channel, suppress(Error):
        channel.declare_queue(queue, passive=True)
