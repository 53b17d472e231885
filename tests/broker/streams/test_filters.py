"""Filters of stream readers, by filter value and by routing key."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import Overlay, make_address
from leveret.broker.streams.filters import StreamFilter
from tests.broker.support import World


@pytest.fixture
def world() -> World:
    return World()


def wants(world: World, arguments: dict[str, Any], key: str = "k", overlay: Overlay | None = None, **headers: Any) -> bool:
    filter = StreamFilter({f"x-stream-{name.replace('_', '-')}": value for name, value in arguments.items()})
    assert not filter.any
    message = world.message(key=key, headers={name.replace("_", "-"): value for name, value in headers.items()})
    return filter.wants(world.broker, message, overlay)


KEYS = ["a.b", "a", "a.b.c", "b.a", ""]


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        ("a.b", ["a.b"]),
        ("a.*", ["a.b"]),
        ("a.#", ["a.b", "a", "a.b.c"]),
        ("#", KEYS),
        (["a", "b.*"], ["a", "b.a"]),
        (b"b.#", ["b.a"]),
        ("", [""]),
    ],
    ids=str,
)
def test_routing_keys(world: World, patterns: Any, wanted: list[str]) -> None:
    filter = StreamFilter({"x-stream-filter-routing-key": patterns})
    for _ in range(2):
        assert [key for key in KEYS if filter.wants(world.broker, world.message(key=key), None)] == wanted


def test_the_key_of_a_dead_letter_is_its_new_one(world: World) -> None:
    overlay = Overlay(make_address("x", "new"))
    assert wants(world, {"filter_routing_key": "new"}, "old", overlay)
    assert not wants(world, {"filter_routing_key": "old"}, "old", overlay)
    assert wants(world, {"filter_routing_key": "old"}, "old", Overlay())


@pytest.mark.parametrize(
    ("wanted", "value", "taken"),
    [
        ("red", "red", True),
        ("red", "blue", False),
        (["red", "blue"], "blue", True),
        ("red", "reddish", False),
        ("5", 5, True),
        ("5", 6, False),
        ("rot", None, False),
    ],
    ids=str,
)
def test_values(world: World, wanted: Any, value: Any, taken: bool) -> None:
    headers = {} if value is None else {"x_stream_filter_value": value}
    assert wants(world, {"filter": wanted}, **headers) is taken
    assert wants(world, {"filter": wanted, "match_unfiltered": True}, **headers) is (taken or value is None)


def test_a_matching_value_elsewhere_is_ignored(world: World) -> None:
    assert not wants(world, {"filter": "red"}, x_stream_filter_value="blue", colour="red")
    assert not wants(world, {"filter": "red"}, colour="red")


def test_both(world: World) -> None:
    arguments = {"filter": "red", "filter_routing_key": "a.#"}
    assert wants(world, arguments, "a.b", x_stream_filter_value="red")
    assert not wants(world, arguments, "b", x_stream_filter_value="red")
    assert not wants(world, arguments, "a.b", x_stream_filter_value="blue")


def test_a_reader_without_a_filter_gets_everything() -> None:
    assert StreamFilter({}).any
    assert StreamFilter({"x-stream-match-unfiltered": True}).any


@pytest.mark.parametrize("name", ["x-stream-filter", "x-stream-filter-routing-key"])
@pytest.mark.parametrize("value", [5, [], ["a", 5], {}, True], ids=repr)
def test_invalid_filters_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(PreconditionFailed, match=f"'{name}'.*a string or a list of strings"):
        StreamFilter({name: value})
