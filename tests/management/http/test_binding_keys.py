"""`properties_key` of bindings."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.management.http.binding_keys import arguments_hash, matches, properties_key


@pytest.mark.parametrize(
    ("routing_key", "expected"),
    [("", "~"), ("routing", "routing"), ("a b", "a+b"), ("a.b-c_d", "a.b-c_d"), ("~", "%7E"), ("#/*", "%23%2F%2A")],
)
def test_without_arguments(routing_key: str, expected: str) -> None:
    key = properties_key(routing_key, {})
    assert key == expected
    assert matches(routing_key, key) or not routing_key
    assert not matches(routing_key + "x", key)


# The values are those of RabbitMQ 3.10, except for null, which it refuses: this one is of Erlang's phash2.
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"x-match": "all"}, "3ujGfg"),
        ({"x-match": "all", "n": 1}, "D79veA"),
        ({"n": -7, "x": ""}, "fIAu4A"),
        ({"n": 1 << 40, "z": -(1 << 62)}, "VJxYcA"),
        ({"f": 2.25, "t": True, "v": None}, "tDvRxQ"),
        ({"a": [1, "a longer text than twelve bytes, which takes three blocks"]}, "OY3nSg"),
        ({"a": [], "b": {"c": "ü"}}, "NqS8QA"),
        ({"t": {"z": 1, "b": 2, "a": [{"y": 1, "x": 2}]}}, "4Bm2hQ"),
        ({"n": 0}, "Lrk9ww"),
        ({"n": 3_000_000_000}, "f_7kbg"),
        ({"n": 1 << 62}, "9XBilQ"),
        ({"n": -(1 << 40)}, "HW3FZA"),
        ({"x": False}, "bR6z2w"),
        ({"f": 0.0}, "wyka5A"),
        ({"f": 1e30}, "cviIFA"),
    ],
)
def test_the_hash_of_erlang_terms(arguments: dict[str, Any], expected: str) -> None:
    assert arguments_hash(arguments) == expected
    assert properties_key("", arguments) == f"~{expected}"
    assert properties_key("key", arguments) == f"key~{expected}"


@pytest.mark.parametrize(
    "value", [0, 255, -1, 256, 1 << 31, -(1 << 40), 1 << 70, 1.5, True, None, "ü", [], [1, "a"], {}, {"b": 1, "a": []}]
)
def test_arguments_of_every_type(value: Any) -> None:
    key = properties_key("k", {"x": value})
    assert key == properties_key("k", {"x": value})
    assert key.startswith("k~")
    assert key != properties_key("k", {"x": "other"})


def test_the_order_of_arguments_is_ignored() -> None:
    assert properties_key("k", {"a": 1, "b": 2}) == properties_key("k", {"b": 2, "a": 1})
