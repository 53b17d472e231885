"""Opening connections: negotiation, login, and errors."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

import leveret
from leveret.client.errors import (
    AuthenticationFailed,
    ConnectionClosed,
    ConnectionFailed,
    Error,
    InvalidUrl,
    ProtocolMismatch,
    Timeout,
    TlsFailed,
    VhostRefused,
)
from leveret.client.events import Connected, Event
from tests.client.conftest import Connect
from tests.client.fake import Peer, fake_server
from tests.client.tls import authority, secure, tls_url
from tests.security.certificates import Authority
from tests.support.broker import Broker, LeveretProcess, basic_config, free_port

__all__ = ["authority", "secure"]


async def test_negotiated_limits(connect: Connect, server: Broker) -> None:
    connection = await connect(
        name="a name", client_properties={"ours": {"x": 1}}, heartbeat=7, frame_max=8192, channel_max=9
    )
    engine = connection.core.engine
    assert (engine.heartbeat, engine.frame_max, engine.channel_max) == (7, 8192, 9)
    assert connection.server_properties["product"] == {"leveret": "Leveret", "rabbitmq": "RabbitMQ"}[server.kind]
    assert connection.is_open and not connection.is_closed and connection.blocked == ""
    assert (connection.parameters.host, connection.parameters.port) == (server.host, server.port)
    await connection.close()
    assert connection.is_closed and not connection.is_open
    await connection.close()
    await connection.wait_closed()
    for call in (connection.channel(), connection.channel(confirms=False)):
        with pytest.raises(ConnectionClosed):
            await call


async def test_without_heartbeats(connect: Connect) -> None:
    assert (await connect(heartbeat=0)).core.engine.heartbeat == 0


async def test_context_manager(server: Broker) -> None:
    async with leveret.connect(server.url()) as connection, connection.channel() as channel:
        assert (await channel.declare_queue(exclusive=True)).name
    assert connection.is_closed and not channel.is_open


async def test_vhosts(connect: Connect, server: Broker) -> None:
    for vhost in ("/", "interop", "vhöst/ü"):
        connection = await connect(server.url(vhost=vhost))
        assert connection.parameters.vhost == vhost
        assert (await (await connection.channel()).declare_queue(exclusive=True)).name
    assert (await connect(f"amqp://guest:guest@{server.host}:{server.port}")).parameters.vhost == "/"


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
async def test_mechanisms(connect: Connect, server: Broker, mechanism: str) -> None:
    assert (await connect(mechanism=mechanism)).is_open
    with pytest.raises(AuthenticationFailed) as caught:
        await connect(server.url(password="wrong"), mechanism=mechanism)
    assert caught.value.reply_code == 403 and mechanism in str(caught.value) and "'guest'" in str(caught.value)
    assert "wrong" not in str(caught.value)


async def test_mechanism_that_is_not_offered(connect: Connect) -> None:
    for mechanism in ("EXTERNAL", "ANONYMOUS"):
        with pytest.raises(AuthenticationFailed, match=f"PLAIN.*not {mechanism}"):
            await connect(mechanism=mechanism)


async def test_anonymous(dial: Connect, tmp_path: Path) -> None:
    config = basic_config() + '\n[auth]\nmechanisms = ["PLAIN", "ANONYMOUS"]\nanonymous_user = "guest"\n'
    with LeveretProcess(tmp_path, config=config).start() as broker:
        connection = await dial(broker.url(), mechanism="ANONYMOUS")
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await channel.publish(b"x", queue.name, user_id="guest")
        await connection.close()


async def test_unknown_user_or_vhost(connect: Connect, server: Broker) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        await connect(server.url(user="unknown"))
    assert (caught.value.host, caught.value.port, caught.value.reply_code) == (server.host, server.port, 403)
    for vhost in ("nowhere", "interop/x"):
        with pytest.raises(VhostRefused) as refused:
            await connect(server.url(vhost=vhost))
        assert refused.value.reply_code in (530, 403) and repr(vhost) in str(refused.value)
    with pytest.raises(VhostRefused):
        await connect(server.url(user="limited", password="secret"))


async def test_unreachable_port_or_host(dial: Connect) -> None:
    port = free_port()
    with pytest.raises(ConnectionFailed) as caught:
        await dial(f"amqp://127.0.0.1:{port}")
    assert type(caught.value) is ConnectionFailed
    assert (caught.value.host, caught.value.port) == ("127.0.0.1", port)
    assert str(caught.value) == f"cannot connect to 127.0.0.1:{port}: Connection refused"
    with pytest.raises(ConnectionFailed) as caught:
        await dial("amqp://no-such-host.invalid")
    assert "no-such-host.invalid" in str(caught.value) and "Unknown error" not in str(caught.value)


async def test_a_host_with_several_addresses_refuses(dial: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()

    def resolve(*_: object, **__: object) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.1", "127.0.0.2")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(ConnectionFailed) as caught:
        await dial(f"amqp://broker.example.com:{port}")
    assert str(caught.value) == f"cannot connect to broker.example.com:{port}: Connection refused"


async def test_invalid_options() -> None:
    invalid: tuple[tuple[str | list[str], dict[str, Any]], ...] = (
        ("http://localhost", {}),
        ("amqp://localhost?hartbeat=5", {}),
        ("amqp://", {"hartbeat": 1}),
        ("amqp://localhost:x", {}),
        ("amqp://", {"heartbeat": -1}),
        ([], {}),
        ("amqp://localhost?protocol=0-9", {}),
        ("amqp://localhost?protocol=1.0", {}),
        ("amqp://", {"protocol": "2.0"}),
        (["amqp://a?protocol=1.0", "amqp://b?protocol=0-9-1"], {"protocol": "auto"}),
    )
    for url, options in invalid:
        with pytest.raises(InvalidUrl):
            leveret.connect(url, **options)


# Other protocols


async def _http(peer: Peer) -> None:
    await peer.reader.read(8)
    peer.writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


async def _tls(peer: Peer) -> None:
    await peer.reader.read(8)
    for byte in b"\x15\x03\x01\x00\x02\x02\x16":
        peer.writer.write(bytes([byte]))
        await peer.writer.drain()


async def _ssh(peer: Peer) -> None:
    peer.writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
    await peer.reader.read(100)


async def _smtp(peer: Peer) -> None:
    peer.writer.write(b"2")
    await peer.reader.read(100)
    await asyncio.Event().wait()


async def _amqp_1(peer: Peer) -> None:
    await peer.reader.read(8)
    peer.writer.write(b"AMQP\x00\x01\x00\x00")


async def _amqp_1_sasl(peer: Peer) -> None:
    await peer.reader.read(8)
    for byte in b"AMQP\x03\x01\x00\x00":
        peer.writer.write(bytes([byte]))
        await peer.writer.drain()
        await asyncio.sleep(0.001)
    await peer.reader.read(100)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (_http, r"^no AMQP server at 127.0.0.1:\d+: the port speaks HTTP; expected the port of an AMQP server$"),
        (_tls, r"^no AMQP server at 127.0.0.1:\d+: the port uses TLS; expected amqps://$"),
        (_ssh, r"^no AMQP server at 127.0.0.1:\d+; expected one, or amqps:// if the port uses TLS$"),
        (_smtp, r"^no AMQP server at 127.0.0.1:\d+; expected one, or amqps:// if the port uses TLS$"),
        (_amqp_1, "AMQP 1.0"),
        (_amqp_1_sasl, "with SASL"),
    ],
)
async def test_other_protocols(dial: Connect, script: Callable[[Peer], Awaitable[None]], says: str) -> None:
    async with fake_server(script) as url:
        begun = time.monotonic()
        with pytest.raises(ProtocolMismatch, match=says) as caught:
            await dial(url, connect_timeout=100)
        assert time.monotonic() - begun < 60
        assert (caught.value.host, caught.value.port) == ("127.0.0.1", int(url.split(":")[-1].strip("/")))


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"amqp://127.0.0.1:{listener.getsockname()[1]}"


async def _greets_only(peer: Peer) -> None:
    await peer.greet()
    await peer.closing()


async def test_silent_server(dial: Connect) -> None:
    async with silent() as url:
        for scheme in ("amqp", "amqps"):
            with pytest.raises(ConnectionFailed, match="connect_timeout"):
                await dial(url.replace("amqp", scheme), connect_timeout=0.2)
    async with fake_server(_greets_only) as url:
        with pytest.raises(ConnectionFailed, match="connect_timeout"):
            await dial(url, connect_timeout=0.2)


async def _hangs_up(peer: Peer) -> None:
    pass


async def _garbage(peer: Peer) -> None:
    await peer.reader.read(8)
    peer.writer.write(b"\x01\x00\x00\x00\x00\x00\x05hello?")
    await peer.closing()


async def _stops_while_logging_in(peer: Peer) -> None:
    await peer.greet()
    await peer.expect("Connection.StartOk")


async def _is_full(peer: Peer) -> None:
    await peer.greet()
    await peer.tune()
    await peer.expect("Connection.Open")
    peer.send(commands.Connection.Close(506, "RESOURCE_ERROR - too many", 10, 40))
    await peer.expect("Connection.CloseOk")


async def _starts_twice(peer: Peer) -> None:
    await peer.greet()
    peer.send(commands.Connection.Start(server_properties={}))
    await peer.closing()


@pytest.mark.parametrize(
    ("script", "kind", "says"),
    [
        (_hangs_up, ConnectionFailed, "before it was open"),
        (_garbage, ConnectionFailed, "broke the protocol"),
        (_stops_while_logging_in, AuthenticationFailed, "without giving a reason"),
        (_is_full, ConnectionFailed, "506"),
        (_starts_twice, ConnectionFailed, "protocol"),
    ],
)
async def test_servers_that_fail_the_handshake(
    dial: Connect, script: Callable[[Peer], Awaitable[None]], kind: type[Error], says: str
) -> None:
    async with fake_server(script) as url:
        with pytest.raises(kind, match=says) as caught:
            await dial(url)
        assert type(caught.value) is kind


async def test_challenge(dial: Connect) -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("Connection.StartOk")
        peer.send(commands.Connection.Secure("more?"))
        _, answer = await peer.expect("Connection.SecureOk")
        assert answer.response
        peer.send(commands.Connection.Tune(5, 4096, 0))
        await peer.expect("Connection.Open")
        peer.send(commands.Connection.OpenOk())
        await peer.closing()

    async with fake_server(script) as url:
        await (await dial(url)).close()


# Several hosts


async def test_first_host_that_answers(dial: Connect, server: Broker) -> None:
    events: list[Event] = []
    dead = f"amqp://127.0.0.1:{free_port()}"
    connection = await dial([dead, server.url(), dead], on_event=events.append)
    await asyncio.sleep(0)
    assert events == [Connected(server.host, server.port, 2, True)]
    assert connection.parameters.port == server.port
    with pytest.raises(ConnectionFailed):
        await dial([dead, dead])
    with pytest.raises(AuthenticationFailed):
        await dial([dead, server.url(password="wrong")])


# Secrets


async def test_update_secret(connect: Connect) -> None:
    connection = await connect()
    await asyncio.gather(*(connection.update_secret("guest", "it expires") for _ in range(5)))
    assert connection.parameters.password == "guest"
    assert connection.is_open


async def test_close_during_update_secret(dial: Connect) -> None:
    asked = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.handshake()
        await peer.expect("Connection.UpdateSecret")
        asked.set()
        await peer.closing()

    async with fake_server(script) as url:
        connection = await dial(url)
        updating = asyncio.create_task(connection.update_secret("new"))
        await asked.wait()
        await connection.close()
        with pytest.raises(ConnectionClosed):
            await updating
        connection = await dial(url, timeout=0.1)
        with pytest.raises(Timeout, match="update-secret"):
            await connection.update_secret("new")
        await connection.close()


# TLS


async def test_tls(dial: Connect, secure: LeveretProcess, authority: Authority) -> None:
    for options in (
        {"cafile": str(authority.path)},
        {"verify": False},
        {"tls": ssl.create_default_context(cafile=str(authority.path))},
    ):
        connection = await dial(tls_url(secure), **options)
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await channel.publish(b"x" * (2 << 20), queue.name)
        assert (await queue.get(no_ack=True)).size == 2 << 20  # type: ignore[union-attr]
        await connection.close()
    connection = await dial(tls_url(secure, "127.0.0.1"), cafile=str(authority.path), server_name="localhost")
    assert connection.is_open


async def test_untrusted_certificate(dial: Connect, secure: LeveretProcess, authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(TlsFailed, match="certificate") as caught:
        await dial(tls_url(secure))
    assert (caught.value.host, caught.value.port) == ("localhost", secure.tls_port)  # type: ignore[attr-defined]
    other = Authority(tmp_path, "other")
    with pytest.raises(TlsFailed, match="cafile"):
        await dial(tls_url(secure), cafile=str(other.path))
    with pytest.raises(TlsFailed, match="server_name"):
        await dial(tls_url(secure), cafile=str(authority.path), server_name="example.org")
    with pytest.raises(TlsFailed, match="cafile"):
        await dial(tls_url(secure), cafile=str(tmp_path / "missing.pem"))


async def test_external(dial: Connect, secure: LeveretProcess, authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("client")
    own = {"cafile": str(authority.path), "certfile": str(certificate), "keyfile": str(key)}
    connection = await dial(tls_url(secure), mechanism="EXTERNAL", **own)
    channel = await connection.channel()
    queue = await channel.declare_queue(exclusive=True)
    await channel.publish(b"x", queue.name, user_id="client")
    # There is no user of that name.
    certificate, key = authority.issue("stranger")
    own |= {"certfile": str(certificate), "keyfile": str(key)}
    with pytest.raises(AuthenticationFailed):
        await dial(tls_url(secure), mechanism="EXTERNAL", **own)
    # Signed by an untrusted authority: the server closes the connection, perhaps with a reason.
    other = Authority(tmp_path, "other")
    certificate, key = other.issue("client")
    own |= {"certfile": str(certificate), "keyfile": str(key)}
    with pytest.raises(ConnectionFailed):
        await dial(tls_url(secure), mechanism="EXTERNAL", **own)


async def test_tls_on_a_plain_port_and_the_reverse(dial: Connect, secure: LeveretProcess, server: Broker) -> None:
    with pytest.raises(TlsFailed, match="TLS"):
        await dial(f"amqps://guest:guest@{server.host}:{server.port}/", verify=False)
    with pytest.raises(ConnectionFailed) as caught:
        await dial(f"amqp://guest:guest@localhost:{secure.tls_port}/")  # type: ignore[attr-defined]
    assert "TLS" in str(caught.value) or "before it was open" in str(caught.value)
