"""Topology that a connection restores: bindings of removed exchanges and queues are not restored."""

from __future__ import annotations

from typing import Any

from leveret.client.engine.common.topology import Topology


def arguments(destination: str, name: str, source: str) -> dict[str, Any]:
    return {
        destination: name,
        "exchange" if destination == "queue" else "source": source,
        "routing_key": "k",
        "arguments": {},
    }


def topology() -> Topology:
    found = Topology()
    found.bind(True, arguments("queue", "q", "one"))
    found.bind(True, arguments("queue", "one", "two"))
    found.bind(False, arguments("destination", "one", "two"))
    found.bind(False, arguments("destination", "two", "one"))
    return found


def left(found: Topology) -> list[tuple[bool, str, str]]:
    return [(binding.to_queue, binding.destination, binding.source) for binding in found.bindings.values()]


def test_a_removed_exchange_takes_the_bindings_from_it_and_to_it() -> None:
    found = topology()
    found.remove_exchange("one")
    # A queue may have the same name.
    assert left(found) == [(True, "one", "two")]


def test_a_removed_queue_takes_the_bindings_to_it() -> None:
    found = topology()
    found.remove_queue("one")
    assert left(found) == [(True, "q", "one"), (False, "one", "two"), (False, "two", "one")]
