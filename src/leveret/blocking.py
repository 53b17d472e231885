"""The client for programs without asyncio: `leveret.blocking.connect`."""

from __future__ import annotations

from leveret.client.blocking.channel import Channel
from leveret.client.blocking.connection import Connection, connect
from leveret.client.blocking.consumer import Consumer
from leveret.client.blocking.publisher import Publisher
from leveret.client.blocking.queue import Exchange, Queue

__all__ = ["Channel", "Connection", "Consumer", "Exchange", "Publisher", "Queue", "connect"]
