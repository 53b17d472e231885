"""The load generator against a broker: its counts match what happened."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from bench import generator
from tests.support.broker import Broker, start_broker

pytestmark = pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def run(broker: Broker, *options: str) -> dict[str, Any]:
    return generator.run(broker.port, "run", *options, timeout=120)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--durable",),
        ("--window", "0", "--no-ack", "--size", "16"),
        ("--ack-single", "--ack-every", "7"),
        ("--publishers", "5", "--window", "1"),
        ("--consumers", "3", "--prefetch", "1", "--ack-every", "1"),
        ("--size", "300000", "--window", "4", "--ack-every", "4"),
    ],
)
def test_every_message_is_confirmed_and_delivered_once(broker: Broker, options: tuple[str, ...]) -> None:
    count = 100 if "300000" in options else 2000
    result = run(broker, *options, "--messages", str(count))
    assert result["published"] == result["delivered"] == count
    assert result["confirmed"] == (0 if options[:2] == ("--window", "0") else count)
    assert result["backlog"] == result["nacked"] == 0


OLD = ("--0-9", "--window", "0")


@pytest.mark.parametrize(
    "options",
    [
        OLD,
        (*OLD, "--durable"),
        (*OLD, "--no-ack", "--size", "16"),
        (*OLD, "--publishers", "3", "--consumers", "3"),
    ],
    ids=["transient", "durable", "no-ack", "many"],
)
def test_every_message_is_delivered_once_over_0_9(broker: Broker, options: tuple[str, ...]) -> None:
    result = run(broker, *options, "--max-backlog", "100", "--messages", "1998")
    assert result["published"] == result["delivered"] == 1998
    assert result["confirmed"] == result["backlog"] == 0


def test_0_9_has_no_confirms(broker: Broker) -> None:
    with pytest.raises(generator.GeneratorFailed, match="AMQP 0-9 has no confirms"):
        run(broker, "--0-9")


ONE = ("--publish-1.0", "--consume-1.0")


@pytest.mark.parametrize(
    "options",
    [
        ONE,
        (*ONE, "--durable"),
        (*ONE, "--window", "0", "--no-ack", "--size", "16"),
        (*ONE, "--ack-single", "--ack-every", "7"),
        (*ONE, "--publishers", "5", "--window", "1", "--consumers", "3"),
        (*ONE, "--no-declare", "--address", "", "--size", "60000", "--window", "4", "--prefetch", "4", "--ack-every", "2"),
        ("--publish-1.0", "--durable"),
        ("--consume-1.0", "--prefetch", "1", "--ack-every", "1"),
        (*ONE, "--properties"),
        ("--publish-1.0", "--properties"),
        ("--consume-1.0", "--properties"),
    ],
    ids=[
        "transient",
        "durable",
        "settled",
        "single",
        "many",
        "undeclared",
        "to-0-9-1",
        "from-0-9-1",
        "properties",
        "properties-to-0-9-1",
        "properties-from-0-9-1",
    ],
)
def test_every_message_is_accepted_and_delivered_once_over_1_0(broker: Broker, options: tuple[str, ...]) -> None:
    result = run(broker, *options, "--messages", "2000")
    assert result["published"] == result["delivered"] == 2000
    assert result["confirmed"] == (0 if "0" in options else 2000)
    assert result["backlog"] == result["nacked"] == 0
    assert result["latency_us"]["count"] >= 1000  # messages of the first turn are not counted


@pytest.mark.parametrize("options", [(), ("--publish-1.0",)], ids=["0-9-1", "1.0"])
def test_messages_with_properties(broker: Broker, options: tuple[str, ...]) -> None:
    run(broker, *options, "--properties", "--keep", "--consumers", "0", "--prefix", "with", "--messages", "20")
    with pika.BlockingConnection(pika.URLParameters(broker.url())) as connection:
        channel = connection.channel()
        found = [channel.basic_get("with-0", auto_ack=True)[1] for _ in range(20)]
        channel.queue_delete("with-0")
    assert [one.message_id for one in found] == [f"{number:016x}" for number in range(20)]
    assert {one.content_type for one in found} == {"application/json"}
    assert {one.timestamp for one in found} == {1_700_000_000}
    assert [one.headers for one in found] == [{"tenant": "acme", "attempt": 1}] * 20


def test_a_refused_link_is_reported(broker: Broker) -> None:
    with pytest.raises(generator.GeneratorFailed, match=r"ended the link: amqp:not-found .*queue"):
        run(broker, *ONE, "--no-declare", "--address", "/queues/missing-", "--messages", "1")


@pytest.mark.parametrize(
    ("options", "copies"),
    [
        (("--exchange", "fanout", "--queues", "4", "--consumers", "4"), 4),
        (("--exchange", "topic", "--queues", "3", "--consumers", "2", "--bindings", "60"), 1),
        (("--exchange", "topic", "--queues", "3", "--consumers", "2", "--bindings", "60", "--keys", "7"), 1),
    ],
)
def test_copies_by_exchange(broker: Broker, options: tuple[str, ...], copies: int) -> None:
    result = run(broker, *options, "--messages", "600")
    assert (result["published"], result["delivered"]) == (600, 600 * copies)


def test_a_queue_that_is_kept_is_drained_by_the_next_run(broker: Broker) -> None:
    common = ("--keep", "--durable", "--prefix", "kept", "--messages", "500")
    assert run(broker, *common, "--consumers", "0")["confirmed"] == 500
    assert run(broker, *common, "--publishers", "0")["delivered"] == 500


def test_a_rate_is_kept(broker: Broker) -> None:
    result = run(broker, "--rate", "500", "--messages", "100", "--ack-every", "1")
    assert result["delivered"] == 100
    # The last of 100 messages at 500 per second is due after 0.2 s.
    assert result["seconds"] >= 0.19


def test_a_consumer_keeps_its_rate(broker: Broker) -> None:
    result = run(broker, "--window", "0", "--no-ack", "--consume-rate", "500", "--messages", "200")
    assert result["delivered"] == 200
    # The last of 200 messages at 500 per second is due after 0.4 s. It is read with earlier ones, in pieces of 4 KiB.
    assert result["seconds"] >= 0.3


def test_a_publisher_without_a_limit_on_its_backlog_never_pauses(broker: Broker) -> None:
    slow = ("--window", "0", "--no-ack", "--consume-rate", "1", "--warmup", "0", "--seconds", "0.5")
    assert run(broker, *slow, "--max-backlog", "100")["published"] <= 1000
    assert run(broker, *slow, "--max-backlog", "0")["published"] > 1000


def test_the_floor_echoes_at_a_rate_without_a_broker() -> None:
    result = generator.floor(1000, "--messages", "50", "--size", "300000")
    assert result["messages"] == 50
    assert result["seconds"] >= 0.05
    latency = result["latency_us"]
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]


def test_the_floor_needs_a_rate() -> None:
    with pytest.raises(generator.GeneratorFailed, match="--rate"):
        generator.floor(0, "--messages", "1")


def test_a_refusal_is_reported(broker: Broker) -> None:
    with pytest.raises(generator.GeneratorFailed, match=r"403|closed the connection"):
        run(broker, "--password", "wrong", "--messages", "1")


def test_idle_connections_stay_open_until_the_input_ends(broker: Broker) -> None:
    load = generator.Load(broker.port, "idle", "--messages", "20", "--heartbeat", "1")
    assert load.line() == "open\n"
    assert load.result(timeout=60) == {"connections": 20}
