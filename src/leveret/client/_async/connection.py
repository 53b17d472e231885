"""Connections, async API: `leveret.connect`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal, Unpack, overload

from leveret.client._async.amqp09 import Amqp09Channel
from leveret.client._async.base_connection import BaseConnection
from leveret.client._async.channel import Channel
from leveret.client._async.driver import Driver
from leveret.client._async.opening import Opening
from leveret.client._async.receiver import Receiver
from leveret.client._async.sender import Sender
from leveret.client._async.session import Session
from leveret.client._async.transaction import Transaction
from leveret.client.amqp10 import Filters
from leveret.client.engine.amqp09.connection import Amqp09ConnectionCore
from leveret.client.engine.amqp091.connection import ConnectionCore
from leveret.client.engine.amqp10.connection.connection import Amqp10ConnectionCore
from leveret.client.engine.amqp10.transactions import TransactionCore
from leveret.client.options import ConnectOptions, Option
from leveret.client.parameters import Parameters
from leveret.client.timeouts import DEFAULT
from leveret.client.url import parse_hosts
from leveret.wire.amqp10.values import Value as WireValue


class Connection(BaseConnection):
    """A connection of AMQP 0-9-1 that reconnects when it is lost and restores its state.

    See docs/client/reconnecting.md. Tasks may share it and its channels.

    Attributes:
        driver: Socket and background tasks of the connection.
    """

    _core: ConnectionCore

    def __init__(self, driver: Driver, core: ConnectionCore) -> None:
        super().__init__(driver, core)

    @property
    def core(self) -> ConnectionCore:
        """The engine of the connection."""
        return self._core

    def channel(self, *, confirms: bool = True, prefetch: int = 0, transactional: bool = False) -> Opening[Channel]:
        """Open a channel. Await the result, or enter it with `async with`.

        While the connection is lost, the call waits for the next one, within the connection's `timeout`.

        Args:
            confirms: Publishes wait for the server's confirm. Ignored on a transactional channel.
            prefetch: Maximum number of unacked messages of all consumers together (`basic.qos` with global); 0 for a limit
                per consumer.
            transactional: Publishes and acknowledgements take effect when they are committed.
        """

        async def open_once() -> Channel:
            with self.driver.lock:
                core = self._core.new_channel(confirms and not transactional, transactional)
                channel = Channel(self, core)
                core.limit(prefetch)
            await self._open_core(core)
            return channel

        async def open() -> Channel:
            return await self._open(open_once)

        return Opening(open)

    def open_channel(self, *, confirms: bool = True, transactional: bool = False) -> Opening[Channel]:
        """Open a channel; see `channel`."""
        return self.channel(confirms=confirms, transactional=transactional)


class Amqp09Connection(Connection):
    """An AMQP 0-9 connection: a `Connection` whose channels add the operations of AMQP 0-9."""

    _core: Amqp09ConnectionCore

    def __init__(self, driver: Driver, core: Amqp09ConnectionCore) -> None:
        super().__init__(driver, core)

    @property
    def core(self) -> Amqp09ConnectionCore:
        """The engine of the connection."""
        return self._core

    def channel(self, *, confirms: bool = True, prefetch: int = 0, transactional: bool = False) -> Opening[Amqp09Channel]:
        """Open a channel; otherwise as `Connection.channel`."""

        async def open_once() -> Amqp09Channel:
            with self.driver.lock:
                core = self._core.new_channel(confirms and not transactional, transactional)
                channel = Amqp09Channel(self, core)
                core.limit(prefetch)
            await self._open_core(core)
            return channel

        async def open() -> Amqp09Channel:
            return await self._open(open_once)

        return Opening(open)


class Amqp10Connection(BaseConnection):
    """A connection of AMQP 1.0 that reconnects when it is lost and restores its state.

    See docs/client/reconnecting.md. Tasks may share it, its sessions and its links.

    Attributes:
        driver: Socket and background tasks of the connection.
    """

    _core: Amqp10ConnectionCore

    def __init__(self, driver: Driver, core: Amqp10ConnectionCore) -> None:
        super().__init__(driver, core)

    @property
    def core(self) -> Amqp10ConnectionCore:
        """The engine of the connection."""
        return self._core

    def session(self, *, confirms: bool = True, transactional: bool = False) -> Opening[Session]:
        """Begin a session. Await the result, or enter it with `async with`.

        While the connection is lost, the call waits for the next one, within the connection's `timeout`.

        Args:
            confirms: Publishes by name wait for their outcome; otherwise they are sent settled. Ignored if transactional.
            transactional: Publishes and acknowledgements take effect when they are committed.
        """

        async def open_once() -> Session:
            with self.driver.lock:
                core = self._core.new_channel(confirms and not transactional, transactional)
                session = Session(self, core)
            await self._open_core(core)
            return session

        async def open() -> Session:
            return await self._open(open_once)

        return Opening(open)

    def open_channel(self, *, confirms: bool = True, transactional: bool = False) -> Opening[Session]:
        """Begin a session; see `session`."""
        return self.session(confirms=confirms, transactional=transactional)

    def sender(
        self,
        address: str | None,
        *,
        name: str = "",
        window: int = 200,
        settled: bool = False,
        settle_second: bool = False,
        durable: bool = False,
        dynamic: bool = False,
        properties: Mapping[str, WireValue] | None = None,
        capabilities: tuple[str, ...] = (),
    ) -> Opening[Sender]:
        """Attach a sender on its own session; otherwise as `Session.sender`."""
        options: dict[str, Option] = {
            "name": name,
            "window": window,
            "settled": settled,
            "settle_second": settle_second,
            "durable": durable,
            "dynamic": dynamic,
            "properties": properties,
            "capabilities": capabilities,
        }

        async def open() -> Sender:
            session = await self._open_link_session()
            try:
                return await session.sender(address, **options)
            except BaseException:
                with self.driver.lock:
                    session.core.abandon()
                raise

        return Opening(open)

    def receiver(
        self,
        address: str | None,
        *,
        name: str = "",
        prefetch: int = 100,
        filters: Filters | None = None,
        browse: bool = False,
        durable: bool = False,
        settled: bool = False,
        settle_second: bool = False,
        dynamic: bool = False,
        properties: Mapping[str, WireValue] | None = None,
        capabilities: tuple[str, ...] = (),
    ) -> Opening[Receiver]:
        """Attach a receiver on its own session; otherwise as `Session.receiver`."""
        options: dict[str, Option] = {
            "name": name,
            "prefetch": prefetch,
            "filters": filters,
            "browse": browse,
            "durable": durable,
            "settled": settled,
            "settle_second": settle_second,
            "dynamic": dynamic,
            "properties": properties,
            "capabilities": capabilities,
        }

        async def open() -> Receiver:
            session = await self._open_link_session()
            try:
                return await session.receiver(address, **options)
            except BaseException:
                with self.driver.lock:
                    session.core.abandon()
                raise

        return Opening(open)

    async def _open_link_session(self) -> Session:
        session = await self.session()
        session.core.link_scoped = True
        return session

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Run a transaction, as in `async with connection.transaction() as tx`.

        The messages sent and the deliveries settled in the transaction are committed at the end of the block, or rolled
        back if the block raises.
        """
        await self.driver.wait_open()
        driver = self.driver
        with driver.lock:
            core = TransactionCore(self._core.new_channel(True, False))
            core.session.internal = True
        try:
            await driver.run(core.begin(), DEFAULT, "a declare")
        except BaseException:
            with driver.lock:
                core.session.abandon()
            raise
        async with Transaction(self, core) as transaction:
            yield transaction


@overload
def connect(
    url: str | Sequence[str] = "amqp://", *, protocol: Literal["0-9-1"] | None = None, **options: Unpack[ConnectOptions]
) -> Opening[Connection]: ...


@overload
def connect(
    url: str | Sequence[str] = "amqp://", *, protocol: Literal["0-9"], **options: Unpack[ConnectOptions]
) -> Opening[Amqp09Connection]: ...


@overload
def connect(
    url: str | Sequence[str] = "amqp://", *, protocol: Literal["1.0"], **options: Unpack[ConnectOptions]
) -> Opening[Amqp10Connection]: ...


@overload
def connect(
    url: str | Sequence[str] = "amqp://", *, protocol: str | None, **options: Unpack[ConnectOptions]
) -> Opening[Connection | Amqp10Connection]: ...


def connect(
    url: str | Sequence[str] = "amqp://", *, protocol: str | None = None, **options: Unpack[ConnectOptions]
) -> Opening[Connection | Amqp10Connection]:
    """Connect to a server, or to the first of several that answers. The default is localhost, as guest.

        async with leveret.connect("amqp://localhost") as connection:
            ...

    The options are those of `leveret.client.parameters.Parameters`; they may also be part of the URL's query.

    Args:
        url: URL, or several URLs to try in order.
        protocol: Protocol, which decides the type of the connection: "0-9-1", the default (`Connection`), "0-9"
            (`Amqp09Connection`) or "1.0" (`Amqp10Connection`). "auto" uses the protocol that the URL selects, otherwise
            0-9-1, or 1.0 if the server speaks only 1.0.
        **options: Other options.

    Raises:
        InvalidUrl: The URL or an option is invalid. Raised immediately.
        ConnectionFailed: The client could not connect. Raised when the result is awaited.
    """
    hosts = parse_hosts(url, protocol, options)

    async def open() -> Connection | Amqp10Connection:
        return await open_connection(hosts)

    return Opening(open)


async def open_connection(hosts: Sequence[Parameters]) -> Connection | Amqp10Connection:
    """Return a connection to the first host that answers. All have the same protocol."""
    driver = Driver(hosts)
    await driver.open()
    core = driver.core
    if isinstance(core, Amqp10ConnectionCore):
        return Amqp10Connection(driver, core)
    if isinstance(core, Amqp09ConnectionCore):
        return Amqp09Connection(driver, core)
    assert isinstance(core, ConnectionCore)
    return Connection(driver, core)
