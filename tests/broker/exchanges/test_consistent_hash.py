"""RabbitMQ's x-consistent-hash."""

from __future__ import annotations

import pytest

from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges.base import Effort
from leveret.broker.exchanges.consistent_hash import ConsistentHashExchange
from leveret.broker.exchanges.fanout import FanoutExchange
from leveret.broker.values import FieldTable
from tests.broker.exchanges.support import make_target

KEYS = [f"key.{number}" for number in range(4_000)]


def bound(weights: dict[str, str]) -> ConsistentHashExchange:
    exchange = ConsistentHashExchange("x")
    for name, weight in weights.items():
        exchange.check_binding(weight, {})
        exchange.bind(make_target(name), weight, {})
    return exchange


def placed(exchange: ConsistentHashExchange) -> dict[str, str]:
    placement = {}
    for key in KEYS:
        (target,) = exchange.match(key, {}, "", Effort())
        placement[key] = target.name
    return placement


@pytest.mark.parametrize("weight", ["", "0", "-1", "+1", "a", "1.5", " 1", "1_0", "²", "٣", "1" * 10])
def test_a_bad_weight_is_refused(weight: str) -> None:
    with pytest.raises(PreconditionFailed, match="weight"):
        ConsistentHashExchange("x").check_binding(weight, {})


def test_shares_follow_the_weights() -> None:
    placement = list(placed(bound({"q1": "1", "q2": "2", "q5": "5"})).values())
    # Three standard deviations around 500, 1000 and 2500.
    assert abs(placement.count("q1") - 500) < 65
    assert abs(placement.count("q2") - 1000) < 85
    assert abs(placement.count("q5") - 2500) < 95


def test_a_new_binding_moves_only_its_share_and_back_when_removed() -> None:
    exchange = bound({"q1": "1", "q2": "1", "q3": "1"})
    before = placed(exchange)
    extra = make_target("q4")
    exchange.bind(extra, "1", {})
    after = placed(exchange)
    moved = {key for key in KEYS if before[key] != after[key]}
    assert {after[key] for key in moved} == {"q4"}
    assert abs(len(moved) - 1000) < 85
    exchange.unbind(extra, "1", {})
    assert placed(exchange) == before


def test_placement_depends_neither_on_order_nor_on_the_process() -> None:
    weights = {"q1": "1", "q2": "3", "q3": "2"}
    assert placed(bound(weights)) == placed(bound(dict(reversed(weights.items()))))
    exchange = bound(weights)
    assert [exchange.match(key, {}, "", Effort())[0].name for key in KEYS[:12]] == PINNED


# Placement must survive an upgrade: messages of one key must not change queues.
PINNED = ["q3", "q2", "q1", "q3", "q2", "q3", "q3", "q2", "q1", "q2", "q2", "q3"]


def test_weights_of_one_destination_add_up() -> None:
    twice = ConsistentHashExchange("x")
    queue = make_target("q1")
    twice.bind(queue, "1", {})
    twice.bind(queue, "2", {})
    twice.bind(make_target("q2"), "1", {})
    assert placed(twice) == placed(bound({"q1": "3", "q2": "1"}))
    twice.unbind(queue, "2", {})
    assert placed(twice) == placed(bound({"q1": "1", "q2": "1"}))


def test_a_queue_and_an_exchange_of_one_name_draw_separately() -> None:
    exchange = ConsistentHashExchange("x")
    queue, other = make_target("same"), FanoutExchange("same")
    exchange.bind(queue, "1", {})
    exchange.bind(other, "1", {})
    chosen = [exchange.match(key, {}, "", Effort())[0] for key in KEYS]
    assert abs(chosen.count(queue) - 2000) < 100
    assert abs(chosen.count(other) - 2000) < 100


def test_no_binding_no_destination() -> None:
    assert ConsistentHashExchange("x").match("a", {}, "", Effort()) == []


def test_hash_header_replaces_the_routing_key() -> None:
    exchange = ConsistentHashExchange("x", arguments={"hash-header": "tenant"})
    assert exchange.needs_headers
    assert exchange.needs_property == ""
    for number in range(8):
        exchange.bind(make_target(f"q{number}"), "1", {})
    same = {exchange.match(key, {"tenant": "t1"}, "", Effort())[0].name for key in KEYS[:50]}
    assert len(same) == 1
    spread = {exchange.match("k", {"tenant": f"t{number}"}, "", Effort())[0].name for number in range(200)}
    assert len(spread) == 8
    assert len({exchange.match(key, {}, "", Effort())[0].name for key in KEYS[:50]}) == 1


def test_hash_header_given_as_bytes_is_the_same_as_text() -> None:
    text = ConsistentHashExchange("x", arguments={"hash-header": "tenant"})
    as_bytes = ConsistentHashExchange("x", arguments={"hash-header": b"tenant"})
    for number in range(8):
        for exchange in (text, as_bytes):
            exchange.bind(make_target(f"q{number}"), "1", {})
    for number in range(50):
        headers: FieldTable = {"tenant": f"t{number}"}
        assert as_bytes.match("k", headers, "", Effort())[0].name == text.match("k", headers, "", Effort())[0].name


def test_hash_property_replaces_the_routing_key() -> None:
    exchange = ConsistentHashExchange("x", arguments={"hash-property": "message_id"})
    assert not exchange.needs_headers
    assert exchange.needs_property == "message-id"
    for number in range(8):
        exchange.bind(make_target(f"q{number}"), "1", {})
    assert len({exchange.match(key, {}, "m1", Effort())[0].name for key in KEYS[:50]}) == 1
    assert len({exchange.match("k", {}, f"m{number}", Effort())[0].name for number in range(200)}) == 8
