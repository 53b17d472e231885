"""A front and shards in one process: real servers on the event loop of a thread, joined by calls instead of links."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from leveret.broker.broker import Broker, VhostSettings
from leveret.cluster.front_session import FrontProtocols
from leveret.node.composition import header_readers
from leveret.protocols.adoption import Adoption
from leveret.protocols.amqp09.contents.policy import content_policies
from leveret.protocols.amqp09.settings import Amqp09Settings
from leveret.protocols.amqp10.settings import Amqp10Settings
from leveret.protocols.opening import Protocols
from leveret.protocols.services import Services, SessionSettings
from leveret.security.permissions import Permission
from leveret.security.scram import Keyring
from leveret.security.tags import ADMINISTRATOR
from leveret.security.users import DeclaredUser, User, UserStore
from leveret.server.server import Server
from leveret.storage.memory import MemoryLog
from tests.support.polling import DEADLINE, wait_until

Result = TypeVar("Result")
# Bytes of one packet of the link.
MAX_PACKET = 200 << 10
EVERYTHING = Permission(".*", ".*", ".*")


def make_services(vhosts: list[str], users: dict[str, DeclaredUser], settings: dict[str, Any], **options: Any) -> Services:
    broker = Broker(MemoryLog())
    broker.header_readers.update(header_readers())
    for format, policy in content_policies().items():
        broker.content_policies[format] = policy
    for name in vhosts:
        broker.add_vhost(name, VhostSettings())
    mechanisms = options.get("mechanisms", [])
    store = UserStore(keyring=Keyring(mechanisms, iterations=4096))
    store.declare(users)
    return Services(broker, store, SessionSettings(**settings), **options)


class Shard:
    """A shard, as the front reaches it. `adopted` are the adoptions, `ended` the numbers of those that have ended."""

    connect = None
    client_addresses = ("", "")
    refers = False

    def __init__(self, server: Server) -> None:
        self.unavailable = ""
        self.server = server
        self.adopted: list[Adoption] = []
        self.ended: list[int] = []
        self.elsewhere = (0, 0)

    def hand_over(self, sock: socket.socket, adoption: Adoption) -> None:
        adoption.elsewhere, adoption.elsewhere_of_user = self.elsewhere
        packet = msgspec.msgpack.encode(adoption)
        assert len(packet) < MAX_PACKET
        received = msgspec.msgpack.decode(packet, type=Adoption)
        self.adopted.append(received)
        self.server.adopt(sock, received, lambda: self.ended.append(received.connection))

    def sessions(self) -> list[Any]:
        return list(self.server.services.sessions)

    def die(self) -> None:
        """End all sockets at once, as the death of the process would."""
        for protocol in list(self.server.accepted):
            protocol.abort()


class Cluster:
    """A front with the shards of the vhosts "/" and "b", in this order.

    Attributes:
        port: The port of the front.
        front: The server of the front.
        shards: The shards by vhost.
    """

    def __init__(self, front: Server, shards: dict[str, Shard]) -> None:
        self.port = 0
        self.front = front
        self.shards = shards
        self.loop = asyncio.new_event_loop()
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever)

    def shard_of(self, vhost: str) -> Shard | None:
        return self.shards.get(vhost)

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function on the event loop."""

        async def run() -> Result:
            return function()

        return self.run(run())

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE)

    def start(self, tls: ssl.SSLContext | None) -> None:
        self._thread.start()
        self.run(self._start(tls))

    async def _start(self, tls: ssl.SSLContext | None) -> None:
        for shard in self.shards.values():
            await shard.server.start()
        await self.front.start()
        _, self.port = await self.front.listen("127.0.0.1", 0, tls)

    def stop(self) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE)
        self.loop.close()
        assert not self.errors

    async def _stop(self) -> None:
        for shard in self.shards.values():
            await shard.server.stop()
        await self.front.stop()

    def session(self, vhost: str = "/") -> Any:
        """Return the only session of a shard, when it has opened."""
        shard = self.shards[vhost]
        (found,) = wait_until(lambda: self.call(lambda: [one for one in shard.sessions() if one.opened]))
        return found

    def wait_empty(self) -> None:
        """Wait until the front has no client any more."""
        wait_until(lambda: self.call(lambda: not self.front.accepted and not self.front.services.sessions))


class _Later:
    """A placement that is known later than the protocols need it."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.shards: dict[str, Shard] = {}

    def shard_of(self, vhost: str) -> Shard | None:
        return self.shards.get(vhost)


def users() -> dict[str, DeclaredUser]:
    """`user` may do anything in both vhosts, `limited` may open only "/"."""
    permissions = {"/": EVERYTHING, "b": EVERYTHING}
    found = {
        "user": User(name="user", permissions=permissions, tags=(ADMINISTRATOR,)),
        "limited": User(name="limited", permissions={"/": EVERYTHING}),
    }
    return {name: DeclaredUser(user=user, password=name.encode()) for name, user in found.items()}


@contextmanager
def joined(
    *,
    tls: ssl.SSLContext | None = None,
    settings: dict[str, Any] | None = None,
    amqp09: Amqp09Settings | None = None,
    amqp10: Amqp10Settings | None = None,
    handshake_timeout: float = 30.0,
    patience: float = 0.0,
    prepare: Callable[[Services], None] = lambda services: None,
    **options: Any,
) -> Iterator[Cluster]:
    """Run a cluster.

    Args:
        tls: The TLS context of the listener; None for a plain one.
        settings: The settings of sessions, of all processes.
        amqp09: The settings of 0-9.
        amqp10: The settings of 1.0.
        handshake_timeout: Seconds for the handshake.
        patience: Seconds for which clients wait for an unavailable shard.
        prepare: Called with the services of each process.
        options: More options of `Services`.
    """
    own = {"heartbeat": 0, **(settings or {})}
    placement = _Later(patience)
    for number, vhost in enumerate(("/", "b")):
        services = make_services([vhost], users(), own, first_number=number + 1, number_step=2, **options)
        prepare(services)
        protocols = Protocols(services, amqp09=amqp09, amqp10=amqp10)
        placement.shards[vhost] = Shard(Server(protocols, handshake_timeout=handshake_timeout))
    services = make_services([], users(), own, **options)
    prepare(services)
    front = FrontProtocols(services, placement, amqp09=amqp09, amqp10=amqp10)
    cluster = Cluster(Server(front, handshake_timeout=handshake_timeout), placement.shards)
    cluster.start(tls)
    try:
        yield cluster
    finally:
        cluster.stop()
