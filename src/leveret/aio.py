"""The async API; `leveret.connect` is its entry point."""

from __future__ import annotations

from leveret.client._async.amqp09 import Amqp09Channel
from leveret.client._async.base_channel import BaseChannel
from leveret.client._async.base_connection import BaseConnection
from leveret.client._async.channel import Channel
from leveret.client._async.connection import Amqp09Connection, Amqp10Connection, Connection, connect
from leveret.client._async.consumer import Consumer
from leveret.client._async.files import FileConsumer
from leveret.client._async.publisher import Publisher
from leveret.client._async.queue import Exchange, Queue
from leveret.client._async.receiver import Receiver
from leveret.client._async.sender import Sender
from leveret.client._async.session import Session
from leveret.client._async.transaction import Transaction

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
