"""A broker that is behind with one queue: publishers of that queue are slowed down, and no client stalls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from pamqp import frame

from leveret import sync
from leveret.management.control_client import call
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.peers.amqp091 import Basic, Peer, content_header, method
from tests.support.peers.framing import body_frames
from tests.support.polling import wait_until

FLOODED = "flooded"
BODY = b"m" * 4000
# Messages in one write of a publisher.
BURST = 250
# Together they send more bytes per turn than the broker delivers to one consumer.
PUBLISHERS = 3
MESSAGES = 15
PROTOCOLS = ("0-9-1", "0-9", "1.0")


class Flood:
    """Publishers without confirms that never pause, and a consumer of their queue. All end with the block."""

    def __init__(self, process: LeveretProcess) -> None:
        self.process = process
        self.stopping = False
        publish = frame.marshal(method(Basic.Publish, exchange="", routing_key=FLOODED), 1)
        self.burst = (publish + frame.marshal(content_header(len(BODY)), 1) + body_frames(1, BODY, 4096)) * BURST
        self.peers = [Peer(process.host, process.port) for _ in range(1 + PUBLISHERS)]
        self.threads = [threading.Thread(target=self._run, args=(self._read,))]
        for peer in self.peers[1:]:
            self.threads.append(threading.Thread(target=self._run, args=(partial(peer.send_bytes, self.burst),)))

    def _read(self) -> None:
        if not self.peers[0].socket.recv(1 << 20):
            raise ConnectionError("the broker closed the connection of the consumer")

    def _run(self, work: Callable[[], None]) -> None:
        try:
            while not self.stopping:
                work()
        except OSError:
            if not self.stopping:
                raise

    def __enter__(self) -> Flood:
        for peer in self.peers:
            peer.handshake()
        consumer, *_ = [peer.channel() for peer in self.peers]
        consumer.queue(FLOODED, exclusive=False)
        consumer.consume(FLOODED, no_ack=True)
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stopping = True
        for peer in self.peers:
            peer.drop()
        for thread in self.threads:
            thread.join()

    def state(self) -> tuple[str, list[str]]:
        """Return the state of a publisher's connection, and why it is throttled."""
        port = self.peers[1].local_port
        directory = self.process.data_dir
        (own,) = [item for item in call(directory, "connections.list") if f":{port} ->" in item["name"]]
        return own["state"], call(directory, "connections.throttling", {"number": own["number"]})["reasons"]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("RabbitMQ throttles by other rules")
    with LeveretProcess(tmp_path_factory.mktemp("broker")) as running:
        running.start()
        yield running
        running.check_log()


def test_the_publisher_is_slowed_down(process: LeveretProcess) -> None:
    with Flood(process) as flood:
        wait_until(lambda: flood.state()[0] == "flow", "the publisher has the state flow")
        wait_until(lambda: "behind" in flood.state()[1], "the reason is shown")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_connection_that_publishes_and_consumes_with_prefetch_1(process: LeveretProcess, protocol: str) -> None:
    with Flood(process), sync.connect(process.url(), protocol=protocol) as connection:
        channel: Any = connection.open_channel()
        channel.declare_queue("own", exclusive=True)
        with channel.consume("own", prefetch=1) as consumer:
            channel.publish(b"0", "own")
            for number in range(MESSAGES):
                message = consumer.next()
                assert message.body == b"%d" % number
                channel.publish(b"%d" % (number + 1), "own")
                channel.publish(b"beside", FLOODED)
                message.ack()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_connection_that_publishes_through_a_fan_out(process: LeveretProcess, protocol: str) -> None:
    with Flood(process), sync.connect(process.url(), protocol=protocol) as connection:
        channel: Any = connection.open_channel()
        channel.declare_queue("own", exclusive=True)
        for queue in ("own", FLOODED):
            channel.bind_queue(queue, "amq.fanout")
        with channel.consume("own", prefetch=1) as consumer:
            for number in range(MESSAGES):
                channel.publish(b"%d" % number, exchange="amq.fanout")
            for number in range(MESSAGES):
                message = consumer.next()
                assert message.body == b"%d" % number
                message.ack()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_dead_letter_cycle_on_one_connection(process: LeveretProcess, protocol: str) -> None:
    with Flood(process), sync.connect(process.url(), protocol=protocol) as connection:
        channel: Any = connection.open_channel()
        for queue, other in (("one", "two"), ("two", "one")):
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other}
            channel.declare_queue(queue, exclusive=True, arguments=arguments)
        with channel.consume("one", prefetch=1) as first, channel.consume("two", prefetch=1) as second:
            channel.publish(b"around", "one")
            for _ in range(MESSAGES):
                first.next().reject()
                channel.publish(b"beside", FLOODED)
                second.next().reject()
            assert first.next().body == b"around"


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_transactions_on_one_connection(process: LeveretProcess, protocol: str) -> None:
    with Flood(process), sync.connect(process.url(), protocol=protocol) as connection:
        channel: Any = connection.open_channel(transactional=True)
        channel.declare_queue("own", exclusive=True)
        with channel.consume("own", prefetch=1) as consumer:
            for number in range(MESSAGES):
                with channel.transaction():
                    channel.publish(b"%d" % number, "own")
                    channel.publish(b"beside", FLOODED)
                with channel.transaction():
                    message = consumer.next()
                    assert message.body == b"%d" % number
                    message.ack()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_publisher_of_another_queue_is_not_slowed_down(process: LeveretProcess, protocol: str) -> None:
    with Flood(process) as flood, sync.connect(process.url(), protocol=protocol) as connection:
        channel: Any = connection.open_channel()
        channel.declare_queue("idle", exclusive=True)
        wait_until(lambda: flood.state()[0] == "flow", "the flood is slowed down")
        for number in range(MESSAGES):
            channel.publish(b"%d" % number, "idle")
        states = [item["state"] for item in call(process.data_dir, "connections.list")]
        assert states[-1] == "running"
