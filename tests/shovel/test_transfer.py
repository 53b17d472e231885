"""A shovel whose source settles messages by itself, and the order of the tasks of a shovel."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import leveret
from leveret.broker.parameters import OPERATOR
from leveret.client.errors import InvalidMessage
from leveret.client.parameters import Parameters
from leveret.management.descriptions import DYNAMIC
from leveret.security.destinations import Destinations
from leveret.security.users import UserStore
from leveret.shovel.definition import End, read_definition
from leveret.shovel.rights import Rights
from leveret.shovel.shovel import Shovel
from leveret.shovel.transfer import run
from leveret.shovel.uris import read_uri
from leveret.wire.amqp10.message import encode_data_head
from leveret.wire.amqp10.transport import Attach, Begin, Close, Detach, Flow, Transfer
from leveret.wire.amqp10.transport import End as EndFrame
from tests.client.amqp10.peer import Peer
from tests.client.fake import scripted_server


async def source(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send three messages, all but the second one settled."""
    peer = Peer(reader, writer)
    await peer.open()
    numbers = [0, 1, 2]
    while not isinstance(frame := await peer.next(), Close):
        if isinstance(frame, Begin):
            peer.output.send(Begin(0, 100, 100, frame.channel, channel=frame.channel))
        elif isinstance(frame, EndFrame):
            peer.output.send(EndFrame(channel=frame.channel))
        elif isinstance(frame, Detach):
            peer.output.send(Detach(frame.handle, True, channel=frame.channel))
        elif isinstance(frame, Attach):
            attach = Attach(frame.name, frame.handle, False, source=frame.source, initial_delivery_count=0)
            attach.channel = frame.channel
            peer.output.send(attach)
        elif isinstance(frame, Flow) and frame.handle is not None:
            while numbers:
                number = numbers.pop(0)
                tag = b"%d" % number
                payload = encode_data_head(len(tag)) + tag
                peer.output.send(
                    Transfer(frame.handle, number, tag, 0, number != 1, payload=payload, channel=frame.channel)
                )
        await peer.flush()
    peer.output.send(Close())
    await peer.flush()


async def move(port: int, **destination: str) -> None:
    """Move the messages of the source at this port."""
    value = {
        "src-uri": f"amqp://127.0.0.1:{port}",
        "src-protocol": "amqp10",
        "src-address": "orders",
        "src-delete-after": 3,
        **{key.replace("_", "-"): item for key, item in destination.items()},
    }

    async def hosts(side: str, end: End) -> list[Parameters]:
        return [read_uri(uri, end.protocol, "") for uri in end.uris]

    async with asyncio.timeout(60):
        await run(read_definition("s", value), hosts, {}, lambda transfer: None)


async def test_a_source_may_settle_what_it_sends() -> None:
    """A sender may settle any delivery, although the receiver asked for unsettled ones (transport 2.8.2, mixed)."""
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    with leveret.Broker() as broker:
        async with scripted_server(source) as port:
            await move(port, dest_uri=broker.url, dest_queue="orders")
        async with leveret.connect(broker.url) as connection, connection.channel() as channel:
            found = [await channel.get("orders", no_ack=True) for _ in range(3)]
    assert [message and message.body for message in found] == [b"0", b"1", b"2"]
    assert not failures


async def test_a_message_without_an_address_is_not_dropped() -> None:
    """Only RabbitMQ and Leveret add the exchange and the routing key of the publish over AMQP 1.0."""
    with leveret.Broker() as broker:
        async with scripted_server(source) as port:
            with pytest.raises(InvalidMessage, match="expected dest-queue, dest-exchange or dest-exchange-key"):
                await move(port, dest_uri=broker.url)


async def test_a_shovel_that_restarts_twice_waits_for_its_first_connections() -> None:
    """The messages of a run return to their queue when its connections are closed, and before that none may be taken."""
    value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}
    closed = asyncio.Event()

    async def close() -> None:
        await closed.wait()

    closing = asyncio.create_task(close())
    rights = Rights(UserStore(), OPERATOR, False, lambda: ("127.0.0.1", 1), Destinations(()))
    shovel = Shovel("/", "s", DYNAMIC, read_definition("s", value), rights, lambda shovel: None)
    shovel.start(closing)
    shovel.start(shovel.cancel())
    last = shovel.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not last.done()
    closed.set()
    await asyncio.wait([last])
    assert closing.done()
