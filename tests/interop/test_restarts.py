"""The broker stops, is killed and restarts under clients that reconnect."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import aio_pika
import pika
import pytest
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import AMQPError
from kombu import Connection, Queue
from kombu.mixins import ConsumerMixin
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker

from tests.interop.helpers import pump
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.polling import wait_until, wait_until_async

WITHIN = 120.0


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeveretProcess]:
    leveret_only("it is stopped and started")
    process = LeveretProcess(tmp_path)
    with process.start():
        yield process
        process.check_log()


def bounce(process: LeveretProcess, how: str) -> None:
    if how == "stop":
        process.stop()
    else:
        process.kill()
    process.start()


def test_a_stop_is_announced(process: LeveretProcess) -> None:
    """connection.close with 320, after which clients try another host."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(process.host, process.port))
    channel = connection.channel()
    channel.queue_declare("kept", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "kept", b"x", pika.BasicProperties(delivery_mode=2))
    process.stop()
    with pytest.raises(ConnectionClosedByBroker) as caught:
        pump(connection, lambda: False)
    assert caught.value.reply_code == 320
    process.start()
    again = pika.BlockingConnection(pika.ConnectionParameters(process.host, process.port)).channel()
    assert again.basic_get("kept", auto_ack=True)[2] == b"x"


def test_connections_are_refused_while_it_is_down(process: LeveretProcess) -> None:
    process.stop()
    with pytest.raises(AMQPConnectionError):
        pika.BlockingConnection(pika.ConnectionParameters(process.host, process.port))
    process.start()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_robust_aio_pika(process: LeveretProcess, how: str) -> None:
    """Every confirmed message arrives, although the broker restarts meanwhile."""

    async def test() -> None:
        connection = await aio_pika.connect_robust(process.url(), reconnect_interval=0.2)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("work", durable=True)
            received: set[bytes] = set()

            async def on_message(message: AbstractIncomingMessage) -> None:
                received.add(message.body)
                await message.ack()

            await queue.consume(on_message)
            confirmed: set[bytes] = set()

            async def publish(first: int, last: int) -> None:
                for number in range(first, last):
                    message = aio_pika.Message(b"%d" % number, delivery_mode=2)
                    while message.body not in confirmed:
                        try:
                            await channel.default_exchange.publish(message, "work", timeout=3)
                            confirmed.add(message.body)
                        except (TimeoutError, AMQPError, ConnectionError, RuntimeError):
                            await asyncio.sleep(0.02)

            publishing = asyncio.create_task(publish(0, 300))
            await wait_until_async(lambda: len(confirmed) >= 50)
            await asyncio.to_thread(bounce, process, how)
            await publishing
            await wait_until_async(lambda: received >= confirmed)

    asyncio.run(asyncio.wait_for(test(), 240))


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_kombu_consumer(process: LeveretProcess, how: str) -> None:
    queue = Queue("work", durable=True)

    class Worker(ConsumerMixin):
        def __init__(self) -> None:
            self.connection = Connection(process.url(), heartbeat=5)
            self.received: list[str] = []

        def get_consumers(self, consumer: object, channel: object) -> list[object]:
            return [consumer(queues=[queue], callbacks=[self.on_message])]  # type: ignore[operator]

        def on_message(self, body: str, message: object) -> None:
            self.received.append(body)
            message.ack()  # type: ignore[attr-defined]

    worker = Worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        publish(process, "before")
        wait_until(lambda: "before" in worker.received)
        bounce(process, how)
        publish(process, "after")
        wait_until(lambda: "after" in worker.received)
    finally:
        worker.should_stop = True
        thread.join(60)
    assert not thread.is_alive()


def publish(process: LeveretProcess, text: str) -> None:
    with Connection(process.url(), transport_options={"confirm_publish": True}) as connection:
        connection.ensure_connection(max_retries=20, interval_start=0.1, interval_step=0.1)
        with connection.channel() as channel:
            Queue("work", durable=True)(channel).declare()
            producer = connection.Producer(channel)
            producer.publish(text, routing_key="work", delivery_mode=2)
