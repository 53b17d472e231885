"""The sync API, for programs without asyncio; `leveret.blocking.connect` is its entry point."""

from __future__ import annotations

from leveret.client.blocking.channel import Channel
from leveret.client.blocking.connection import Connection, connect
from leveret.client.blocking.consumer import Consumer
from leveret.client.blocking.files import FileConsumer
from leveret.client.blocking.publisher import Publisher
from leveret.client.blocking.queue import Exchange, Queue
from leveret.client.blocking.receiver import Receiver
from leveret.client.blocking.sender import Sender
from leveret.client.blocking.transaction import Transaction

__all__ = ["Channel", "Connection", "Consumer", "Exchange", "FileConsumer", "Publisher", "Queue", "Receiver", "Sender",
           "Transaction", "connect"]
