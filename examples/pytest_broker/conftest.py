"""A channel on a new vhost for each test. Leveret's pytest plugin provides `leveret_url`."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel


@pytest.fixture
def channel(leveret_url: str) -> Iterator[BlockingChannel]:
    """Open a channel with publisher confirms. Everything declared on it is deleted after the test."""
    with pika.BlockingConnection(pika.URLParameters(leveret_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
