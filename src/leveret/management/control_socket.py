"""The control socket: a Unix socket in the data directory, for administrators on the same machine.

The mode of the socket file grants access to its owner only. Requests and replies are JSON, one per line:

    {"v": 1, "call": "queues.list", "arguments": {"vhost": "/"}}
    {"v": 1, "part": [{...}, ...]}        any number of times, for a list
    {"v": 1, "result": [{...}, ...]}      the rest of the list, or the result
    {"v": 1, "error": {"condition": "not-found", "text": "vhost 'x' does not exist"}}

With `"as": "USER"`, and `"vhost"` for an operation inside a vhost, the broker checks the roles of that user, or the
permissions of a user without roles. With `"token"` too, the token has the permissions:

    {"v": 1, "call": "queue.declare", "as": "alice", "vhost": "/", "arguments": {"name": "orders"}}

With `"origin": {"user": "USER", "source": "..."}`, the audit log names that user and source instead of the client. With
`"login"` there, USER has logged in to the broker with a `"password"` or a `"token"`, and shovels act for that user.

The broker replies in the order of the requests. It produces a long list in slices of a fraction of a millisecond, with
other work in between, and sends it in parts.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import pwd
import socket
import stat
import struct
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from leveret.broker.errors import BrokerError
from leveret.broker.parameters import OPERATOR, UNKNOWN, Setter
from leveret.management.admin import Admin
from leveret.management.json_values import ReplyValue, encode_json
from leveret.management.operations.operation import Operator, Principal, User
from leveret.management.roles import RoleHolder
from leveret.management.socket_path import MAX_REQUEST_SIZE, short_path
from leveret.management.structs import Reply
from leveret.security.accounts import Account

VERSION = 1
# Number of items, or of bytes, after which a part of a list is sent.
MAX_PART_ITEMS = 100
MAX_PART_SIZE = 32 << 10
# Seconds for which items are produced before other clients are served, and the maximum number of objects to examine, in
# case the request excludes most of them.
MAX_SLICE_TIME = 0.0002
MAX_EXAMINED = 1000

logger = logging.getLogger("leveret.control")


class ControlServer:
    """Server of an `Admin` on a Unix socket at `path`.

    Attributes:
        max_request: Maximum number of bytes of a request.
    """

    max_request = MAX_REQUEST_SIZE

    def __init__(self, admin: Admin, path: Path) -> None:
        self.admin = admin
        self.path = path
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Replaces the socket file of a killed broker. Raises `OSError` if the socket cannot be created."""
        self._server = await asyncio.start_unix_server(self._serve, sock=_listen(self.path), limit=self.max_request)

    async def stop(self) -> None:
        """Close and remove the socket."""
        if self._server is None:
            return
        self._server.close()
        for client in list(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        self._server = None
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            # A failing disk must not prevent the broker from reopening its store. The next start replaces the socket.
            logger.warning("cannot remove control socket %s: %s", self.path, error.strerror)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        peer = _peer(writer)
        try:
            while line := await reader.readline():
                async with aclosing(self._answers(line, peer)) as answers:
                    async for answer in answers:
                        writer.write(answer)
                        await writer.drain()
        except ValueError:
            writer.write(
                encode_error("bad-request", f"the request is too large; expected at most {self.max_request} bytes")
            )
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._clients.discard(task)
            writer.close()

    async def _answers(self, line: bytes, peer: tuple[str, str]) -> AsyncGenerator[bytes, None]:
        try:
            request = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            yield encode_error("bad-request", f"invalid JSON: {error}")
            return
        if not isinstance(request, dict) or request.get("v") != VERSION or not isinstance(request.get("call"), str):
            yield encode_error("bad-request", f'expected {{"v": {VERSION}, "call": "...", "arguments": {{...}}}}')
            return
        call = Call(line, request, origin_of(request, peer))
        try:
            async with aclosing(self.replies(call)) as replies:
                async for reply in replies:
                    yield reply
        except BrokerError as error:
            yield encode_error(error.condition, str(error))
        except Exception:
            logger.exception("internal error in call '%s'", call.name)
            yield encode_error("internal-error", "internal error; see the broker's log")

    async def replies(self, call: Call) -> AsyncGenerator[bytes, None]:
        """Execute a call, and yield the lines of the reply. Raises `BrokerError`."""
        principal = await self.principal(call)
        if call.vhost is None:
            result = await self.admin.call(call.name, call.arguments, principal, self.is_audited(call))
        else:
            result = await self.admin.call_in_vhost(call.name, call.arguments, call.vhost, principal)
        async for reply in encode_result(result):
            yield reply

    async def principal(self, call: Call) -> Principal:
        """Return the caller. Raises `AccessRefused` if the token is not accepted."""
        actor, source = call.origin
        if call.user is None:
            return Operator(actor, source, call.setter)
        account = await self.account(call, call.user)
        grants = self.admin.managed.roles.of(account.name)
        return RoleHolder(account.name, grants, call.name, source) if grants else User(account, source=source)

    def is_audited(self, call: Call) -> bool:
        """Return whether the audit log of this process gets the changes of a call."""
        return True

    async def account(self, call: Call, user: str) -> Account:
        """Return the account of the user of a call. Raises `AccessRefused` if the token is not accepted."""
        return await self.admin.managed.account(user, call.token)


class Call:
    """A request: the call of an operation.

    Args:
        line: The line of the request.
        request: The decoded line.
        origin: The user and the source for the audit log.

    Attributes:
        name: The name of the operation.
        arguments: The fields of the request of the operation.
        user: The user whose permissions apply; None for an operator.
        token: The token by which the user has logged in; None without one.
        setter: The user whom parameters are stored with.
        vhost: The vhost of an operation inside a vhost; None for one on the broker as a whole.
        request: The decoded line.
    """

    def __init__(self, line: bytes, request: dict[str, Any], origin: tuple[str, str]) -> None:
        self.line = line
        self.request = request
        self.origin = origin
        self.name: str = request["call"]
        self.arguments: object = request.get("arguments") or {}
        user, vhost = request.get("as"), request.get("vhost")
        self.user = None if user is None else str(user)
        # Without a user, the permissions in a vhost do not apply.
        self.vhost = None if vhost is None or user is None else str(vhost)
        self.token: str | None = request.get("token")
        self.setter = _setter_of(request)


async def encode_result(result: Reply | Iterator[Reply | None] | None) -> AsyncGenerator[bytes, None]:
    """Yield the lines of the reply with the result of an operation: several ones for a long list."""
    if not isinstance(result, Iterator):
        yield _encode({"v": VERSION, "result": result})
        return
    items = SlicedList(result)
    while not items.take():
        if items.is_full():
            yield encode_list("part", items.part())
        await asyncio.sleep(0)
    yield encode_list("result", items.part())


def _peer(writer: asyncio.StreamWriter) -> tuple[str, str]:
    """Return the user and the source of a client for the audit log: its user of the operating system, and its process."""
    connection: socket.socket = writer.get_extra_info("socket")
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = f"uid {uid}"
    return user, f"control socket, process {pid}"


def origin_of(request: dict[str, Any], peer: tuple[str, str]) -> tuple[str, str]:
    """Return the user and the source of a request for the audit log: those that it names, or those of its client."""
    origin = request.get("origin")
    if not isinstance(origin, dict):
        return peer
    return str(origin.get("user", "")), str(origin.get("source", ""))


def _setter_of(request: dict[str, Any]) -> Setter:
    """Return the user whom parameters are stored with: the user of the broker that the origin names, or an operator."""
    origin = request.get("origin")
    if not isinstance(origin, dict) or "login" not in origin:
        return OPERATOR
    return Setter(str(origin.get("user", ""))) if origin["login"] == "password" else UNKNOWN


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            _check_unused(path)
            path.unlink()
        # Set the mode at creation, so that other users can never connect.
        mask = os.umask(0o177)
        try:
            with short_path(path) as name:
                listener.bind(name)
        finally:
            os.umask(mask)
        listener.setblocking(False)
        return listener
    except BaseException:
        listener.close()
        raise


def _check_unused(path: Path) -> None:
    """Raise `OSError` if a broker listens on the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, short_path(path) as name:
        probe.settimeout(1)
        if probe.connect_ex(name) == 0:
            raise OSError(errno.EADDRINUSE, "another broker uses this directory")


class SlicedList:
    """The items of a list, which are produced in slices and sent in parts. None stands for an excluded object."""

    def __init__(self, items: Iterator[Reply | None]) -> None:
        self._items = items
        self._part: list[bytes] = []
        self._size = 0

    def take(self) -> bool:
        """Produce items for some time, or until there are enough for a part. Return whether there are no more."""
        deadline = time.perf_counter() + MAX_SLICE_TIME
        for examined, item in enumerate(self._items, 1):
            if item is not None:
                encoded = encode_json(item)
                self._part.append(encoded)
                self._size += len(encoded)
            if examined == MAX_EXAMINED or self.is_full() or time.perf_counter() >= deadline:
                return False
        return True

    def is_full(self) -> bool:
        """Return whether there are enough items for a part."""
        return len(self._part) >= MAX_PART_ITEMS or self._size > MAX_PART_SIZE

    def part(self) -> list[bytes]:
        """Return the items since the last part, encoded."""
        part = self._part
        self._part = []
        self._size = 0
        return part


def encode_list(name: str, items: list[bytes]) -> bytes:
    """Return the line of a reply with encoded items of a list: a `part`, or the rest as the `result`."""
    return b'{"v":%d,"%s":[%s]}\n' % (VERSION, name.encode(), b",".join(items))


def _encode(answer: dict[str, ReplyValue]) -> bytes:
    return encode_json(answer) + b"\n"


def encode_error(condition: str, text: str) -> bytes:
    """Return the line of a reply with an error."""
    return _encode({"v": VERSION, "error": {"condition": condition, "text": text}})
