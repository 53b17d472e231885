"""Metrics by OTLP."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leveret import sync
from tests.management.telemetry.collector import Collector, Value
from tests.management.telemetry.conftest import start_broker
from tests.support.broker import LeveretProcess
from tests.support.polling import wait_until


def wait_value(collector: Collector, metric: str, attributes: Mapping[str, Value], value: float) -> None:
    def found() -> bool:
        return [point.value for point in collector.metric(metric) if point.attributes == attributes] == [value]

    wait_until(found, lambda: f"{metric}: {collector.metric(metric)}, expected {value} for {attributes}")


def test_totals_of_vhosts(broker: LeveretProcess, collector: Collector, name: str) -> None:
    vhost = {"leveret.vhost": "interop"}
    with sync.connect(broker.url(vhost="interop")) as connection, connection.channel() as channel:
        channel.declare_queue(name)
        for _ in range(3):
            channel.publish("hello", name)
        with channel.consume(name, prefetch=1) as messages:
            messages.next().ack()
            message = messages.next()
            wait_value(collector, "leveret.messages.published", vhost, 3)
            wait_value(collector, "leveret.messages.acknowledged", vhost, 1)
            wait_value(collector, "leveret.messages", vhost | {"leveret.message.state": "ready"}, 1)
            wait_value(collector, "leveret.messages", vhost | {"leveret.message.state": "unacked"}, 1)
            for metric in ("leveret.connections", "leveret.queues", "leveret.consumers"):
                wait_value(collector, metric, vhost, 1)
            queue = vhost | {"leveret.queue.name": name}
            wait_value(collector, "leveret.queue.published", queue, 3)
            wait_value(collector, "leveret.queue.messages", queue | {"leveret.message.state": "unacked"}, 1)
            message.ack()
        channel.delete_queue(name)
    wait_value(collector, "leveret.queues", vhost, 0)
    wait_value(collector, "leveret.messages.published", vhost, 3)
    (memory,) = collector.metric("leveret.memory.usage")
    assert memory.value > 10 << 20


def test_keys_and_dropped_duplicates(broker: LeveretProcess, collector: Collector, name: str) -> None:
    arguments: dict[str, Any] = {"x-deduplication-window": 60_000, "x-deduplication-header": "id"}
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        channel.declare_exchange(name, "fanout", arguments=arguments)
        channel.declare_queue(name, arguments=arguments)
        channel.declare_queue(f"{name}-plain")
        channel.bind_queue(name, name)
        for exchange in (name, ""):
            for key in ("a", "b", "a", "a"):
                channel.publish("x", name, exchange=exchange, headers={"id": key})
        for kind, dropped in (("queue", 4), ("exchange", 2)):
            attributes = {"leveret.vhost": "/", f"leveret.{kind}.name": name}
            wait_value(collector, f"leveret.{kind}.dropped_duplicates", attributes, dropped)
            wait_value(collector, f"leveret.{kind}.deduplication_keys", attributes, 2)
            (_,) = collector.metric(f"leveret.{kind}.deduplication_keys")  # others do not have the metric
        channel.delete_exchange(name)
        channel.delete_queue(name)
        channel.delete_queue(f"{name}-plain")


def test_no_metrics_of_queues_by_default(tmp_path: Path, name: str) -> None:
    with Collector() as collector, start_broker(tmp_path, collector.url, metrics_interval="1") as broker:
        with sync.connect(broker.url()) as connection, connection.channel() as channel:
            channel.declare_queue(name)
        wait_value(collector, "leveret.queues", {"leveret.vhost": "/"}, 1)
        assert not collector.metric("leveret.queue.published")
        assert not collector.metric("leveret.exchange.dropped_duplicates")


def test_a_restart_of_the_telemetry_process(tmp_path: Path) -> None:
    with Collector() as collector, start_broker(tmp_path, collector.url) as broker:
        broker.wait_for_log("exporting to")
        seen = len(broker.log())
        os.kill(_telemetry_process(broker.pid), signal.SIGKILL)
        broker.wait_for_log("the telemetry process ended with code -9; restarting it", seen)
        broker.wait_for_log("exporting to", seen)


def _telemetry_process(parent: int) -> int:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return next(int(child) for child in children if b"telemetry_main" in Path(f"/proc/{child}/cmdline").read_bytes())
