"""A channel on a vhost that each test has for itself. `leveret_url` comes from the pytest plugin that Leveret installs."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel


@pytest.fixture
def channel(leveret_url: str) -> Iterator[BlockingChannel]:
    """A channel with publisher confirms. Whatever is declared on it goes with the test."""
    with pika.BlockingConnection(pika.URLParameters(leveret_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
