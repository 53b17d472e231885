"""Nothing is lost when a broker of a shovel is killed while messages move; a RabbitMQ as source and destination."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leveret.sync
from leveret.management.control_client import call
from tests.cli.program import Program
from tests.support import rabbitmq
from tests.support.broker import Broker, LeveretProcess
from tests.support.polling import wait_until

COUNT = 4000
# Messages at the destination when a broker is killed.
MOVED = 200


class Brokers:
    """A source, a destination, and the broker between them that runs the shovel."""

    def __init__(self, directory: Path) -> None:
        self.source = LeveretProcess(directory / "source").start()
        self.destination = LeveretProcess(directory / "destination").start()
        self.own = LeveretProcess(directory / "own").start()

    def stop(self) -> None:
        for broker in (self.own, self.source, self.destination):
            broker.stop()
            broker.check_log()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    started = Brokers(tmp_path_factory.mktemp("shovel"))
    yield started
    started.stop()


def fill(url: str, queue: str, count: int) -> None:
    with leveret.sync.connect(url) as connection, connection.channel() as channel:
        channel.declare_queue(queue, durable=True)
        with channel.publisher("", queue) as publisher:
            for number in range(count):
                publisher.publish(str(number), persistent=True)


def length(url: str, queue: str) -> int:
    with leveret.sync.connect(url) as connection, connection.channel() as channel:
        return int(channel.declare_queue(queue, durable=True).message_count)


def has_moved(source: LeveretProcess, queue: str) -> bool:
    """Return whether the source has no message of a queue any more, also none in transit."""
    row = call(source.data_dir, "queues.show", {"name": queue})
    return bool(row["ready"] == row["unacked"] == 0)


def drain(url: str, queue: str) -> list[int]:
    with leveret.sync.connect(url) as connection, connection.channel() as channel:
        found = []
        while (message := channel.get(queue, no_ack=True)) is not None:
            found.append(int(message.body))
        return found


def set_shovel(own: LeveretProcess, name: str, source: Broker, destination: Broker, **more: Any) -> None:
    value = {
        "src-uri": source.url(),
        "src-queue": name,
        "src-prefetch-count": 20,
        "dest-uri": destination.url(),
        "dest-queue": name,
        "reconnect-delay": 1,
        **more,
    }
    call(own.data_dir, "parameters.set", {"component": "shovel", "name": name, "value": value})


@pytest.mark.parametrize("victim", ["source", "destination", "own"])
def test_nothing_is_lost(brokers: Brokers, victim: str) -> None:
    source, destination, own = brokers.source, brokers.destination, brokers.own
    fill(source.url(), victim, COUNT)
    set_shovel(own, victim, source, destination)
    wait_until(lambda: length(destination.url(), victim) >= MOVED)
    killed: LeveretProcess = getattr(brokers, victim)
    killed.kill()
    killed.start()
    wait_until(lambda: has_moved(source, victim))
    call(own.data_dir, "parameters.delete", {"component": "shovel", "name": victim})
    found = drain(destination.url(), victim)
    # Duplicates are those that were not acknowledged; the first ones of each are in order.
    assert list(dict.fromkeys(found)) == list(range(COUNT))
    assert len(found) < COUNT + COUNT // 10


@pytest.mark.slow
def test_rabbitmq_at_either_end(brokers: Brokers, tmp_path: Path) -> None:
    if not rabbitmq.available():
        pytest.skip("rabbitmq-server is not installed")
    with rabbitmq.RabbitProcess(tmp_path / "rabbit", ("rabbitmq_amqp1_0",)).start() as rabbit:
        fill(rabbit.url(), "old", 1000)
        set_shovel(brokers.own, "old", rabbit, brokers.destination, **{"src-delete-after": "queue-length"})
        wait_until(lambda: length(brokers.destination.url(), "old") == 1000 and length(rabbit.url(), "old") == 0)
        assert drain(brokers.destination.url(), "old") == list(range(1000))
        fill(brokers.source.url(), "back", 1000)
        set_shovel(brokers.own, "back", brokers.source, rabbit)
        wait_until(lambda: length(rabbit.url(), "back") == 1000)
        call(brokers.own.data_dir, "parameters.delete", {"component": "shovel", "name": "back"})
        assert drain(rabbit.url(), "back") == list(range(1000))
        # AMQP 1.0 with RabbitMQ's addresses.
        fill(rabbit.url(), "one", 1000)
        value = {
            "src-uri": rabbit.url(),
            "src-protocol": "amqp10",
            "src-address": "/amq/queue/one",
            "dest-uri": brokers.destination.url(),
            "dest-queue": "one",
        }
        call(brokers.own.data_dir, "parameters.set", {"component": "shovel", "name": "one", "value": value})
        wait_until(lambda: length(brokers.destination.url(), "one") == 1000)
        call(brokers.own.data_dir, "parameters.delete", {"component": "shovel", "name": "one"})
        assert drain(brokers.destination.url(), "one") == list(range(1000))
        fill(rabbit.url(), "two", 100)
        urls = (f"{rabbit.url()}/two", f"{brokers.destination.url()}/two")
        assert Program(rabbit).ok("shovel", "queue", *urls, "--src-protocol", "amqp10") == b""
        assert drain(brokers.destination.url(), "two") == list(range(100))
