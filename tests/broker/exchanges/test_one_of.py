"""RabbitMQ's x-random and x-modulus-hash: one destination for each message."""

from __future__ import annotations

from collections import Counter

import pytest

from leveret.broker.exchanges.base import Effort, Exchange
from leveret.broker.exchanges.local_random import LocalRandomExchange
from leveret.broker.exchanges.modulus_hash import ModulusHashExchange
from leveret.broker.exchanges.random_choice import RandomExchange
from tests.broker.exchanges.support import make_target

KEYS = [f"key.{number}" for number in range(4_000)]
TYPES = pytest.mark.parametrize("type_of", [ModulusHashExchange, RandomExchange, LocalRandomExchange])


def bound(exchange: Exchange, *names: str) -> Exchange:
    for name in names:
        exchange.bind(make_target(name), f"ignored by {name}", {})
    return exchange


def chosen(exchange: Exchange) -> list[str]:
    names = []
    for key in KEYS:
        (target,) = exchange.match(key, {}, "", Effort())
        names.append(target.name)
    return names


@TYPES
def test_messages_are_spread_evenly(type_of: type[Exchange]) -> None:
    counts = Counter(chosen(bound(type_of("x"), "q1", "q2", "q3", "q4")))
    # Five standard deviations around 1000.
    assert set(counts) == {"q1", "q2", "q3", "q4"} and all(abs(count - 1000) < 137 for count in counts.values())


@TYPES
def test_bindings_to_a_destination_count_once(type_of: type[Exchange]) -> None:
    exchange = bound(type_of("x"), "q1")
    often = make_target("q2")
    for number in range(9):
        exchange.bind(often, f"{number}", {})
    assert abs(chosen(exchange).count("q2") - 2000) < 160
    for number in range(8):
        exchange.unbind(often, f"{number}", {})
    assert abs(chosen(exchange).count("q2") - 2000) < 160
    exchange.unbind(often, "8", {})
    assert set(chosen(exchange)) == {"q1"}


@TYPES
def test_nothing_is_routed_to_a_destination_that_is_being_deleted(type_of: type[Exchange]) -> None:
    exchange = type_of("x")
    assert exchange.match("k", {}, "", Effort()) == []
    targets = [make_target(name) for name in ("q", "q", "r")]
    for target in targets:
        exchange.bind(target, "", {})
    targets[1].deleted = True
    found = {id(exchange.match(key, {}, "", Effort())[0]) for key in KEYS}
    assert found == {id(targets[0]), id(targets[2])}
    exchange.unbind(targets[1], "", {})
    targets[0].deleted = targets[2].deleted = True
    assert exchange.match("k", {}, "", Effort()) == []


def test_the_random_choice_varies_for_one_address() -> None:
    exchange = bound(RandomExchange("x"), "q1", "q2")
    assert exchange.varies() and not ModulusHashExchange("y").varies()
    assert {exchange.match("k", {}, "", Effort())[0].name for _ in range(100)} == {"q1", "q2"}


def test_the_modulus_depends_neither_on_the_order_of_bindings_nor_on_the_process() -> None:
    placement = chosen(bound(ModulusHashExchange("x"), "q1", "q2", "q3"))
    assert placement == chosen(bound(ModulusHashExchange("x"), "q3", "q1", "q2"))
    # Messages of one key must not change queues with an upgrade.
    assert placement[:12] == PINNED


PINNED = ["q2", "q1", "q2", "q2", "q2", "q2", "q2", "q1", "q1", "q3", "q1", "q3"]
