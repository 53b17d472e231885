"""Bindings of every exchange type."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.errors import CommandInvalid
from leveret.broker.exchanges.base import Exchange
from leveret.broker.exchanges.registry import TYPES, make_exchange
from leveret.broker.values import FieldTable, freeze
from tests.broker.exchanges.support import make_target, matched


@pytest.fixture(params=sorted(TYPES))
def exchange(request: pytest.FixtureRequest) -> Exchange:
    arguments: FieldTable = {"x-delayed-type": "direct"} if request.param == "x-delayed-message" else {}
    return make_exchange(request.param, "x", arguments=arguments)


def test_equal_bindings_are_one_binding(exchange: Exchange) -> None:
    queue = make_target("q")
    assert exchange.bind(queue, "1", {"a": [1, {"b": True}]})
    assert not exchange.bind(queue, "1", {"a": [1, {"b": True}]})
    assert exchange.bind(queue, "1", {"a": [1, {"b": 1}]})
    assert exchange.bind(queue, "2", {"a": [1, {"b": True}]})
    assert exchange.bind(make_target("r"), "1", {"a": [1, {"b": True}]})
    assert len(exchange.bindings()) == 4


def test_a_destination_is_matched_once_until_its_last_binding_is_removed(exchange: Exchange) -> None:
    queue = make_target("q")
    headers = {"a": 1}
    exchange.bind(queue, "1", {"x-match": "all", "a": 1})
    exchange.bind(queue, "1", {"x-match": "any", "a": 1})
    assert matched(exchange, "1", headers) == ["q"]
    assert exchange.unbind(queue, "1", {"x-match": "any", "a": 1})
    assert matched(exchange, "1", headers) == ["q"]
    assert not exchange.unbind(queue, "1", {"x-match": "any", "a": 1})
    assert exchange.unbind(queue, "1", {"a": 1, "x-match": "all"})
    assert matched(exchange, "1", headers) == []
    assert exchange.bindings() == []
    assert not exchange.is_bound()
    assert not exchange.unbind(queue, "1", {})


def test_removing_a_destination_removes_its_bindings(exchange: Exchange) -> None:
    queue, other = make_target("q"), make_target("r")
    for key in ("1", "2", "3"):
        exchange.bind(queue, key, {})
    exchange.bind(other, "1", {})
    gone = list(exchange.unbind_destination(queue).values())
    for binding in gone:
        exchange.removed(binding)
    assert sorted(binding.routing_key for binding in gone) == ["1", "2", "3"]
    assert all(binding.destination is queue for binding in gone)
    assert exchange.unbind_destination(queue).values() == []
    assert [binding.destination for binding in exchange.bindings()] == [other]
    assert matched(exchange, "1") == ["r"]


def test_a_binding_can_be_added_again(exchange: Exchange) -> None:
    queue = make_target("q")
    for _ in range(2):
        assert exchange.bind(queue, "1", {})
        assert matched(exchange, "1") == ["q"]
        assert exchange.unbind(queue, "1", {})
        assert matched(exchange, "1") == []


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CommandInvalid, match=rf"'x-nothing'.*{', '.join(TYPES)}"):
        make_exchange("x-nothing", "x")


def test_frozen_values_distinguish_types() -> None:
    assert freeze({"a": 1, "b": [2, {}]}) == freeze({"b": [2, {}], "a": 1})
    assert freeze({"a": True}) != freeze({"a": 1})
    assert freeze({"a": "1"}) != freeze({"a": 1})
    assert freeze({"a": None}) != freeze({})
    assert freeze({"a": []}) != freeze({"a": {}})
    data: Any = bytearray(b"x")
    assert freeze(data) == freeze(b"x")
    assert hash(freeze({"a": [{"b": data}]})) is not None
