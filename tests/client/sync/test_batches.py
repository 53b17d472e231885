"""Batches over the sync API."""

from __future__ import annotations

import pytest

from leveret import sync
from leveret.client.errors import BatchFailed
from tests.support.broker import Broker


def test_a_batch_is_published_and_its_failures_are_reported(server: Broker) -> None:
    with sync.connect(server.url()) as connection, connection.channel() as channel:
        queue = channel.declare_queue(exclusive=True)
        assert channel.publish_batch([b"a", b"b"], queue) == 2
        with pytest.raises(BatchFailed) as caught:
            channel.publish_batch([b"c", b"d"], [queue.name, "nowhere"], mandatory=True)
        assert caught.value.unroutable == [1]
        assert queue.purge() == 3
