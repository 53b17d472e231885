"""Connections between the nodes of a cluster: for clients whose shard is in another node, and for management.

The node of a client runs the handshake with it, connects to the node of its shard, and relays. The shard gets the accepted
connection as if the client had connected there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from leveret.cluster.node_handshake import (
    Accepted,
    Answering,
    Connect,
    Control,
    LinkFailed,
    Mismatch,
    Moved,
    Refusal,
    Requested,
    call,
    refuse,
)
from leveret.cluster.relay import Relay
from leveret.cluster.streams import CHUNK, Streams, open_control
from leveret.cluster.tls import begins_with_tls, encrypt, tls_failure
from leveret.server.listener import Listener
from leveret.storage.cluster import LINK_FORMAT

if TYPE_CHECKING:
    from leveret.cluster.front_session import Target
    from leveret.protocols.adoption import Adoption
    from leveret.security.tls import MutualTls
    from leveret.server.transport import SocketPeer

logger = logging.getLogger("leveret.cluster")

# Seconds for the handshake at the node that is called.
HANDSHAKE_TIMEOUT: Final = 5.0
# Seconds for the owner of a shard to accept a client, and for a node to accept a request for a control socket.
CONNECT_TIMEOUT: Final = 2.0
CONTROL_TIMEOUT: Final = 5.0
# Seconds for a node to accept or refuse a connection that asks whether it still listens.
LISTENING_TIMEOUT: Final = 0.1
# Maximum number of connections in the handshake; a new one replaces the oldest. Each node has few at a time.
MAX_UNAUTHENTICATED: Final = 256
# Maximum number of handshakes with a node at a time. All clients of a node that has failed come back at once.
MAX_CALLS: Final = 8
BACKLOG: Final = 1024
# Seconds between checks whether a listener that ran out of file descriptors may continue.
LISTENER_INTERVAL: Final = 1.0
# Seconds without data before the system checks whether the other node still answers, between two checks, and their number.
# Not TCP_USER_TIMEOUT: it also ends connections to nodes that answer, but whose clients do not read.
KEEPALIVE_IDLE: Final = 1
KEEPALIVE_INTERVAL: Final = 1
KEEPALIVE_COUNT: Final = 2
# Seconds between warnings about handshakes that failed, at a node or with a node.
REPORT_INTERVAL: Final = 10.0
TLS_EXPECTED: Final = "expected 'cluster.tls.cert' in all nodes or in none"


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """Another node.

    Attributes:
        name: Its name.
        address: Where it listens for nodes, as "HOST:PORT".
        incarnation: The run of its process.
    """

    name: str
    address: str
    incarnation: str = ""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT", in which an IPv6 host has brackets. Raises `ValueError`."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """Return "HOST:PORT", with brackets for IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _prepare(sock: socket.socket) -> None:
    """Set the options of a connection between nodes."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)


class NodeServer:
    """Listener for the other nodes.

    Args:
        secret: The secret of the cluster.
        name: The name of this node.
        target: Returns the shard with a number if this node owns it in this epoch or a later one, else None.
        control: Returns the path of the control socket of a shard of this node, or of the node for None. Returns None if
            this node does not have the shard.
        tls: The certificates; None without TLS.

    Attributes:
        refused: The number of handshakes that failed.
    """

    def __init__(
        self,
        secret: bytes,
        name: str,
        target: Callable[[int, int], Target | None],
        control: Callable[[int | None], Path | None],
        tls: MutualTls | None = None,
    ) -> None:
        self.refused = 0
        self._tls = tls
        self._secret = secret
        self._name = name
        self._target = target
        self._control = control
        self._listener: Listener | None = None
        self._checks: asyncio.Task[None] | None = None
        # Connections in the handshake, oldest first, and the control connections.
        self._unauthenticated: dict[asyncio.Task[None], None] = {}
        self._pipes: set[asyncio.Task[None]] = set()
        # The number of the last client. Those of clients of this node are negative.
        self._last_number = 0
        self._report_due = 0.0

    async def start(self, host: str, port: int) -> str:
        """Listen, and return the bound address as "HOST:PORT". Raises `OSError`."""
        loop = asyncio.get_running_loop()
        # asyncio resolves the address and binds the socket.
        server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        listening = server.sockets[0].dup()
        server.close()
        listener = Listener(loop, listening, self._take)
        try:
            listener.start(BACKLOG)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._checks = loop.create_task(_check(listener))
        return join_address(*listener.address)

    async def stop(self) -> None:
        """Close the listener, the handshakes and the control connections. Clients stay connected to their shards."""
        if self._listener is not None:
            self._listener.close()
        tasks = [*self._unauthenticated, *self._pipes, *([] if self._checks is None else [self._checks])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, sock: socket.socket, host: str) -> None:
        """Begin the handshake with a connection."""
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(self._serve(sock, host))
        self._unauthenticated[task] = None
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._unauthenticated.pop(task, None)
        self._pipes.discard(task)

    async def _serve(self, sock: socket.socket, host: str) -> None:
        with contextlib.ExitStack() as opened:
            opened.enter_context(sock)
            answering: Answering | None = None
            try:
                _prepare(sock)
                async with asyncio.timeout(HANDSHAKE_TIMEOUT):
                    refusal = ""
                    if await begins_with_tls(sock):
                        sock = opened.enter_context(await self._encrypt(sock))
                    elif self._tls is not None:
                        refusal = f"node '{self._name}' accepts TLS only; {TLS_EXPECTED}"
                    answering = Answering(sock, self._secret, self._name, refusal)
                    requested = await answering.take_request()
            except EOFError:
                return  # another node has asked whether this one listens
            except (LinkFailed, OSError) as error:
                caller = "" if answering is None else answering.caller
                self._report(host, caller, tls_failure(error) or str(error) or "it was too slow")
                return
            task = asyncio.current_task()
            assert task is not None
            self._unauthenticated.pop(task, None)
            self._pipes.add(task)
            with contextlib.suppress(OSError):
                await self._answer(sock, answering, requested)

    async def _encrypt(self, sock: socket.socket) -> socket.socket:
        if self._tls is None:
            # A socket with unread input would be reset before the caller has read the answer.
            await asyncio.get_running_loop().sock_recv(sock, CHUNK)
            raise await refuse(sock, f"it uses TLS, which node '{self._name}' does not; {TLS_EXPECTED}")
        return await encrypt(_detached(sock), self._tls.server)

    async def _answer(self, sock: socket.socket, answering: Answering, requested: Requested) -> None:
        match requested:
            case Connect():
                target = self._target(requested.shard, requested.epoch)
                if target is None:
                    await answering.answer(Moved())
                elif target.unavailable:
                    await answering.answer(Refusal(target.unavailable))
                else:
                    await answering.answer(Accepted())
                    self._last_number += 1
                    requested.adoption.connection = self._last_number
                    requested.adoption.node = answering.caller
                    target.hand_over(_detached(sock), requested.adoption)
            case Control():
                path = self._control(requested.shard)
                if path is None:
                    await answering.answer(Moved())
                    return
                try:
                    near = await open_control(path)
                except OSError as error:
                    await answering.answer(Refusal(f"its control socket does not answer: {error}"))
                    return
                with contextlib.closing(near[1]):
                    await answering.answer(Accepted())
                    await _pipe(near, await asyncio.open_connection(sock=_detached(sock), limit=CHUNK))

    def _report(self, host: str, caller: str, reason: str) -> None:
        self.refused += 1
        now = asyncio.get_running_loop().time()
        if now >= self._report_due:
            self._report_due = now + REPORT_INTERVAL
            named = f"node {caller!r} at {host}" if caller else host
            logger.warning("refused a connection for nodes from %s: %s", named, reason)


def _detached(sock: socket.socket) -> socket.socket:
    """Return the socket as another object; closing the given one has no effect any more."""
    return socket.socket(fileno=sock.detach())


async def _check(listener: Listener) -> None:
    while True:
        await asyncio.sleep(LISTENER_INTERVAL)
        listener.check()


async def _pipe(one: Streams, other: Streams) -> None:
    """Copy the bytes of two streams in both directions until both have ended, or one fails."""
    writers = (one[1], other[1])
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(one[0], other[1]))
            group.create_task(_copy(other[0], one[1]))
    except* OSError as errors:
        logger.debug("a control connection has failed: %s", errors.exceptions[0])
    finally:
        for writer in writers:
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


class RelayedClient(Relay):
    """The relay between a client and its shard in another node.

    Args:
        client: The client's socket, of which nothing is read at the moment.
        protocol: The protocol, a result of `detect`.
        route: The connection to the other node.
    """

    def __init__(self, client: SocketPeer, protocol: int, route: Route) -> None:
        self._route = route
        super().__init__(client, protocol, route.sock)

    def shard_lost(self) -> None:
        """Close the client's connection, unless the shard has closed it or the client is gone."""
        self._route.end()
        super().shard_lost()


class Route:
    """A connection to the node that owns the shard of a client.

    Args:
        routes: The routes to the shard.
        node: The name of the node.
    """

    def __init__(self, routes: set[Route], node: str, sock: socket.socket) -> None:
        self.node = node
        self.sock = sock
        self._routes = routes
        self._relay: RelayedClient | None = None

    def relay(self, client: SocketPeer, protocol: int) -> None:
        """Relay between the client and the shard from now on.

        Args:
            client: The client's socket, of which nothing is read at the moment.
            protocol: The protocol, a result of `detect`.
        """
        self._routes.add(self)
        self._relay = RelayedClient(client, protocol, self)

    def cut(self, reason: str) -> None:
        """End the relay, and close the client's connection for this reason."""
        if self._relay is not None:
            self._relay.cut(reason)

    def end(self) -> None:
        """Handle the end of the relay."""
        self._relay = None
        self._routes.discard(self)


class NodeClient:
    """Connections to other nodes.

    Args:
        secret: The secret of the cluster.
        name: The name of this node.
        tls: The certificates; None without TLS.
        link_format: Returns the format of messages between nodes that is in use.
    """

    def __init__(
        self,
        secret: bytes,
        name: str,
        tls: MutualTls | None = None,
        link_format: Callable[[], int] = lambda: LINK_FORMAT,
    ) -> None:
        self._tls = tls
        self._link_format = link_format
        self._secret = secret
        self._name = name
        self._routes: dict[int, set[Route]] = {}
        # The names of the nodes, by shard: of attempts to connect, which their timeouts end, and of control connections.
        self._attempts: defaultdict[int | None, dict[asyncio.Timeout, str]] = defaultdict(dict)
        self._controls: defaultdict[int | None, WeakKeyDictionary[asyncio.StreamWriter, str]]
        self._controls = defaultdict(WeakKeyDictionary)
        # By the names of nodes: the limit on handshakes, and the time of the next warning.
        self._calls: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(MAX_CALLS))
        self._report_due: defaultdict[str, float] = defaultdict(float)

    async def connect(self, node: NodeInfo, shard: int, epoch: int, adoption: Adoption) -> Route:
        """Connect a client to its shard.

        Args:
            node: The node that owns the shard.
            shard: The shard.
            epoch: The epoch of the owner.
            adoption: The client.

        Returns:
            The route, whose `relay` must be called in the same turn.

        Raises:
            LinkFailed: The node does not answer, or does not own the shard.
        """
        sock = await self._call(node, Connect(shard, epoch, adoption), CONNECT_TIMEOUT)
        return Route(self._routes.setdefault(shard, set()), node.name, sock)

    async def open_control(self, node: NodeInfo, shard: int | None) -> Streams:
        """Connect to the control socket of a shard in another node, or to that of the node for None.

        Raises:
            LinkFailed: The node does not answer, or does not own the shard.
        """
        sock = await self._call(node, Control(shard), CONTROL_TIMEOUT)
        reader, writer = await asyncio.open_connection(sock=sock, limit=CHUNK)
        self._controls[shard][writer] = node.name
        return reader, writer

    async def reaches(self, node: NodeInfo) -> bool:
        """Return whether a node accepts connections of this one."""
        try:
            _, writer = await self.open_control(node, None)
        except LinkFailed:
            return False
        writer.close()
        return True

    def close_relays(self, shard: int, except_node: str) -> None:
        """Close the connections to nodes that do not own a shard any more, and end the attempts to connect to them.

        Args:
            shard: The shard.
            except_node: The name of its owner; "" if it has none.
        """
        for route in list(self._routes.get(shard, ())):
            if route.node != except_node:
                route.cut(f"node '{route.node}' does not own shard {shard} any more")
        for limit, node in self._attempts[shard].items():
            if node != except_node:
                _expire(limit)
        for writer, node in list(self._controls[shard].items()):
            if node != except_node:
                writer.transport.abort()

    def stop(self, reason: str) -> None:
        """Close all clients for this reason, and end all other connections."""
        for route in [route for routes in self._routes.values() for route in routes]:
            route.cut(reason)
        for limit in [limit for attempts in self._attempts.values() for limit in attempts]:
            _expire(limit)
        for writer in [writer for writers in self._controls.values() for writer in writers]:
            writer.transport.abort()

    async def _call(self, node: NodeInfo, requested: Requested, timeout: float) -> socket.socket:
        """Connect to a node and make a request. Returns the socket for the stream that follows."""
        # Not of the time in the queue: all clients of a node that was killed come back at once.
        limit = asyncio.timeout(None)
        attempts = self._attempts[requested.shard]
        attempts[limit] = node.name
        try:
            async with limit, self._calls[node.name]:
                if limit.when() is None:  # not expired meanwhile
                    limit.reschedule(asyncio.get_running_loop().time() + timeout)
                sock = await self._dial(node.address)
                try:
                    await call(sock, self._secret, self._name, node.name, requested, self._link_format())
                except BaseException:
                    sock.close()
                    raise
                return sock
        except TimeoutError:
            self._report(node, "it does not answer")
            raise LinkFailed(f"node '{node.name}' does not answer") from None
        except LinkFailed as error:
            if isinstance(error, Mismatch):
                self._report(node, str(error))
            raise LinkFailed(f"node '{node.name}' refuses the connection: {error}") from None
        except (OSError, ValueError) as error:
            hint = "" if self._tls is None else "; its log may say why"
            self._report(node, tls_failure(error) or f"{error}{hint}")
            raise LinkFailed(f"node '{node.name}' cannot be reached") from None
        finally:
            del attempts[limit]

    async def _dial(self, address: str) -> socket.socket:
        """Connect to an address. Raises `OSError`, or `ValueError` if it is invalid."""
        sock = await _dial(address)
        return sock if self._tls is None else await encrypt(sock, self._tls.client, split_address(address)[0])

    def _report(self, node: NodeInfo, reason: str) -> None:
        """Log what clients are not told, but not for each of them."""
        now = asyncio.get_running_loop().time()
        if now >= self._report_due[node.name]:
            self._report_due[node.name] = now + REPORT_INTERVAL
            logger.warning("cannot connect to node %r at %s: %s", node.name, node.address, reason)


def _expire(limit: asyncio.Timeout) -> None:
    """End an attempt to connect at once."""
    if not limit.expired():
        limit.reschedule(0)


async def is_deserted(address: str) -> bool:
    """Return whether nothing listens at an address of a node, as after the end of its process."""
    try:
        async with asyncio.timeout(LISTENING_TIMEOUT):
            (await _dial(address)).close()
    except ConnectionRefusedError:
        return True
    except (TimeoutError, OSError, ValueError):
        pass
    return False


async def _dial(address: str) -> socket.socket:
    """Connect to an address. Raises `OSError`, or `ValueError` if it is invalid."""
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    error: OSError = OSError(f"no address of {host}")
    for family, kind, protocol, _, found in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            _prepare(sock)
            await loop.sock_connect(sock, found)
        except OSError as failed:
            sock.close()
            error = failed
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise error
