"""Message groups with real clients of AMQP 0-9-1 and 1.0, and across a crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from leveret.management.control_client import call
from tests.interop.helpers import drain, empty
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.polling import wait_until

proton = pytest.importorskip("proton")
proton_utils = pytest.importorskip("proton.utils")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeveretProcess]:
    leveret_only("RabbitMQ has no message groups")
    process = LeveretProcess(tmp_path)
    with process.start():
        yield process
        process.check_log()


class Client:
    """A connection with one consumer, and the bodies and tags of its deliveries."""

    def __init__(self, process: LeveretProcess, prefetch: int) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(process.url()))
        self.channel: BlockingChannel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.bodies: list[bytes] = []
        self.tags: list[int] = []
        self.channel.basic_consume("jobs", self._take)

    def _take(
        self, channel: BlockingChannel, method: pika.spec.Basic.Deliver, properties: pika.BasicProperties, body: bytes
    ) -> None:
        self.bodies.append(body)
        self.tags.append(method.delivery_tag)

    def has(self, *bodies: bytes) -> bool:
        self.connection.process_data_events(0.01)
        return self.bodies == list(bodies)


def test_the_group_of_a_client_that_dies_goes_to_another_one_in_order(process: LeveretProcess) -> None:
    with pika.BlockingConnection(pika.URLParameters(process.url())) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("jobs", durable=True, arguments={"x-group-key": "customer"})

        def publish(*bodies: bytes) -> None:
            for body in bodies:
                headers = {"customer": body[:1].decode()} if body[:1] != b"-" else {}
                channel.basic_publish("", "jobs", body, pika.BasicProperties(headers=headers, delivery_mode=2))

        first = Client(process, 2)
        publish(b"a1", b"a2", b"a3", b"a4")
        wait_until(lambda: first.has(b"a1", b"a2"))
        second = Client(process, 10)
        publish(b"b1", b"-1")
        wait_until(lambda: second.has(b"b1", b"-1"))
        assert empty(channel, "jobs")
        first.channel.basic_nack(first.tags[1], requeue=True)
        wait_until(lambda: first.has(b"a1", b"a2", b"a2"))
        first.channel.connection.close()
        wait_until(lambda: second.has(b"b1", b"-1", b"a1", b"a2", b"a3", b"a4"))
        second.connection.close()


def test_group_ids_of_amqp_1_0_and_a_crash(process: LeveretProcess) -> None:
    with pika.BlockingConnection(pika.URLParameters(process.url())) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("jobs", durable=True, arguments={"x-group-key": "group-id"})
        address = f"127.0.0.1:{process.port}"
        amqp10 = proton_utils.BlockingConnection(address, user="guest", password="guest", allowed_mechs="PLAIN")
        sender = amqp10.create_sender("jobs")
        for body, group in ((b"a1", "a"), (b"a2", "a"), (b"b1", "b"), (b"-1", None), (b"a3", "a")):
            sender.send(proton.Message(body, inferred=True, durable=True, group_id=group))
        channel.basic_publish(
            "", "jobs", b"b2", pika.BasicProperties(headers={"group-id": "b"}, app_id="a", delivery_mode=2)
        )
        receiver = amqp10.create_receiver("jobs", credit=2)
        messages = [receiver.receive() for _ in range(2)]
        assert [bytes(message.body) for message in messages] == [b"a1", b"a2"]
        # An operator who gets messages is one holder, too.
        request = {"vhost": "/", "queue": "jobs", "count": 10, "mode": "ack_requeue_true"}
        found = call(process.data_dir, "messages.get", request)["messages"]
        assert [message["payload"] for message in found] == ["b1", "-1", "b2"]
        assert drain(channel, "jobs") == [b"b1", b"-1", b"b2"]
        # Its confirm means that the acknowledgements before it are on disk, too.
        channel.basic_publish("", "jobs", b"-2", pika.BasicProperties(delivery_mode=2))
    process.kill()
    with process.start():
        [found] = [queue for queue in call(process.data_dir, "queues.list", {"vhost": "/"}) if queue["name"] == "jobs"]
        assert (found["type"], found["arguments"]) == ("grouped", {"x-group-key": "group-id"})
        first = Client(process, 1)
        wait_until(lambda: first.has(b"a1"))
        second = Client(process, 10)
        wait_until(lambda: second.has(b"-2"))
        first.connection.close()
        wait_until(lambda: second.has(b"-2", b"a1", b"a2", b"a3"))
        second.connection.close()
