"""The move of the messages of a queue to another queue. The queues may be of any two AMQP brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from leveret.client.errors import Error, InvalidUrl, NotFound, PublishFailed
from leveret.client.parameters import Parameters
from leveret.shovel.definition import ADD_ORIGIN_HEADERS, NEVER, Definition, End, read_definition
from leveret.shovel.lengths import Keys, Length, Lengths, Observer
from leveret.shovel.transfer import Transfer, run
from leveret.shovel.uris import AMQP091, read_uri

# Seconds before a run that has failed is repeated.
RETRY_DELAY: Final = 1.0
# Seconds without a moved message after which a move gives up. RabbitMQ notices a dead connection within this time.
RETRY_TIMEOUT: Final = 180.0
# Seconds without a message after which a move asks whether the source still has those that it had at the start.
IDLE_INTERVAL: Final = 1.0
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


def read_address(url: str, protocol: str = AMQP091) -> QueueAddress:
    """Return the queue of a URL whose path has the vhost and the queue. Raises `InvalidUrl`."""
    head, mark, query = url.partition("?")
    scheme, separator, rest = head.partition("://")
    parts = rest.split("/")
    if not separator or len(parts) != 3 or not parts[1] or not parts[2]:
        # Without the path, which is a part of the password if that has a '/'.
        raise InvalidUrl(f"the URL does not name a vhost and a queue; {_EXPECTED}, in passwords, too")
    uri = f"{scheme}://{parts[0]}/{parts[1]}{mark}{query}"
    read_uri(uri, protocol, "")
    try:
        return QueueAddress(uri, unquote(parts[2], errors="strict"))
    except UnicodeDecodeError:
        raise InvalidUrl(f"the name of the queue is not UTF-8; {_EXPECTED}") from None


class Move:
    """A move of all messages of a queue, in order and at least once.

    Messages leave the source when the destination has confirmed them and all before them. After a failure or the end of the
    process, the others are still there, in their order, although the destination may have some of them, too.

    Args:
        source: The queue to empty.
        destination: The queue to publish to. It is declared as a durable queue if it does not exist.
        name: The name of the connections on the servers.
        observers: Those of the vhosts of the source and of the destination.
        arguments: Arguments of the declaration; None if the destination must exist.
        follows: Whether to continue when the source is empty, until the task is cancelled.
        adds_origin: Whether to add headers with the exchange and the routing key of each message.
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
        observers: tuple[Observer, Lengths],
        arguments: Mapping[str, Any] | None,
        follows: bool = False,
        adds_origin: bool = False,
        report: Callable[[str], None],
    ) -> None:
        self._source = source
        self._destination = destination
        self._name = name
        self._at_source, self._at_destination = observers
        self._follows = follows
        self._report = report
        self._keys: Keys = {
            "src-uri": source.uri,
            "dest-uri": destination.uri,
            "dest-queue": destination.queue,
            "dest-queue-args": dict(arguments or {}),
            "dest-predeclared": arguments is None,
            ADD_ORIGIN_HEADERS: adds_origin,
        }
        self._transfer: Transfer | None = None
        # Messages of the runs that have ended.
        self._moved = 0
        # Consumers of the source that are not those of the move.
        self._consumers = 0
        # Messages that had moved at the last failure, and when that was.
        self._moved_before = 0
        self._progressed = 0.0
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

    async def run(self, *, until_empty: bool = True) -> None:
        """Move the messages.

        After a failure, the move continues, unless it has moved nothing, or nothing since `RETRY_TIMEOUT`.

        Args:
            until_empty: Whether to end when the source is empty, instead of after the messages that it has now.

        Raises:
            Error: A broker refuses, or a connection failed.
            OSError: A broker cannot be reached.
        """
        before = await self._destination_length()
        definition = await self._define()
        self._consumers = await self._at_source.consumers(self._source.queue)
        while True:
            try:
                await self._run(definition)
                if not until_empty or await self._at_source.is_empty(self._source.queue):
                    break
            except (Error, OSError) as error:
                await self._wait_to_retry(error)
        after = await self._destination_length()
        if not before.consumers and not after.consumers:
            self.gained = after.messages - before.messages

    async def _define(self) -> Definition:
        keys = self._keys | await self._at_source.source_keys(self._source.queue)
        if self._follows:
            keys["src-delete-after"] = NEVER
        return read_definition(self._name, keys)

    async def _destination_length(self) -> Length:
        try:
            return await self._at_destination.of(self._destination.queue)
        except NotFound:  # until the first run declares it, or refuses
            return Length(0, 0)

    async def _run(self, definition: Definition) -> None:
        """Move the messages that the source has now, or with `follows` those that arrive, too."""
        if self._moved and await self._at_source.consumers(self._source.queue) > self._consumers:
            raise Error("the source has not noticed yet that a connection of the move was lost")  # the order depends on it
        moving = asyncio.create_task(run(definition, self._hosts, {}, self._note_running))
        try:
            while not moving.done():
                await asyncio.wait([moving], timeout=IDLE_INTERVAL)
                if not moving.done() and not self._follows and await self._is_source_empty():
                    return  # The messages that it had at the start have expired, or other consumers have taken them.
            await moving
        finally:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
            transfer, self._transfer = self._transfer, None
            if transfer is not None:
                self._moved += transfer.forwarded

    async def _is_source_empty(self) -> bool:
        """Return whether the source has no message that is still to arrive."""
        if self._transfer is None or self._transfer.idle_time < IDLE_INTERVAL:
            return False
        return await self._at_source.is_empty(self._source.queue)

    async def _wait_to_retry(self, error: Error | OSError) -> None:
        """Wait before the next run. Raises the error if there is no point in one."""
        now = asyncio.get_running_loop().time()
        if self.moved > self._moved_before:
            self._moved_before, self._progressed = self.moved, now
        # The destination does not have more room a moment later, unless the move continues for as long as it takes.
        patience = 0.0 if isinstance(error, PublishFailed) else RETRY_TIMEOUT
        if not self.moved or (not self._follows and now > self._progressed + patience):
            raise error
        self._report(f"{error}; continuing in {RETRY_DELAY:g} s")
        await asyncio.sleep(RETRY_DELAY)

    def _note_running(self, transfer: Transfer) -> None:
        self._transfer = transfer

    async def _hosts(self, side: str, end: End) -> list[Parameters]:
        return [read_uri(uri, end.protocol, self._name) for uri in end.uris]
