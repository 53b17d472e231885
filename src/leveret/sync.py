"""The sync API, for programs without asyncio; `leveret.sync.connect` is its entry point."""

from __future__ import annotations

from leveret.client._sync.amqp09 import Amqp09Channel
from leveret.client._sync.base_channel import BaseChannel
from leveret.client._sync.base_connection import BaseConnection
from leveret.client._sync.channel import Channel
from leveret.client._sync.connection import Amqp09Connection, Amqp10Connection, Connection, connect
from leveret.client._sync.consumer import Consumer
from leveret.client._sync.files import FileConsumer
from leveret.client._sync.publisher import Publisher
from leveret.client._sync.queue import Exchange, Queue
from leveret.client._sync.receiver import Receiver
from leveret.client._sync.sender import Sender
from leveret.client._sync.session import Session
from leveret.client._sync.transaction import Transaction

__all__ = [
    "Amqp09Channel",
    "Amqp09Connection",
    "Amqp10Connection",
    "BaseChannel",
    "BaseConnection",
    "Channel",
    "Connection",
    "Consumer",
    "Exchange",
    "FileConsumer",
    "Publisher",
    "Queue",
    "Receiver",
    "Sender",
    "Session",
    "Transaction",
    "connect",
]
