"""Leases from outside: requests over both protocols, slices read by consumers, the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from leveret.client import AccessRefused, ConsumerCancelled, Error, NotFound, PreconditionFailed, amqp10
from leveret.client.message import Message
from leveret.sync import BaseChannel
from tests.management.conftest import Open
from tests.support.broker import Broker, LeveretProcess
from tests.support.requests import Refused, ask, ask_raw

COUNT = 100


@pytest.fixture
def queue(dial: Open, name: str) -> Iterator[str]:
    """A durable queue of a hundred messages, every third of which is transient."""
    channel = dial()
    channel.declare_queue(name, durable=True)
    for number in range(COUNT):
        channel.publish(b"%d" % number, name, persistent=number % 3 > 0)
    yield name
    dial().delete_queue(name)


@pytest.fixture
def channel(dial: Open, protocol: str) -> BaseChannel:
    return dial.over(protocol)


def acquire(channel: BaseChannel, queue: str, timeout: float | None = None) -> int:
    answer = ask_raw(
        channel, "lease.acquire", json.dumps({"version": 1, "queue": queue, "lease": "l", "timeout": timeout}).encode()
    )
    assert answer["ok"], answer
    return int(answer["epoch"])


def plan(channel: BaseChannel, queue: str, epoch: int, after: int, most: int) -> dict[str, Any]:
    answer = ask(channel, "lease.plan", queue=queue, lease="l", epoch=epoch, after=after, max_messages=most)
    return {key: answer[key] for key in ("batch", "count", "octets")}


def slice_of(epoch: int, batch: int, first: int, count: int, lease: str = "l") -> dict[str, Any]:
    return {
        "x-lease": lease,
        "x-lease-epoch": epoch,
        "x-lease-batch": batch,
        "x-lease-first": first,
        "x-lease-count": count,
    }


def offset_of(message: Message) -> int:
    headers = message.properties.headers
    assert headers is not None
    offset: int = headers["x-stream-offset"]
    return offset


def read(dial: Open, queue: str, epoch: int, batch: int, first: int, count: int) -> list[tuple[int, int]]:
    """Offsets and bodies of a slice."""
    with dial().consume(queue, no_ack=True, arguments=slice_of(epoch, batch, first, count)) as consumer:
        messages = [consumer.next(30) for _ in range(count)]
    return [(offset_of(message), int(message.body)) for message in messages]


def take(channel: BaseChannel, queue: str) -> bytes:
    """Take the next message of a queue, and return its body."""
    message = channel.get(queue)
    assert message is not None
    return message.body


def test_a_queue_in_batches(channel: BaseChannel, dial: Open, queue: str) -> None:
    epoch = acquire(channel, queue)
    assert plan(channel, queue, epoch, 0, 60)["count"] == 60
    assert ask(channel, "queue.describe", queue=queue)["leased"] == 60
    whole = read(dial, queue, epoch, 1, 0, 60)
    assert whole == [(number, number) for number in range(60)]
    assert read(dial, queue, epoch, 1, 20, 30) == whole[20:50]
    assert plan(channel, queue, epoch, 1, 60)["count"] == 40
    assert plan(channel, queue, epoch, 2, 60) == {"batch": 2, "count": 0, "octets": 0}
    returned: dict[str, Any] = {"except": [3, 59]}
    committed = ask(channel, "lease.commit", queue=queue, lease="l", epoch=epoch, batch=1, **returned)
    assert committed["committed"] == 1
    assert take(dial(), queue) == b"3"
    planned = ask(channel, "lease.acquire", queue=queue, lease="l")
    assert planned["committed"] == 1 and planned["planned"][0]["batch"] == 2
    assert ask(channel, "lease.release", queue=queue, lease="l")["messages"] == 40
    assert ask(channel, "lease.list", queue=queue)["leases"] == []
    assert [int(take(dial(), queue)) for _ in range(3)] == [59, 60, 61]


def test_invalid_requests_are_refused(channel: BaseChannel, dial: Open, queue: str) -> None:
    epoch = acquire(channel, queue)
    plan(channel, queue, epoch, 0, 10)
    again = acquire(channel, queue)
    for operation, arguments, condition, part in (
        ("lease.plan", {"epoch": epoch, "after": 1, "max_messages": 5}, "precondition-failed", f"epoch {epoch} of"),
        ("lease.commit", {"epoch": epoch, "batch": 1}, "precondition-failed", f"epoch {epoch} of"),
        ("lease.commit", {"epoch": again, "batch": 2}, "not-found", "batch 2 of lease 'l'"),
        ("lease.commit", {"epoch": again, "batch": 1, "except": [10]}, "precondition-failed", "index 10"),
        ("lease.plan", {"epoch": again, "after": 1, "max_messages": 0}, "command-invalid", "max_messages"),
        ("lease.release", {"lease": "other"}, "not-found", "lease 'other'"),
        ("lease.acquire", {"queue": "none"}, "not-found", "no queue 'none'"),
    ):
        with pytest.raises(Refused) as refused:
            given: dict[str, Any] = {"queue": queue, "lease": "l"}
            ask(channel, operation, **(given | arguments))
        assert refused.value.condition == condition and part in refused.value.message, operation
    for wanted, error in (
        (slice_of(epoch, 1, 0, 10), PreconditionFailed),
        (slice_of(again, 1, 1, 10), PreconditionFailed),
        (slice_of(again, 2, 0, 1), NotFound),
        (slice_of(again, 1, 0, 1, "other"), NotFound),
    ):
        with pytest.raises(error), dial().consume(queue, no_ack=True, arguments=wanted) as consumer:
            consumer.next(30)
    with (
        pytest.raises(PreconditionFailed, match="no-ack"),
        dial().consume(queue, arguments=slice_of(again, 1, 0, 1)) as consumer,
    ):
        consumer.next(30)
    assert not ask_raw(channel, "lease.acquire", b'{"version": 1, "queue": "q", "lease": "l", "timeout": 0}')["ok"]


def test_a_reader_of_an_older_epoch_is_ended(dial: Open, queue: str) -> None:
    channel = dial()
    epoch = acquire(channel, queue)
    plan(channel, queue, epoch, 0, 10)
    with dial().consume(queue, no_ack=True, arguments=slice_of(epoch, 1, 0, 10)) as consumer:
        assert consumer.next(30).body == b"0"
        acquire(channel, queue)
        with pytest.raises(ConsumerCancelled):
            for _ in range(11):
                consumer.next(30)


def filters_of(arguments: dict[str, Any]) -> dict[str, amqp10.Filter]:
    """Arguments of a reader as the filters that they are over AMQP 1.0."""
    return {name: amqp10.Filter(name.replace("x-lease", "leveret:lease"), value) for name, value in arguments.items()}


def test_a_slice_over_amqp_1_0(dial: Open, queue: str) -> None:
    epoch = acquire(dial(), queue)
    plan(dial(), queue, epoch, 0, 60)
    connection = dial.amqp10()
    for credit in (5, 100):
        filters = filters_of(slice_of(epoch, 1, 10, 40))
        with connection.receiver(f"/queues/{queue}", filters=filters, settled=True, prefetch=credit) as receiver:
            found = []
            for _ in range(40):
                delivery = receiver.next(30)
                annotations = delivery.message.annotations
                assert annotations is not None
                offset = annotations["x-stream-offset"]
                found.append((offset, int(bytes(delivery.body))))
        assert found == [(number, number) for number in range(10, 50)]
    for filters, settled in (
        (filters_of(slice_of(epoch, 1, 10, 51)), True),
        (filters_of(slice_of(epoch, 1, 10, 40)), False),
        ({"lease": amqp10.Filter("leveret:lease", "l")}, True),
        ({**filters_of(slice_of(epoch, 1, 0, 1)), "sql": amqp10.selector("a = 1")}, True),
    ):
        with pytest.raises(Error), connection.receiver(f"/queues/{queue}", filters=filters, settled=settled) as receiver:
            receiver.next(30)
    with connection.receiver(
        f"/queues/{queue}", filters=filters_of(slice_of(epoch, 1, 0, 60)), settled=True, prefetch=10
    ) as receiver:
        receiver.next(30)
        assert ask(dial(), "lease.commit", queue=queue, lease="l", epoch=epoch, batch=1)["committed"] == 1
        with pytest.raises(Error, match="released or taken over"):
            for _ in range(60):
                receiver.next(30)


def test_a_slow_reader_gets_everything(dial: Open, name: str) -> None:
    """More than a socket buffers, and a reader that takes its time."""
    channel = dial()
    channel.declare_queue(name, durable=True)
    body = b"x" * 100_000
    with channel.publisher() as publisher:
        for _ in range(200):
            publisher.publish(body, name)
    epoch = acquire(channel, name)
    assert plan(channel, name, epoch, 0, 1000)["octets"] == 20_000_000
    with dial().consume(name, no_ack=True, arguments=slice_of(epoch, 1, 10, 190)) as consumer:
        offsets = [offset_of(consumer.next(60)) for _ in range(190)]
    assert offsets == list(range(10, 200))
    dial().delete_queue(name)


def leveret(broker: Broker, *arguments: str) -> str:
    assert isinstance(broker, LeveretProcess)
    return subprocess.run(
        [sys.executable, "-m", "leveret", *arguments, "--data-dir", str(broker.data_dir)],
        text=True,
        check=True,
        timeout=120,
        capture_output=True,
    ).stdout


def test_the_command_line(dial: Open, broker: Broker, queue: str) -> None:
    channel = dial()
    epoch = acquire(channel, queue, timeout=3600)
    plan(channel, queue, epoch, 0, 10)
    plan(channel, queue, epoch, 1, 20)
    read(dial, queue, epoch, 1, 0, 1)
    found = [item for item in json.loads(leveret(broker, "leases", "--json")) if item["queue"] == queue]
    assert [(item["lease"], item["epoch"], item["messages"], item["timeout"]) for item in found] == [("l", epoch, 30, 3600)]
    assert [(item["batch"], item["count"], item["read"]) for item in found[0]["batches"]] == [(1, 10, True), (2, 20, False)]
    shown = leveret(broker, "leases", "list")
    assert queue in shown and "1 (10, read), 2 (20)" in " ".join(shown.split())
    assert (
        leveret(broker, "leases", "release", queue, "l") == f"released lease 'l': requeued 30 messages to queue '{queue}'\n"
    )
    assert ask(channel, "queue.describe", queue=queue)["leased"] == 0


@pytest.fixture
def reader(broker: Broker) -> Iterator[str]:
    """A user who may send requests, and read objects whose names begin with mine-."""
    assert isinstance(broker, LeveretProcess)
    options = ["--data-dir", str(broker.data_dir)]
    subprocess.run(
        [sys.executable, "-m", "leveret", "users", "add", "leaser", *options, "--password-file", "-"],
        input="secret\n",
        text=True,
        check=True,
        timeout=120,
        capture_output=True,
    )
    leveret(
        broker, "permissions", "set", "leaser", "--configure", ".*", "--write", r"^leveret\.control$", "--read", "^mine-"
    )
    yield "leaser"
    leveret(broker, "users", "delete", "leaser")


def test_a_lease_needs_read(dial: Open, queue: str, reader: str) -> None:
    epoch = acquire(dial(), queue)
    plan(dial(), queue, epoch, 0, 10)
    channel = dial(user=reader, password="secret")
    for operation, arguments in (
        ("lease.acquire", {}),
        ("lease.plan", {"epoch": epoch, "after": 0, "max_messages": 1}),
        ("lease.commit", {"epoch": epoch, "batch": 1}),
        ("lease.release", {}),
    ):
        with pytest.raises(Refused) as refused:
            ask(channel, operation, queue=queue, lease="l", **arguments)
        assert refused.value.condition == "access-refused"
    assert ask(channel, "lease.list")["leases"] == []
    with pytest.raises(AccessRefused), channel.consume(queue, no_ack=True, arguments=slice_of(epoch, 1, 0, 1)) as consumer:
        consumer.next(30)
