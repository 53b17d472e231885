"""0-9-1 section 3.1.3.4 with RabbitMQ's rules for x-match."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges.headers import HeadersExchange
from tests.broker.exchanges.support import make_target, matched


def matches(arguments: dict[str, Any], headers: dict[str, Any]) -> bool:
    exchange = HeadersExchange("x")
    exchange.check_binding("", arguments)
    exchange.bind(make_target("q"), "", arguments)
    return matched(exchange, "ignored", headers) == ["q"]


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 0}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"x-match": "all", "a": 1, "b": 2}, {"a": 1, "b": 3}, False),
        ({"x-match": b"any", "a": 1, "b": 2}, {"a": 1, "b": 3}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"a": 2, "b": 3}, False),
        ({"x-match": "any", "a": 1}, {}, False),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "all"}, {"a": 1}, True),
        ({}, {}, True),
        # keys that begin with x-
        ({"x-match": "all", "x-a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "x-a": 1, "b": 2}, {"x-a": 1}, False),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2}, False),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2, "x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 1}, True),
        # void asks for presence
        ({"a": None}, {"a": 5}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {"b": 5}, False),
        ({"a": 5}, {"a": None}, False),
        # types
        ({"a": 1}, {"a": True}, False),
        ({"a": True}, {"a": True}, True),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": "ü"}, {"a": "ü".encode()}, True),
        ({"a": b"\xff"}, {"a": b"\xff".decode("utf-8", "surrogateescape")}, True),
        ({"a": Decimal("1.50")}, {"a": Decimal("1.5")}, True),
        ({"a": datetime(2020, 1, 1, tzinfo=UTC)}, {"a": datetime(2020, 1, 1, tzinfo=UTC)}, True),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, True),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": True}]}, False),
    ],
)
def test_matching(arguments: dict[str, Any], headers: dict[str, Any], expected: bool) -> None:
    assert matches(arguments, headers) is expected


@pytest.mark.parametrize("value", ["some", "", 1, None, "ALL", b"\xff"])
def test_an_unknown_x_match_is_refused(value: Any) -> None:
    with pytest.raises(PreconditionFailed, match=r"x-match.*all, any, all-with-x, any-with-x"):
        HeadersExchange("x").check_binding("", {"x-match": value})


names = st.sampled_from(["a", "b", "x-a", "x-b"])
values = st.one_of(st.none(), st.booleans(), st.integers(0, 1), st.sampled_from(["0", "1"]))


@given(
    st.dictionaries(names, values),
    st.dictionaries(names, values),
    st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"]),
)
def test_agrees_with_the_rules_in_words(wanted: dict[str, Any], headers: dict[str, Any], mode: str | None) -> None:
    compared = {
        name: value for name, value in wanted.items() if (mode or "").endswith("-with-x") or not name.startswith("x-")
    }
    hits = [
        name in headers and (value is None or (type(value), value) == (type(headers[name]), headers[name]))
        for name, value in compared.items()
    ]
    expected = any(hits) if (mode or "all").startswith("any") else all(hits)
    assert matches(wanted if mode is None else {"x-match": mode, **wanted}, headers) is expected


def test_needs_headers() -> None:
    assert HeadersExchange("x").needs_headers
