"""The move of the messages of a queue to another queue, of any two AMQP 0-9-1 brokers, as one task of a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from leveret.client._async.channel import Channel
from leveret.client._async.connection import Connection, open_connection
from leveret.client.errors import Error, InvalidUrl, NotFound
from leveret.client.parameters import Parameters
from leveret.shovel.definition import NEVER, QUEUE_LENGTH, End, read_definition
from leveret.shovel.transfer import Transfer, run
from leveret.shovel.uris import AMQP091, read_uri

# Seconds before a run that has moved messages and failed is repeated.
RETRY_DELAY: Final = 1.0
_EXPECTED: Final = "expected amqp://user:password@host:port/VHOST/QUEUE, with '/' in names as %2F"


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """A queue of a broker.

    Attributes:
        uri: URI of the broker, with the vhost.
        queue: Name of the queue.
    """

    uri: str
    queue: str


def read_address(url: str) -> QueueAddress:
    """Return the queue of a URL whose path has the vhost and the queue. Raises `InvalidUrl`."""
    head, mark, query = url.partition("?")
    scheme, separator, rest = head.partition("://")
    parts = rest.split("/")
    if not separator or len(parts) != 3 or not parts[1] or not parts[2]:
        path = "/".join(["", *parts[1:]])
        raise InvalidUrl(f"the URL has the path '{path}'; {_EXPECTED}")
    uri = f"{scheme}://{parts[0]}/{parts[1]}{mark}{query}"
    read_uri(uri, AMQP091, "")
    try:
        return QueueAddress(uri, unquote(parts[2], errors="strict"))
    except UnicodeDecodeError:
        raise InvalidUrl(f"the name of the queue is not UTF-8; {_EXPECTED}") from None


@dataclass(frozen=True, slots=True)
class Length:
    """The numbers of messages and consumers of a queue.

    Attributes:
        messages: Number of ready messages.
        consumers: Number of consumers.
    """

    messages: int
    consumers: int


class Lengths:
    """A connection that asks a broker for the lengths of queues. It opens when it is needed, also after it was lost.

    Args:
        uri: URI of the broker, with the vhost.
        name: The name of the connection on the server.
    """

    def __init__(self, uri: str, name: str) -> None:
        self._parameters = read_uri(uri, AMQP091, name)
        self._connection: Connection | None = None
        self._channel: Channel | None = None

    async def __aenter__(self) -> Lengths:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect. Raises `Error` or `OSError`."""
        connection = await open_connection([self._parameters])
        assert isinstance(connection, Connection)
        self._connection = connection

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            await connection.close()

    async def of(self, queue: str) -> Length:
        """Return how many messages and consumers a queue has. Raises `NotFound`, another `Error` or `OSError`."""
        try:
            return await self._ask(queue)
        except NotFound:
            raise
        except (Error, OSError):
            await self.close()
            return await self._ask(queue)

    async def _ask(self, queue: str) -> Length:
        if self._connection is None:
            await self.open()
            assert self._connection is not None
        if self._channel is None or not self._channel.is_open:
            self._channel = await self._connection.channel()
        found = await self._channel.declare_queue(queue, passive=True)
        return Length(found.message_count, found.consumer_count)


class Move:
    """A move of all messages of a queue, in order and at least once.

    Messages leave the source when the destination has confirmed them and all before them. After a failure or the end of the
    process, the others are still there, in their order, although the destination may have some of them, too.

    Args:
        source: The queue to empty.
        destination: The queue to publish to. It is declared as a durable queue if it does not exist.
        name: The name of the connections on the servers.
        arguments: Arguments of the declaration; None if the destination must exist.
        follows: Whether to continue when the source is empty, until the task is cancelled.
        report: Called with the text of a failure after which the move continues.

    Attributes:
        gained: Number of messages by which the destination has grown; None if its consumers take messages, and before the
            end.
    """

    def __init__(
        self,
        source: QueueAddress,
        destination: QueueAddress,
        name: str,
        *,
        arguments: Mapping[str, Any] | None,
        follows: bool = False,
        report: Callable[[str], None],
    ) -> None:
        self._source = source
        self._destination = destination
        self._name = name
        self._report = report
        self._definition = read_definition(
            name,
            {
                "src-uri": source.uri,
                "src-queue": source.queue,
                "src-predeclared": True,
                "src-delete-after": NEVER if follows else QUEUE_LENGTH,
                "dest-uri": destination.uri,
                "dest-queue": destination.queue,
                "dest-queue-args": dict(arguments or {}),
                "dest-predeclared": arguments is None,
            },
        )
        self._transfer: Transfer | None = None
        # Messages of the runs that have ended.
        self._moved = 0
        self.gained: int | None = None

    @property
    def moved(self) -> int:
        """Number of messages that have left the source."""
        return self._moved + (0 if self._transfer is None else self._transfer.forwarded)

    @property
    def left(self) -> int | None:
        """Number of messages that are to leave the source in this run; None if it is unknown."""
        transfer = self._transfer
        return None if transfer is None or transfer.remaining is None else transfer.pending + transfer.remaining

    @property
    def share(self) -> float | None:
        """The share of the messages of the source that has moved; None if it is unknown."""
        left = self.left
        return None if left is None or not self.moved + left else self.moved / (self.moved + left)

    async def run(self) -> None:
        """Move the messages until the source is empty.

        Raises:
            Error: A broker refuses, or a connection failed before any message was moved.
            OSError: A broker cannot be reached.
        """
        before = await self._length(self._destination, is_missing_ok=True)
        while True:
            moved = self.moved
            try:
                await self._run()
                if not (await self.source_length()).messages:
                    break
            except (Error, OSError) as error:
                if self.moved == moved:
                    raise
                self._report(f"{error}; continuing in {RETRY_DELAY:g} s")
                await asyncio.sleep(RETRY_DELAY)
        after = await self._length(self._destination, is_missing_ok=True)
        if not before.consumers and not after.consumers:
            self.gained = after.messages - before.messages

    async def source_length(self) -> Length:
        """Return how many messages and consumers the source has. Raises `Error` or `OSError`."""
        return await self._length(self._source)

    async def _run(self) -> None:
        try:
            await run(self._definition, self._hosts, {}, self._note_running)
        finally:
            transfer, self._transfer = self._transfer, None
            if transfer is not None:
                self._moved += transfer.forwarded

    def _note_running(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def _hosts(self, end: End) -> list[Parameters]:
        return [read_uri(uri, end.protocol, self._name) for uri in end.uris]

    async def _length(self, address: QueueAddress, *, is_missing_ok: bool = False) -> Length:
        async with Lengths(address.uri, self._name) as lengths:
            try:
                return await lengths.of(address.queue)
            except NotFound:
                if is_missing_ok:
                    return Length(0, 0)
                raise
