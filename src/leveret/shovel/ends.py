"""The two ends of a running shovel: where it takes messages, and where it publishes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

from leveret.client._async.base_channel import BaseChannel
from leveret.client._async.base_connection import BaseConnection
from leveret.client._async.consumer import Consumer
from leveret.shovel.definition import NEVER, NO_ACK, Definition

# A connection, a message of the source, and a publish, of the protocol of the end.
AnyConnection: TypeAlias = Any
AnyMessage: TypeAlias = Any
AnyOutgoing: TypeAlias = Any


class Source(ABC):
    """The connection that messages come from.

    Attributes:
        consumer: The consumer.
        length: Number of messages in the queue at the start; 0 if there is no queue.
    """

    connection: BaseConnection
    consumer: Consumer
    length = 0

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        # With a number of messages to move, those that follow are not settled by being sent.
        self.is_settled = definition.ack_mode == NO_ACK and definition.delete_after == NEVER

    async def open(self, connection: AnyConnection) -> None:
        """Prepare to consume over a connection of the protocol of the source. Raises `Error`."""
        self.connection = connection
        consumer = await self._attach()
        consumer.core.count_bytes()
        self.consumer = consumer

    @abstractmethod
    async def _attach(self) -> Consumer:
        """Return a consumer that has not started."""


class Destination(ABC):
    """The connection that messages go to."""

    connection: BaseConnection

    def __init__(self, definition: Definition) -> None:
        self.definition = definition

    @property
    @abstractmethod
    def channel(self) -> BaseChannel:
        """The channel or session."""

    async def open(self, connection: AnyConnection) -> None:
        """Prepare to publish over a connection of the protocol of the destination. Raises `Error`."""
        self.connection = connection
        await self._attach()

    @abstractmethod
    async def _attach(self) -> None:
        """Open the channel or link."""

    @abstractmethod
    def encode(self, message: AnyMessage) -> AnyOutgoing:
        """Return a publish of a message. Raises `InvalidMessage`."""

    @abstractmethod
    def publish(self, outgoing: AnyOutgoing) -> None:
        """Publish an encoded message; the channel must be flowing. Raises `Error`."""
