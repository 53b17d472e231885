"""The queues that a message would reach, on a broker in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret.broker.errors import AccessRefused, NotFound
from leveret.management.operations.messages import MAX_MESSAGES
from tests.management.harness import Harness
from tests.management.test_messages_in_place import declare, payloads


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    for name in ("one", "two", "rest"):
        declare(harness, name)
    yield harness
    harness.close()


def add_exchange(harness: Harness, name: str, kind: str, **more: Any) -> None:
    harness.call("exchanges.add", name=name, type=kind, **more)


def bind(harness: Harness, source: str, destination: str, key: str = "") -> None:
    harness.call("bindings.add", source=source, destination=destination, routing_key=key)


def destinations(harness: Harness, exchange: str, key: str = "", **properties: Any) -> list[str]:
    found = harness.call("messages.destinations", exchange=exchange, routing_key=key, properties=properties)
    assert found["total"] == len(found["queues"])
    return sorted(found["queues"])


def test_a_message_is_routed_and_not_published(harness: Harness) -> None:
    add_exchange(harness, "orders", "topic", arguments={"alternate-exchange": "others"})
    add_exchange(harness, "others", "fanout")
    bind(harness, "orders", "one", "order.*")
    bind(harness, "others", "rest")
    assert destinations(harness, "orders", "order.5") == ["one"]
    assert destinations(harness, "orders", "bill.5") == ["rest"]
    assert destinations(harness, "orders", "bill.5", headers={"CC": ["order.7"]}) == ["one"]
    assert (destinations(harness, "", "two"), destinations(harness, "", "missing")) == (["two"], [])
    assert [payloads(harness, name) for name in ("one", "two", "rest")] == [[], [], []]


def test_an_exchange_that_chooses_by_hash(harness: Harness) -> None:
    add_exchange(harness, "shards", "x-consistent-hash")
    bind(harness, "shards", "one", "1")
    bind(harness, "shards", "two", "1")
    chosen = [destinations(harness, "shards", str(number)) for number in range(20)]
    assert {name for names in chosen for name in names} == {"one", "two"}
    for number, names in enumerate(chosen):
        harness.call("messages.publish", exchange="shards", routing_key=str(number), payload=str(number))
        assert str(number) in payloads(harness, names[0])


def test_the_number_of_returned_names_is_limited(harness: Harness) -> None:
    for number in range(MAX_MESSAGES + 2):
        declare(harness, f"q{number}")
        bind(harness, "amq.fanout", f"q{number}")
    found = harness.call("messages.destinations", exchange="amq.fanout")
    assert (len(found["queues"]), found["total"]) == (MAX_MESSAGES, MAX_MESSAGES + 2)


def test_exchanges_to_which_clients_cannot_publish(harness: Harness) -> None:
    add_exchange(harness, "inside", "fanout", internal=True)
    with pytest.raises(AccessRefused, match="cannot publish to exchange 'inside'"):
        destinations(harness, "inside")
    with pytest.raises(NotFound):
        destinations(harness, "missing")
