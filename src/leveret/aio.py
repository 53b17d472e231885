"""The async API; `leveret.connect` is its entry point."""

from __future__ import annotations

from leveret.client.aio.channel import Channel
from leveret.client.aio.connection import Connection, connect
from leveret.client.aio.consumer import Consumer
from leveret.client.aio.files import FileConsumer
from leveret.client.aio.publisher import Publisher
from leveret.client.aio.queue import Exchange, Queue
from leveret.client.aio.receiver import Receiver
from leveret.client.aio.sender import Sender
from leveret.client.aio.transaction import Transaction

__all__ = ["Channel", "Connection", "Consumer", "Exchange", "FileConsumer", "Publisher", "Queue", "Receiver", "Sender",
           "Transaction", "connect"]
