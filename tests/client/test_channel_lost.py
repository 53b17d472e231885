"""Opening a channel on a connection whose loss has not been noticed yet."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import leveret
from leveret import sync
from leveret.client.errors import ConnectionClosed, Timeout
from tests.client.conftest import Connect
from tests.client.fake import Peer, fake_server
from tests.support.broker import Broker
from tests.support.proxy import Proxy

# The frame that opens a channel: the method channel.open of 0-9-1, the performative begin of 1.0.
OPENS = {"0-9-1": b"\0\x14\0\x0a", "1.0": b"\0\x53\x11"}


@pytest.fixture(params=sorted(OPENS))
def protocol(request: pytest.FixtureRequest, server: Broker) -> str:
    if request.param == "1.0" and server.kind != "leveret":
        pytest.skip("this RabbitMQ runs without its plugin for AMQP 1.0")
    return str(request.param)


async def test_channel_opens_on_the_next_connection(dial: Connect, proxy: Proxy, protocol: str, name: str) -> None:
    connection = await dial.open(protocol, proxy.url(), reconnect_delay=0.01)
    proxy.cut_at = OPENS[protocol]
    channel = await connection.open_channel()
    assert proxy.cut_at == b""
    assert connection.core.generation == 2
    await channel.declare_queue(name, durable=True)
    await channel.publish(b"here", name)
    message = await channel.get(name)
    assert message is not None and message.body == b"here"
    message.ack()


def test_channel_opens_on_the_next_connection_sync(proxy: Proxy, protocol: str, name: str) -> None:
    with sync.connect(proxy.url(), protocol=protocol, reconnect_delay=0.01) as connection:
        proxy.cut_at = OPENS[protocol]
        channel = connection.open_channel()
        assert proxy.cut_at == b""
        assert connection.driver.core.generation == 2
        channel.declare_queue(name, durable=True)
        channel.publish(b"here", name)
        message = channel.get(name)
        assert message is not None and message.body == b"here"
        message.ack()


async def closing_at_channel_open(peer: Peer) -> None:
    await peer.handshake()
    await peer.expect("Channel.Open")


async def test_channel_fails_without_reconnect(dial: Connect) -> None:
    async with fake_server(closing_at_channel_open) as url:
        connection = await dial(url, reconnect=False)
        with pytest.raises(ConnectionClosed):
            await connection.channel()

        def block() -> None:
            with sync.connect(url, reconnect=False) as blocked, pytest.raises(ConnectionClosed):
                blocked.channel()

        await asyncio.to_thread(block)


async def test_channel_open_times_out() -> None:
    options: dict[str, Any] = {"timeout": 0.5, "reconnect_delay": 0.01, "reconnect_max_delay": 0.01}
    async with fake_server(closing_at_channel_open) as url:
        async with leveret.connect(url, **options) as connection:
            with pytest.raises((ConnectionClosed, Timeout)):
                await connection.channel()

        def block() -> None:
            with sync.connect(url, **options) as blocked, pytest.raises((ConnectionClosed, Timeout)):
                blocked.channel()

        await asyncio.to_thread(block)


async def test_too_many_channels_is_not_a_lost_connection(dial: Connect) -> None:
    async def one_channel(peer: Peer) -> None:
        await peer.handshake(channel_max=1)
        await peer.channel()
        await peer.closing()

    async with fake_server(one_channel) as url:
        connection = await dial(url)
        await connection.channel()
        with pytest.raises(ConnectionClosed, match="channel_max"):
            await connection.channel()
        assert connection.is_open
