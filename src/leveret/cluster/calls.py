"""Calls of the operations of shards over their control sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from leveret.broker.errors import BrokerError
from leveret.cluster.node_handshake import LinkFailed
from leveret.cluster.streams import CHUNK
from leveret.management.operations.shards import READY

if TYPE_CHECKING:
    from leveret.cluster.shards import Shard

# The beginnings of the lines of a reply, before a list or a value.
PART: Final = b'{"v":1,"part":'
RESULT: Final = b'{"v":1,"result":'
# Seconds without an answer after which a shard counts as one that does not answer. Clients wait for 60 seconds.
TIMEOUT: Final = 50.0
# Maximum number of unused connections to a shard.
_MAX_IDLE: Final = 16

T = TypeVar("T")


class ShardUnavailable(BrokerError):
    """A shard does not answer."""

    condition = "shard-unavailable"


class ShardRefused(BrokerError):
    """A shard refused a call."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(text)
        self.condition = condition


class _Refusal(msgspec.Struct):
    condition: str
    text: str


class _Error(msgspec.Struct):
    error: _Refusal


class _Result(msgspec.Struct):
    result: msgspec.Raw


class _Items(msgspec.Struct):
    part: list[msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET
    result: list[msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET


def items_of(line: bytes) -> list[msgspec.Raw]:
    """Return the items of a line of a list, encoded."""
    found = msgspec.json.decode(line, type=_Items)
    items = found.part if found.part is not msgspec.UNSET else found.result
    assert items is not msgspec.UNSET
    return items


def check_ready(shard: Shard) -> None:
    """Raise `ShardUnavailable` unless a shard takes calls."""
    if shard.state != READY:
        raise ShardUnavailable(f"shard {shard.number} is {shard.state}")


class _Connection:
    """A connection to the control socket of a shard, whose process it belongs to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> None:
        self._reader = reader
        self._writer = writer
        self.pid = pid
        self._unread = bytearray()

    async def send(self, request: bytes) -> None:
        self._writer.write(request)
        await self._writer.drain()

    async def line(self) -> bytes:
        """Return the next line. Raises `ConnectionError` if the shard closes."""
        unread, searched = self._unread, 0
        while (end := unread.find(b"\n", searched)) < 0:
            searched = len(unread)
            chunk = await self._reader.read(CHUNK)
            if not chunk:
                raise ConnectionError
            unread += chunk
        line = bytes(unread[: end + 1])
        del unread[: end + 1]
        return line

    def is_closed(self) -> bool:
        """Return whether the shard has closed the connection."""
        return self._reader.at_eof()

    def close(self) -> None:
        self._writer.close()


class ShardCalls:
    """Calls of shards, each on a connection of its own."""

    def __init__(self) -> None:
        self._idle: dict[int, list[_Connection]] = {}

    def close(self) -> None:
        """Close the unused connections."""
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()

    async def lines(self, shard: Shard, request: bytes, timeout: float | None = None) -> AsyncGenerator[bytes, None]:
        """Send a request and yield the lines of the reply; the last one is no part.

        No more of the reply is read than the caller takes.

        Args:
            shard: The shard.
            request: The line of the request.
            timeout: Seconds for each line; None for no limit.

        Raises:
            ShardUnavailable: The shard does not take calls, or ends before it has replied.
        """
        check_ready(shard)
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(timeout):
                connection = self._take(shard) or _Connection(*await shard.open_control(), shard.pid)
                await connection.send(request)
            while True:
                async with asyncio.timeout(timeout):
                    line = await connection.line()
                if not line.startswith(PART):
                    break
                yield line
            self._keep(shard, connection)
            connection = None
        except LinkFailed as error:
            raise ShardUnavailable(f"shard {shard.number} does not answer: {error}") from None
        except TimeoutError:
            raise ShardUnavailable(f"shard {shard.number} does not answer") from None
        except OSError:
            state = "restarting" if shard.state == READY else shard.state
            raise ShardUnavailable(f"shard {shard.number} is {state}: it ended before it had answered") from None
        finally:
            if connection is not None:
                connection.close()
        yield line

    async def call(self, shard: Shard, request: bytes, type: type[T], timeout: float | None = None) -> T:
        """Send a request and return its result. Raises `ShardUnavailable`, or `ShardRefused` with the shard's error."""
        async with aclosing(self.lines(shard, request, timeout)) as lines:
            line = await anext(lines)
        if not line.startswith(RESULT):
            refusal = msgspec.json.decode(line, type=_Error).error
            raise ShardRefused(refusal.condition, refusal.text)
        return msgspec.json.decode(msgspec.json.decode(line, type=_Result).result, type=type)

    async def call_all(self, shards: Iterable[Shard], request: bytes, type: type[T]) -> list[T]:
        """Send a request to several shards at once and return their results. Raises as `call`."""
        outcomes = await self.outcomes(shards, request, type)
        for outcome in outcomes:
            if isinstance(outcome, ShardUnavailable):
                raise outcome
        return [outcome for outcome in outcomes if not isinstance(outcome, ShardUnavailable)]

    async def outcomes(
        self, shards: Iterable[Shard], request: bytes, type: type[T], timeout: float = TIMEOUT
    ) -> list[T | ShardUnavailable]:
        """Send a request to several shards at once and return their results, or why they do not answer.

        Args:
            shards: The shards.
            request: The line of the request.
            type: The type of a result.
            timeout: Seconds for a shard to answer.

        Raises:
            ShardRefused: A shard has refused the request.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._outcome(shard, request, type, timeout)) for shard in shards]
        outcomes = [task.result() for task in tasks]
        for outcome in outcomes:
            if isinstance(outcome, ShardRefused):
                raise outcome
        return [outcome for outcome in outcomes if not isinstance(outcome, ShardRefused)]

    async def _outcome(
        self, shard: Shard, request: bytes, type: type[T], timeout: float
    ) -> T | ShardUnavailable | ShardRefused:
        try:
            return await self.call(shard, request, type, timeout)
        except (ShardUnavailable, ShardRefused) as error:
            return error

    def _take(self, shard: Shard) -> _Connection | None:
        idle = self._idle.get(shard.number, [])
        while idle:
            connection = idle.pop()
            if connection.pid == shard.pid and not connection.is_closed():
                return connection
            connection.close()
        return None

    def _keep(self, shard: Shard, connection: _Connection) -> None:
        idle = self._idle.setdefault(shard.number, [])
        if connection.pid == shard.pid and len(idle) < _MAX_IDLE:
            idle.append(connection)
        else:
            connection.close()
