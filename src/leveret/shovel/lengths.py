"""Connections that inspect the queues whose messages are moved."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

from leveret.client._async.channel import Channel
from leveret.client._async.connection import Amqp10Connection, Connection, open_connection
from leveret.client.errors import ConnectionClosed
from leveret.shovel.definition import QUEUE_LENGTH
from leveret.shovel.uris import AMQP091, AMQP10, read_uri

# Keys of the definition of a shovel.
Keys: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Length:
    """The numbers of messages and consumers of a queue.

    Attributes:
        messages: Number of ready messages.
        consumers: Number of consumers.
    """

    messages: int
    consumers: int


class Observer(ABC):
    """A connection that inspects queues whose messages are moved. It opens when needed, and again after it was lost."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    async def source_keys(self, queue: str) -> Keys:
        """Return the keys of a shovel that moves the messages that a queue has. Raises `Error` or `OSError`."""

    @abstractmethod
    async def consumers(self, queue: str) -> int:
        """Return the number of consumers of a queue, 0 if it is unknown. Raises `Error` or `OSError`."""

    @abstractmethod
    async def is_empty(self, queue: str) -> bool:
        """Return whether a queue has no ready message. Raises `Error` or `OSError`."""


class Lengths(Observer):
    """A connection over AMQP 0-9-1, which asks for the lengths of queues.

    Tasks may share it: each question has a channel of its own.

    Args:
        uri: URI of the broker, with the vhost.
        name: The name of the connection on the server.
    """

    def __init__(self, uri: str, name: str) -> None:
        self._parameters = read_uri(uri, AMQP091, name)
        self._connection: Connection | None = None
        self._idle: list[Channel] = []
        self._opening = asyncio.Lock()

    async def open(self) -> Connection:
        """Connect, unless the connection is open, and return it. Raises `Error` or `OSError`."""
        async with self._opening:
            if self._connection is None or self._connection.is_closed:
                self._idle.clear()
                connection = await open_connection([self._parameters])
                assert isinstance(connection, Connection)
                self._connection = connection
            return self._connection

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def of(self, queue: str) -> Length:
        """Return how many messages and consumers a queue has. Raises `NotFound`, another `Error` or `OSError`."""
        try:
            return await self._ask(queue)
        except ConnectionClosed:  # since the last question
            return await self._ask(queue)

    async def _ask(self, queue: str) -> Length:
        connection = await self.open()
        channel = self._idle.pop() if self._idle else await connection.channel()
        found = await channel.declare_queue(queue, passive=True)
        self._idle.append(channel)
        return Length(found.message_count, found.consumer_count)

    async def source_keys(self, queue: str) -> Keys:
        """Return the keys of a shovel that moves the messages that a queue has."""
        return {"src-queue": queue, "src-predeclared": True, "src-delete-after": QUEUE_LENGTH}

    async def consumers(self, queue: str) -> int:
        """Return the number of consumers of a queue. Raises `Error` or `OSError`."""
        return (await self.of(queue)).consumers

    async def is_empty(self, queue: str) -> bool:
        """Return whether a queue has no ready message. Raises `Error` or `OSError`."""
        return not (await self.of(queue)).messages


class Amqp10Observer(Observer):
    """A connection over AMQP 1.0, which knows no lengths: it takes a message to learn whether there is one.

    Args:
        uri: URI of the broker, with the vhost.
        name: The name of the connection on the server.
    """

    def __init__(self, uri: str, name: str) -> None:
        self._parameters = read_uri(uri, AMQP10, name)
        self._connection: Amqp10Connection | None = None

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def source_keys(self, queue: str) -> Keys:
        """Return the keys of a shovel that moves the messages of a queue, and does not end. Raises `Error` or `OSError`."""
        connection = await self._open()
        return {"src-protocol": AMQP10, "src-address": connection.core.addresses.of_queue(queue)}

    async def consumers(self, queue: str) -> int:
        """Return 0: the number is unknown."""
        return 0

    async def is_empty(self, queue: str) -> bool:
        """Return whether a queue has no ready message. Raises `Error` or `OSError`."""
        connection = await self._open()
        session = await connection.session()
        try:
            message = await session.get(queue)
            if message is not None:
                message.release()
            return message is None
        finally:
            await session.close()

    async def _open(self) -> Amqp10Connection:
        if self._connection is None or self._connection.is_closed:
            connection = await open_connection([self._parameters])
            assert isinstance(connection, Amqp10Connection)
            self._connection = connection
        return self._connection


OBSERVERS: Final[dict[str, Callable[[str, str], Observer]]] = {AMQP091: Lengths, AMQP10: Amqp10Observer}
