"""Clients that are silent, stop reading, or ask for too much: their cost is limited, and others are not affected."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests.faults.neighbour import Neighbour
from tests.support.broker import Broker, LeveretProcess, basic_config, leveret_only
from tests.support.peers.framing import HEADER_AMQP091, content, encode, frame_bytes, header_frame
from tests.support.peers.rude import RudePeer
from tests.support.polling import wait_until
from tests.support.proxy import Proxy

MIB = 1 << 20
CONFIG = """
[server]
handshake_timeout = 3.0
[amqp]
channel_max = 65535
[limits]
queues_per_vhost = 40
consumers_per_channel = 10
connections = 30
"""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    """A broker with low limits."""
    leveret_only("its limits are set, its memory is measured")
    with LeveretProcess(tmp_path_factory.mktemp("narrow"), config=basic_config() + CONFIG).start() as process:
        yield process
        process.check_log()


@pytest.fixture
def beside(process: LeveretProcess) -> Iterator[Neighbour]:
    neighbour = Neighbour(process)
    yield neighbour
    neighbour.check()
    neighbour.close()


def fill(peer: RudePeer, queue: str, number: int, size: int) -> None:
    """Publish and wait until everything is in the queue."""
    message = content(1, commands.Basic.Publish(routing_key=queue), bytes(size))
    for _ in range(number):
        peer.send_bytes(message)
    peer.send_method(commands.Queue.Declare(queue=queue, passive=True), 1)
    assert peer.expect_method("Queue.DeclareOk").message_count == number


@pytest.mark.parametrize("sent", [b"", HEADER_AMQP091[:3], HEADER_AMQP091], ids=["nothing", "half a header", "header"])
def test_slow_handshake(process: LeveretProcess, beside: Neighbour, sent: bytes) -> None:
    with RudePeer(process) as peer:
        peer.send_bytes(sent)
        begun = time.monotonic()
        peer.read_to_end(timeout=60)
        assert 0.5 < time.monotonic() - begun < 25


def test_dripping_handshake(process: LeveretProcess, beside: Neighbour) -> None:
    """One byte at a time does not extend the timeout."""
    with RudePeer(process) as peer:
        begun = time.monotonic()
        start_ok = encode(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), 0)
        for octet in HEADER_AMQP091 + start_ok:
            peer.send_bytes(bytes([octet]))
            if peer.ended:
                break
            time.sleep(0.05)
        peer.read_to_end(timeout=60)
        assert time.monotonic() - begun < 25


def test_silent_client(broker: Broker, neighbour: Neighbour) -> None:
    """A client without heartbeats is disconnected within two intervals; the broker sends heartbeats itself."""
    with RudePeer(broker) as peer:
        peer.reach("channel", heartbeat=1)
        begun = time.monotonic()
        beats = 0
        while (frame := peer.next_frame(timeout=60)) is not None:
            beats += frame[0] == 8
        took = time.monotonic() - begun
        assert beats >= 1
        # Two intervals, plus the delay of a timer.
        assert 1.0 <= took < 25.0


def test_any_byte_counts_as_a_heartbeat(broker: Broker) -> None:
    with RudePeer(broker) as peer:
        peer.reach("channel", heartbeat=1)
        for _ in range(5):
            time.sleep(0.5)
            peer.send_method(commands.Basic.Qos(), 1)
            peer.expect_method("Basic.QosOk")


def test_half_open_socket(broker: Broker, name: str) -> None:
    """The network drops everything: heartbeats detect it, and the client's state is freed."""
    with Proxy(broker) as proxy, RudePeer(proxy) as peer, RudePeer(broker) as other:
        other.reach("channel")
        other.send_method(commands.Queue.Declare(queue=name), 1)
        other.expect_method("Queue.DeclareOk")
        peer.reach("channel", heartbeat=1)
        peer.send_method(commands.Queue.Declare(queue=f"{name}.mine", exclusive=True), 1)
        peer.expect_method("Queue.DeclareOk")
        other.send_bytes(content(1, commands.Basic.Publish(routing_key=name), b"held"))
        wait_until(lambda: queue_size(other, name) == 1, "the message's arrival")
        peer.send_method(commands.Basic.Get(queue=name), 1)
        peer.expect_method("Basic.GetOk")
        proxy.flowing.clear()
        wait_until(lambda: queue_size(other, name) == 1, "the message's return")
        other.send_method(commands.Queue.Declare(queue=f"{name}.mine"), 1)
        # No longer resource-locked.
        other.expect_method("Queue.DeclareOk")
        for queue in (name, f"{name}.mine"):
            other.send_method(commands.Queue.Delete(queue=queue), 1)
            other.expect_method("Queue.DeleteOk")


def queue_size(peer: RudePeer, queue: str) -> int:
    peer.send_method(commands.Queue.Declare(queue=queue, passive=True), 1)
    return int(peer.expect_method("Queue.DeclareOk").message_count)


@pytest.mark.parametrize("no_ack", [True, False])
def test_consumer_that_stops_reading(process: LeveretProcess, beside: Neighbour, no_ack: bool) -> None:
    """Messages stay in the queue: they are not copied into the consumer's socket."""
    queue = f"deep.{no_ack}"
    with RudePeer(process) as owner:
        owner.reach("channel")
        owner.send_method(commands.Queue.Declare(queue=queue), 1)
        owner.expect_method("Queue.DeclareOk")
        fill(owner, queue, 1500, 100_000)
        before = process.memory()
        with RudePeer(process) as peer:
            peer.reach("channel")
            peer.send_method(commands.Basic.Consume(queue=queue, no_ack=no_ack), 1)
            peer.expect_method("Basic.ConsumeOk")
            for _ in range(20):
                beside.check()
                time.sleep(0.05)
            assert process.memory() - before < 48 * MIB
            # Another consumer gets the messages that this one did not receive.
            assert queue_size(owner, queue) > 500
            owner.send_method(commands.Basic.Get(queue=queue, no_ack=True), 1)
            owner.expect_method("Basic.GetOk")
        owner.send_method(commands.Queue.Delete(queue=queue), 1)
        owner.expect_method("Queue.DeleteOk")


@pytest.mark.parametrize("what", ["returns", "replies"])
def test_client_that_never_reads(process: LeveretProcess, beside: Neighbour, what: str) -> None:
    """The broker stops reading a client that does not read replies: the socket fills up, not the broker."""
    with RudePeer(process) as peer:
        peer.reach("channel")
        if what == "returns":
            piece = content(1, commands.Basic.Publish(routing_key="nowhere", mandatory=True), bytes(20_000))
        else:
            piece = encode(commands.Basic.Qos(prefetch_count=5), 1) * 500
        before = process.memory()
        peer.socket.settimeout(1.0)
        limit = 300 * MIB if what == "returns" else 60 * MIB
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < limit:
                sent += peer.socket.send(piece)
        beside.check()
        assert sent < limit, "the broker keeps reading"
        assert process.memory() - before < 64 * MIB


def test_consumer_of_everything_at_once(process: LeveretProcess, beside: Neighbour) -> None:
    """Half a million unacked small deliveries to a client that reads: slow is fine, wrong is not."""
    with RudePeer(process) as owner:
        owner.reach("channel")
        owner.send_method(commands.Queue.Declare(queue="many"), 1)
        owner.expect_method("Queue.DeclareOk")
        fill(owner, "many", 20_000, 100)
        owner.send_method(commands.Basic.Consume(queue="many"), 1)
        owner.expect_method("Basic.ConsumeOk")
        for _ in range(20_000):
            method, header, body = owner.next_frame(), owner.next_frame(), owner.next_frame()
            assert method and header and body
            assert body[0] == 3
        beside.check()
        owner.send_method(commands.Queue.Delete(queue="many"), 1)
        owner.expect_method("Queue.DeleteOk")


def test_all_channels(process: LeveretProcess, beside: Neighbour) -> None:
    """65,535 channels on one connection; the first and the last one work."""
    before = process.memory()
    with RudePeer(process, timeout=60) as peer:
        peer.reach("opened", channel_max=65535)
        opens = [encode(commands.Channel.Open(), number) for number in range(1, 65536)]
        for start in range(0, 65535, 1000):
            peer.send_bytes(b"".join(opens[start : start + 1000]))
            for _ in opens[start : start + 1000]:
                peer.expect_method("Channel.OpenOk")
        beside.check()
        assert process.memory() - before < 256 * MIB
        for number in (1, 65535):
            peer.send_method(commands.Queue.Declare(exclusive=True), number)
            peer.expect_method("Queue.DeclareOk")


def test_endless_queues(process: LeveretProcess, beside: Neighbour) -> None:
    with RudePeer(process) as peer:
        peer.reach("channel")
        names: list[str] = []
        while True:
            peer.send_method(commands.Queue.Declare(queue=f"endless.{len(names)}"), 1)
            answer = peer.next_method()
            if answer.name != "Queue.DeclareOk":
                break
            names.append(answer.queue)
            assert len(names) <= 40
        assert answer.name in ("Channel.Close", "Connection.Close")
        assert answer.reply_code in (403, 406, 506, 530)
    with RudePeer(process) as peer:
        peer.reach("channel")
        for name in names:
            peer.send_method(commands.Queue.Delete(queue=name), 1)
            peer.expect_method("Queue.DeleteOk")


def test_endless_consumers(process: LeveretProcess, beside: Neighbour) -> None:
    with RudePeer(process) as peer:
        peer.reach("channel")
        peer.send_method(commands.Queue.Declare(queue="", exclusive=True), 1)
        queue = peer.expect_method("Queue.DeclareOk").queue
        for number in range(11):
            peer.send_method(commands.Basic.Consume(queue=queue, consumer_tag=f"c{number}"), 1)
            answer = peer.next_method()
            if answer.name != "Basic.ConsumeOk":
                break
        assert number == 10
        assert answer.reply_code in (403, 406, 506, 530)


def test_endless_connections(process: LeveretProcess, beside: Neighbour) -> None:
    peers: list[RudePeer] = []
    try:
        refused = None
        for _ in range(40):
            peer = RudePeer(process)
            peers.append(peer)
            peer.send_bytes(HEADER_AMQP091)
            method = peer.next_method()
            if method is None:
                refused = 0
                break
            peer.send_method(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"))
            method = peer.next_method()
            if method is not None and method.name == "Connection.Tune":
                peer.send_method(commands.Connection.TuneOk(10, 8192, 0))
                peer.send_method(commands.Connection.Open("/"))
                method = peer.next_method()
            if method is None or method.name == "Connection.Close":
                refused = 0 if method is None else method.reply_code
                break
        assert refused in (0, 403, 506, 530)
        assert len(peers) <= 31
        beside.check()
    finally:
        for peer in peers:
            peer.socket.close()
    # The connections are available again.
    wait_until(lambda: connects(process), "a free connection")


def connects(broker: Broker) -> bool:
    with RudePeer(broker) as peer:
        try:
            peer.reach("opened")
        except AssertionError:
            return False
        return True


def test_huge_bodies_that_never_end(process: LeveretProcess, beside: Neighbour) -> None:
    """Many channels within a large message: received bytes cost memory, announced ones do not."""
    with RudePeer(process) as peer:
        peer.reach("opened", channel_max=500)
        before = process.memory()
        for number in range(1, 401):
            peer.send_method(commands.Channel.Open(), number)
            peer.expect_method("Channel.OpenOk")
            peer.send_method(commands.Basic.Publish(routing_key="x"), number)
            peer.send_bytes(header_frame(number, 20_000_000) + frame_bytes(3, number, bytes(1000)))
        beside.check()
        assert process.memory() - before < 64 * MIB


def test_transaction_without_end(process: LeveretProcess, beside: Neighbour, tmp_path: Path) -> None:
    """Publishes that are never committed reach a limit, or at least do not affect others."""
    with RudePeer(process) as peer:
        peer.reach("channel")
        peer.send_method(commands.Queue.Declare(queue="tx", auto_delete=True), 1)
        peer.expect_method("Queue.DeclareOk")
        peer.send_method(commands.Tx.Select(), 1)
        peer.expect_method("Tx.SelectOk")
        piece = content(1, commands.Basic.Publish(routing_key="tx"), bytes(100_000))
        for _ in range(3000):
            peer.send_bytes(piece)
            if peer.ended:
                break
        peer.send_method(commands.Tx.Commit(), 1)
        method = peer.next_method(timeout=60)
        assert method is not None
        assert method.name == "Channel.Close"
        assert method.reply_code in (311, 406, 506)
