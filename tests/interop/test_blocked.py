"""connection.blocked: a memory alarm blocks and notifies publishers, then unblocks them; consumers are not affected."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from tests.interop.helpers import Collector, pump
from tests.support.broker import LeveretProcess, basic_config, leveret_only

MIB = 1 << 20


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeveretProcess]:
    """A broker with 64 MiB more memory than it needs when idle."""
    leveret_only("its memory watermark is set")
    probe = LeveretProcess(tmp_path / "probe")
    with probe.start():
        idle = probe.memory()
    config = basic_config() + f"\n[limits]\nmemory_high_watermark = {idle + 64 * MIB}\n"
    process = LeveretProcess(tmp_path / "broker", config=config)
    with process.start():
        yield process
        process.check_log()


def connect(process: LeveretProcess, **options: object) -> BlockingConnection:
    return BlockingConnection(pika.ConnectionParameters(process.host, process.port, **options))


def flood(publisher: BlockingConnection, holder: Collector, blocked: threading.Event) -> int:
    """Publish until the broker blocks, while a consumer receives everything and acknowledges nothing.

    Only unacked messages stay in memory; a queue alone would be paged out. Returns the number of published messages.
    """
    channel = publisher.channel()
    body = b"x" * 10_000
    sent = 0
    while not blocked.is_set():
        for _ in range(20):
            channel.basic_publish("", "deep", body)
        sent += 20
        publisher.process_data_events(0)
        # Messages that wait for the consumer would be paged out.
        while len(holder.messages) < sent - 200 and not blocked.is_set():
            holder.channel.connection.process_data_events(0.01)
            publisher.process_data_events(0)
        assert sent < 60_000, "never blocked"
    return sent


def hold(process: LeveretProcess) -> Collector:
    channel = connect(process).channel()
    channel.queue_declare("deep")
    # Without a prefetch count, the broker delivers no more when it is short of memory, but before the alarm.
    channel.basic_qos(prefetch_count=60_000)
    return Collector(channel, "deep")


def test_blocked_and_unblocked(process: LeveretProcess) -> None:
    publisher, holder = connect(process), hold(process)
    blocked, unblocked = threading.Event(), threading.Event()
    reasons = []

    def on_blocked(_: object, frame: pika.frame.Method) -> None:
        reasons.append(frame.method.reason)
        blocked.set()

    publisher.add_on_connection_blocked_callback(on_blocked)
    publisher.add_on_connection_unblocked_callback(lambda *_: unblocked.set())
    flood(publisher, holder, blocked)
    assert reasons[0]
    # The alarm does not block consumers, declarations or settlements. It may end by itself: the broker pages out what the
    # consumer has not received yet.
    other = connect(process).channel()
    other.queue_declare("", exclusive=True)
    holder.channel.basic_ack(0, multiple=True)
    holder.channel.queue_purge("deep")
    pump(publisher, unblocked.is_set, "unblocked")
    fresh = publisher.channel()
    queue = fresh.queue_declare("", exclusive=True).method.queue
    fresh.confirm_delivery()
    fresh.basic_publish("", queue, b"flows again")
    assert fresh.basic_get(queue, auto_ack=True)[2] == b"flows again"
    for channel in (other, holder.channel):
        channel.connection.close()
    publisher.close()


def test_a_connection_that_only_consumes_is_not_notified(process: LeveretProcess) -> None:
    publisher, holder = connect(process), hold(process)
    told = []
    holder.channel.connection.add_on_connection_blocked_callback(lambda *_: told.append(True))
    blocked = threading.Event()
    publisher.add_on_connection_blocked_callback(lambda *_: blocked.set())
    flood(publisher, holder, blocked)
    holder.arrived()
    holder.channel.basic_ack(0, multiple=True)
    holder.channel.queue_purge("deep")
    assert not told
    holder.channel.connection.close()


def test_definitions_are_bounded_too(process: LeveretProcess) -> None:
    """A client that only declares, with large arguments, is refused while the memory alarm lasts; others continue."""
    channel = connect(process).channel()
    channel.queue_declare("before")
    limit = int(process.config.rsplit(" ", 1)[1])
    large = {"x-note": "y" * 100_000}
    declared = 0
    with pytest.raises(ChannelClosedByBroker, match=r"limits\.memory_high_watermark") as refused:
        while declared < 5000:
            channel.queue_declare(f"large-{declared}", durable=True, arguments=large)
            declared += 1
    assert refused.value.reply_code == 406
    assert declared < 5000
    channel = connect(process).channel()
    with pytest.raises(ChannelClosedByBroker):
        channel.queue_declare("another", arguments=large)
    assert process.memory() < limit + 64 * MIB
    channel = connect(process).channel()
    channel.queue_declare("before")
    channel.queue_declare("small")
