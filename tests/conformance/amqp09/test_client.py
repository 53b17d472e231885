"""Client rules of class connection: `leveret.client` against scripted servers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

import leveret
from leveret import sync
from leveret.client import AuthenticationFailed, ConnectionFailed
from tests.conformance.amqp09.conftest import CONFIG_AMQP09
from tests.support.broker import LeveretProcess, free_port
from tests.support.peers.amqp09 import HEADER_AMQP09, Peer
from tests.support.peers.connection import TIMEOUT

Connect = Callable[..., int]


class ServerSide(Peer):
    """A connection of a client, seen from the server."""

    def __init__(self, accepted: socket.socket) -> None:
        self.adopt(accepted)


class Server:
    """Accepts one connection, and runs a script for it in a thread. An exception in the script fails the test."""

    def __init__(self, script: Callable[[ServerSide], None]) -> None:
        self.script = script
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(TIMEOUT)
        self.url = f"amqp://guest:guest@127.0.0.1:{self.listener.getsockname()[1]}"
        self.failed: list[BaseException] = []
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        try:
            accepted, _ = self.listener.accept()
            with accepted:
                peer = ServerSide(accepted)
                assert peer.read_bytes(8) == HEADER_AMQP09
                self.script(peer)
        except BaseException as error:
            self.failed.append(error)

    def __enter__(self) -> Server:
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.listener.close()
        self.thread.join(2 * TIMEOUT)
        self.listener.close()
        if kind is None and self.failed:
            raise self.failed[0]


@pytest.fixture(params=["sync", "aio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Connect over 0-9, use the connection once, and return the port that it is connected to."""

    def block(url: str, **options: Any) -> int:
        with sync.connect(url, protocol="0-9", reconnect=False, **options) as connection:
            connection.channel().ping()
            port: int = connection.parameters.port
            return port

    async def work(url: str, **options: Any) -> int:
        async with leveret.connect(url, protocol="0-9", reconnect=False, **options) as connection:
            await (await connection.channel()).ping()
            port: int = connection.parameters.port
            return port

    yield block if request.param == "sync" else lambda url, **options: asyncio.run(work(url, **options))


def start(peer: ServerSide, *, minor: int = 9, mechanisms: str = "PLAIN AMQPLAIN SCRAM-SHA-256") -> None:
    peer.send_method(
        0,
        "connection.start",
        version_major=0,
        version_minor=minor,
        server_properties={"product": "fake"},
        mechanisms=mechanisms,
        locales="en_US",
    )


@pytest.mark.rule("0-9", "connection.start.client-support")
@pytest.mark.parametrize("minor", [1, 8, 10])
def test_the_client_closes_the_socket_for_an_unsupported_version(connect: Connect, minor: int) -> None:
    def script(peer: ServerSide) -> None:
        start(peer, minor=minor)
        peer.expect_eof()

    with Server(script) as server, pytest.raises(ConnectionFailed, match=rf"version 0\.{minor}"):
        connect(server.url)


@pytest.mark.rule("0-9", "connection.start-ok.client-properties.required-fields")
def test_the_client_introduces_itself(connect: Connect) -> None:
    seen: dict[str, Any] = {}

    def script(peer: ServerSide) -> None:
        start(peer)
        seen.update(peer.expect_method(0, "connection.start-ok").client_properties)

    with Server(script) as server, pytest.raises(ConnectionFailed):
        connect(server.url, client_properties={"product": "mine"})
    for field in ("version", "platform", "copyright", "information"):
        assert isinstance(seen[field], str), field
        assert seen[field], field
    assert seen["product"] == "mine", "what the application says has precedence"


@pytest.mark.rule("0-9", "connection.start-ok.mechanism.security")
@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN", "SCRAM-SHA-256"])
def test_the_client_authenticates_with_the_configured_mechanism(connect: Connect, mechanism: str) -> None:
    chosen = []

    def script(peer: ServerSide) -> None:
        start(peer)
        chosen.append(peer.expect_method(0, "connection.start-ok").mechanism)

    with Server(script) as server, pytest.raises(ConnectionFailed):
        connect(server.url, mechanism=mechanism)
    assert chosen == [mechanism]


@pytest.mark.rule("0-9", "connection.start-ok.mechanism.security")
def test_the_client_does_not_fall_back_to_a_lower_profile(connect: Connect) -> None:
    def script(peer: ServerSide) -> None:
        start(peer, mechanisms="PLAIN AMQPLAIN")
        peer.expect_eof()  # nothing was sent, in particular no password

    with Server(script) as server, pytest.raises(AuthenticationFailed, match="SCRAM-SHA-256"):
        connect(server.url, mechanism="SCRAM-SHA-256")


@pytest.mark.rule("0-9", "connection.redirect.usage")
def test_the_client_follows_a_redirect(connect: Connect, broker: LeveretProcess, tmp_path: Path) -> None:
    config = CONFIG_AMQP09 + f'redirect = "{broker.host}:{broker.port}"\nknown_hosts = ["127.0.0.1:{free_port()}"]\n'
    with LeveretProcess(tmp_path / "redirecting", config=config).start() as redirecting:
        assert connect(redirecting.url()) == broker.port


@pytest.mark.rule("0-9", "connection.redirect.usage")
def test_the_client_tries_a_known_host_if_the_redirect_fails(
    connect: Connect, broker: LeveretProcess, tmp_path: Path
) -> None:
    config = CONFIG_AMQP09 + (
        f'redirect = "127.0.0.1:{free_port()}"\nknown_hosts = ["127.0.0.1:{free_port()}", "{broker.host}:{broker.port}"]\n'
    )
    with LeveretProcess(tmp_path / "redirecting", config=config).start() as redirecting:
        assert connect(redirecting.url()) == broker.port


@pytest.mark.rule("0-9", "connection.redirect.usage")
def test_the_error_reports_that_no_host_is_available(connect: Connect, tmp_path: Path) -> None:
    nowhere = [free_port(), free_port()]
    config = CONFIG_AMQP09 + f'redirect = "127.0.0.1:{nowhere[0]}"\nknown_hosts = ["127.0.0.1:{nowhere[1]}"]\n'
    with (
        LeveretProcess(tmp_path / "redirecting", config=config).start() as redirecting,
        pytest.raises(ConnectionFailed, match=str(nowhere[1])),
    ):
        connect(redirecting.url())
