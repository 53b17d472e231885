"""Calls of the broker's operations over the control socket, from an event loop."""

from __future__ import annotations

import asyncio
import copy
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from leveret.management.http.errors import BrokerRefused, BrokerUnavailable
from leveret.management.socket_path import MAX_ANSWER, MAX_REQUEST_SIZE, short_path

# A reply, or an item of a list.
Row: TypeAlias = dict[str, Any]

VERSION: Final = 1
# Maximum number of concurrent calls. Further calls wait.
MAX_CONNECTIONS: Final = 16
# The same of one user.
_MAX_OF_USER: Final = MAX_CONNECTIONS // 2
TIMEOUT: Final = 60.0


def renamed(item: Row) -> Row:
    """Return an item of a reply under the names of this process. Replies have sizes under the names of version 0.2."""
    return {
        key.replace("octets", "bytes"): [renamed(batch) for batch in value] if key == "batches" else value
        for key, value in item.items()
    }


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def call(self, request: bytes) -> Any:
        """Send a request and return its result.

        Raises:
            BrokerRefused: The broker refused the request.
            ConnectionError: The broker closed the connection.
            ValueError: The answer, which has parts of about 32 KiB for a long list, is too large.
        """
        self.writer.write(request)
        await self.writer.drain()
        parts: list[Row] = []
        left = MAX_ANSWER
        while line := await self.reader.readline():
            left -= len(line)
            if left < 0:
                raise ValueError(f"its answer has more than {MAX_ANSWER >> 20} MiB, the maximum")
            reply = msgspec.json.decode(line)
            if "error" in reply:
                raise BrokerRefused(reply["error"]["condition"], reply["error"]["text"])
            if "part" in reply:
                parts += reply["part"]
                continue
            result = reply["result"]
            return parts + result if isinstance(result, list) else result
        raise ConnectionError("the broker closed the control connection")


class Control:
    """A pool of connections to the control socket. Each carries one call at a time, so that a slow one delays no other."""

    def __init__(self, path: Path, max_connections: int = MAX_CONNECTIONS) -> None:
        self._path = path
        self._token: str | None = None
        self._idle: deque[_Connection] = deque()
        self._slots = asyncio.Semaphore(max_connections)
        self._origin: Row | None = None
        # The share of a user; the semaphores of users that have calls.
        self._share: AbstractAsyncContextManager[None] = nullcontext()
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def on_behalf_of(self, user: str, source: str, token: str) -> Control:
        """Return the same pool for a user, whom the audit log names.

        Args:
            user: The name of the user.
            source: Where the request came from.
            token: The token by which the user has logged in, whose permissions then apply in calls as the user; "" if none.
        """
        control = copy.copy(self)
        control._origin = {"user": user, "source": source, "login": "token" if token else "password"}
        control._token = token or None
        share = self._shares.get(user)
        if share is None:
            share = self._shares[user] = asyncio.Semaphore(_MAX_OF_USER)
        control._share = share
        return control

    async def call(self, name: str, arguments: Row | None = None, *, user: str | None = None) -> Any:
        """Execute an operation on the broker as a whole, and return its result.

        Args:
            name: The name of the operation.
            arguments: The fields of the request.
            user: The user whose permissions apply; None for an operator.

        Raises:
            BrokerRefused: The broker refused the operation.
            BrokerUnavailable: The broker does not answer.
        """
        request = {"v": VERSION, "call": name, "arguments": arguments or {}}
        return await self._send(request if user is None else self._as(user, request))

    async def list(self, name: str, arguments: Row | None = None) -> list[Row]:
        """Return the result of a list operation, without the objects of shards that are not ready. Raises as `call`."""
        found: list[Row] = await self._send({"v": VERSION, "call": name, "arguments": arguments or {}, "partial": True})
        return found

    async def topology(self) -> Any:
        """Return what changes whenever an exchange, a queue or a binding does. Raises as `call`."""
        return await self.list("statistics.topology")

    async def call_as(self, user: str, vhost: str, name: str, arguments: Row) -> Any:
        """Execute an operation inside a vhost with the permissions of a user, and return its result. Raises as `call`."""
        return await self._send(self._as(user, {"v": VERSION, "call": name, "vhost": vhost, "arguments": arguments}))

    def _as(self, user: str, request: Row) -> Row:
        found = request | {"as": user}
        return found if self._token is None else found | {"token": self._token}

    async def _send(self, request: Row) -> Any:
        encoded = _encode(request if self._origin is None else request | {"origin": self._origin})
        if len(encoded) > MAX_REQUEST_SIZE:
            reason = f"the request has {len(encoded)} bytes for the broker; expected at most {MAX_REQUEST_SIZE}"
            raise BrokerRefused("not-allowed", reason)
        async with self._connection() as connection:
            return await connection.call(encoded)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[_Connection]:
        async with self._share, self._slots:
            try:
                async with asyncio.timeout(TIMEOUT):
                    connection = self._idle.pop() if self._idle else await self._connect()
                    try:
                        yield connection
                    except BrokerRefused:
                        self._idle.append(connection)
                        raise
                    except BaseException:
                        connection.writer.close()
                        raise
                    self._idle.append(connection)
            except (OSError, ValueError, EOFError) as error:
                # The other idle connections are probably dead, too: the broker restarts.
                while self._idle:
                    self._idle.pop().writer.close()
                raise BrokerUnavailable(f"the broker does not answer: {error}") from None

    async def _connect(self) -> _Connection:
        with short_path(self._path) as name:
            reader, writer = await asyncio.open_unix_connection(name, limit=MAX_ANSWER)
        return _Connection(reader, writer)


def _encode(request: Row) -> bytes:
    try:
        return msgspec.json.encode(request) + b"\n"
    except UnicodeEncodeError:  # a name with bytes that are not UTF-8
        return json.dumps(request).encode() + b"\n"
