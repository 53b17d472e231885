"""Arguments of queue.declare, exchange.declare and basic.consume."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker import arguments as a
from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues import registry


def parsed(
    values: dict[str, Any],
    *,
    durable: bool = True,
    exclusive: bool = False,
    auto_delete: bool = False,
    strict: bool = False,
) -> a.QueueSettings:
    return registry.parse_queue_arguments(
        values, durable=durable, exclusive=exclusive, auto_delete=auto_delete, strict=strict
    )


def test_no_arguments() -> None:
    settings = parsed({})
    assert settings.type == "classic"
    assert settings.overflow == a.DROP_HEAD
    assert settings.single_active_consumer is False
    assert settings.at_least_once is False
    for name in (
        "message_ttl",
        "expires",
        "max_length",
        "max_length_bytes",
        "dead_letter_exchange",
        "dead_letter_routing_key",
        "max_priority",
        "delivery_limit",
        "consumer_timeout",
    ):
        assert getattr(settings, name) is None, name
    assert settings.unknown == {}


def test_all_arguments() -> None:
    settings = parsed(
        {
            "x-queue-type": b"classic",
            "x-message-ttl": 5,
            "x-expires": 6,
            "x-max-length": 7,
            "x-max-length-bytes": 8,
            "x-overflow": "reject-publish-dlx",
            "x-dead-letter-exchange": b"",
            "x-dead-letter-routing-key": "k",
            "x-max-priority": 255,
            "x-delivery-limit": 3,
            "x-single-active-consumer": True,
            "x-consumer-timeout": 9,
            "x-dead-letter-strategy": "at-least-once",
        },
        strict=True,
    )
    assert (settings.message_ttl, settings.expires, settings.max_length, settings.max_length_bytes) == (5, 6, 7, 8)
    assert settings.overflow == a.REJECT_PUBLISH_DLX
    assert (settings.dead_letter_exchange, settings.dead_letter_routing_key) == ("", "k")
    assert (settings.max_priority, settings.delivery_limit, settings.consumer_timeout) == (255, 3, 9)
    assert settings.single_active_consumer
    assert settings.at_least_once


TEN_YEARS = 3652 * 24 * 60 * 60 * 1000
TEN_YEARS_AND_A_BIT = 3660 * 24 * 60 * 60 * 1000


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("x-message-ttl", -1, "from 0 to"),
        ("x-message-ttl", TEN_YEARS_AND_A_BIT, "milliseconds"),
        ("x-message-ttl", "100", "whole number"),
        ("x-message-ttl", 1.0, "whole number"),
        ("x-message-ttl", True, "whole number"),
        ("x-message-ttl", None, "whole number"),
        ("x-expires", 0, "from 1 to"),
        ("x-expires", TEN_YEARS_AND_A_BIT, "from 1 to"),
        ("x-max-length", -1, "from 0 to"),
        ("x-max-length-bytes", "1MB", "bytes"),
        ("x-overflow", "drop-tail", "drop-head, reject-publish, reject-publish-dlx"),
        ("x-overflow", 1, "drop-head"),
        ("x-dead-letter-exchange", 1, "string"),
        ("x-dead-letter-exchange", "x" * 256, "255 bytes"),
        ("x-dead-letter-strategy", "twice", "at-least-once"),
        ("x-max-priority", 256, "from 0 to 255"),
        ("x-max-priority", -1, "from 0 to 255"),
        ("x-delivery-limit", -2, "-1 for no limit"),
        ("x-single-active-consumer", 1, "true or false"),
        ("x-queue-type", "heap", "classic, quorum, stream"),
        ("x-queue-mode", "eager", "default, lazy"),
        ("x-queue-version", 3, "from 1 to 2"),
        ("x-queue-leader-locator", "moon", "client-local"),
        ("x-queue-master-locator", "moon", "min-masters"),
        ("x-quorum-initial-group-size", 0, "from 1 to"),
        ("x-quorum-target-group-size", "3", "from 1 to"),
        ("x-max-in-memory-length", -1, "from 0 to"),
        ("x-max-in-memory-bytes", [], "from 0 to"),
        ("x-consumer-timeout", -1, "from 0 to"),
    ],
)
def test_a_bad_value_names_argument_value_and_expectation(name: str, value: Any, expected: str) -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        parsed({"x-dead-letter-exchange": "", name: value})
    text = str(refusal.value)
    assert f"'{name}'" in text
    assert expected in text
    if value is not None and len(str(value)) < 60:
        assert str(value).lower() in text.lower()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-message-ttl", 0),
        ("x-message-ttl", TEN_YEARS),
        ("x-expires", TEN_YEARS),
        ("x-max-length", 0),
        ("x-max-priority", 0),
        ("x-max-priority", 255),
        ("x-delivery-limit", 0),
        ("x-ha-policy", "all"),
        ("x-ha-policy", 1),
        ("x-ha-policy-params", ["a", "b"]),
        ("x-queue-mode", "lazy"),
        ("x-queue-version", 2),
        ("x-queue-leader-locator", "balanced"),
        ("x-queue-master-locator", "min-masters"),
        ("x-quorum-initial-group-size", 3),
        ("x-quorum-target-group-size", 5),
        ("x-max-in-memory-length", 0),
    ],
)
def test_edge_values_and_values_without_effect_are_accepted(name: str, value: Any) -> None:
    assert parsed({name: value}, strict=True).unknown == {}


def test_a_dead_letter_routing_key_needs_its_exchange() -> None:
    with pytest.raises(PreconditionFailed, match=r"x-dead-letter-routing-key.*x-dead-letter-exchange"):
        parsed({"x-dead-letter-routing-key": "k"})


def test_a_refusal_stays_short_and_printable() -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        parsed({"x-message-ttl": "9" * 5000})
    assert len(str(refusal.value)) < 255
    with pytest.raises(PreconditionFailed, match=r"\\xff"):
        parsed({"x-overflow": b"\xff"})


def test_unknown_arguments_are_kept_or_refused() -> None:
    assert parsed({"x-mine": {"a": 1}}).unknown == {"x-mine": {"a": 1}}
    with pytest.raises(PreconditionFailed, match=r"unknown arg 'x-mine'.*x-message-ttl.*compat\.strict"):
        parsed({"x-mine": {"a": 1}}, strict=True)


def test_quorum() -> None:
    settings = parsed({"x-queue-type": "quorum"})
    assert (settings.type, settings.delivery_limit) == ("quorum", 20)
    assert parsed({"x-queue-type": "quorum", "x-delivery-limit": 5}).delivery_limit == 5
    assert parsed({"x-queue-type": "quorum", "x-delivery-limit": -1}).delivery_limit is None


def test_a_misplaced_age_limit_names_the_argument_of_other_queues() -> None:
    with pytest.raises(PreconditionFailed, match=r"'x-max-age'.*without.*'stream'.*queue types use 'x-message-ttl'"):
        parsed({"x-max-age": "7D"})


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"durable": False}, "durable=false"),
        ({"exclusive": True}, "exclusive=true"),
        ({"auto_delete": True}, "auto-delete=true"),
    ],
)
def test_quorum_refuses_other_properties(properties: dict[str, bool], named: str) -> None:
    with pytest.raises(PreconditionFailed, match=named):
        parsed({"x-queue-type": "quorum"}, **properties)
    assert parsed({"x-queue-type": "classic"}, **properties).type == "classic"


def test_exchange_arguments() -> None:
    settings = a.parse_exchange_arguments({"alternate-exchange": b"ae", "hash-header": "h", "x": 1}, strict=False)
    assert (settings.alternate_exchange, settings.hash_header, settings.hash_property) == ("ae", "h", None)
    assert settings.unknown == {"x": 1}
    settings = a.parse_exchange_arguments({"hash-property": "correlation_id"}, strict=True)
    assert settings.hash_property == "correlation-id"
    with pytest.raises(PreconditionFailed, match="message_id, correlation_id, timestamp"):
        a.parse_exchange_arguments({"hash-property": "priority"}, strict=False)
    with pytest.raises(PreconditionFailed, match="hash-header"):
        a.parse_exchange_arguments({"hash-property": "timestamp", "hash-header": "h"}, strict=False)
    with pytest.raises(PreconditionFailed, match="alternate-exchange"):
        a.parse_exchange_arguments({"alternate-exchange": 1}, strict=False)


def test_consumer_arguments() -> None:
    settings = a.parse_consumer_arguments({"x-priority": -7, "x-consumer-timeout": 0, "x-y": 1}, strict=False)
    assert (settings.priority, settings.timeout, settings.unknown) == (-7, 0, {"x-y": 1})
    settings = a.parse_consumer_arguments({}, strict=True)
    assert (settings.priority, settings.timeout) == (0, None)
    with pytest.raises(PreconditionFailed, match="x-priority"):
        a.parse_consumer_arguments({"x-priority": "high"}, strict=False)
    with pytest.raises(PreconditionFailed, match="unknown arg 'x-y'"):
        a.parse_consumer_arguments({"x-y": 1}, strict=True)


WHAT = "queue 'q' in vhost '/'"


def difference(current: dict[str, Any], received: dict[str, Any]) -> str | None:
    return a.equivalent(registry.QUEUE_ARGUMENTS, current, received, WHAT)


@pytest.mark.parametrize(
    ("current", "received"),
    [
        ({}, {}),
        ({"x-message-ttl": 5, "x-expires": 6}, {"x-expires": 6, "x-message-ttl": 5}),
        ({"x-overflow": "drop-head"}, {"x-overflow": b"drop-head"}),
        ({}, {"x-queue-type": "classic"}),
        ({"x-queue-type": "classic"}, {}),
        ({"x-ha-policy": "all"}, {}),
        ({}, {"x-queue-master-locator": "random"}),
        ({"mine": [1, {"b": 2, "a": 1}]}, {"mine": [1, {"a": 1, "b": 2}]}),
        ({"mine": None}, {"mine": None}),
    ],
)
def test_equivalent(current: dict[str, Any], received: dict[str, Any]) -> None:
    assert difference(current, received) is None


@pytest.mark.parametrize(
    ("current", "received", "text"),
    [
        ({"x-expires": 6}, {"x-expires": 5}, "'x-expires' for queue 'q' in vhost '/': received '5' but current is '6'"),
        ({"x-own": 5}, {"x-own": "5"}, "received '5' (string) but current is '5' (integer)"),
        ({"x-own": True}, {"x-own": "true"}, "received 'true' (string) but current is 'true' (boolean)"),
        *(
            ({"x-own": "1"}, {"x-own": value}, f"received '{text}' ({kind}) but current is '1' (string)")
            for value, text, kind in (
                (1, "1", "integer"),
                (1.5, "1.5", "float"),
                (Decimal("1.5"), "1.5", "decimal"),
                (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02 00:00:00+00:00", "timestamp"),
                (
                    {"a": Decimal("1.5"), "b": [True, None, b"x"], "c": datetime(2026, 1, 2, tzinfo=UTC)},
                    "{a: 1.5, b: [true, void, x], c: 2026-01-02 00:00:00+00:00}",
                    "table",
                ),
                ([1, "2"], "[1, 2]", "array"),
            )
        ),
        ({}, {"x-message-ttl": 5}, "'x-message-ttl' for queue 'q' in vhost '/': received '5' but current is none"),
        ({"x-message-ttl": 5}, {}, "'x-message-ttl' for queue 'q' in vhost '/': received none but current is '5'"),
        ({}, {"x-queue-type": "quorum"}, "received 'quorum' but current is 'classic'"),
        ({"x-single-active-consumer": True}, {"x-single-active-consumer": False}, "received 'false' but current is 'true'"),
        ({"mine": 1}, {"mine": True}, "'mine'"),
        ({"mine": 1}, {}, "'mine'"),
        ({"mine": None}, {}, "'mine'"),
        ({"x-max-length": 1, "x-expires": 1}, {}, "'x-expires'"),
    ],
)
def test_inequivalent(current: dict[str, Any], received: dict[str, Any], text: str) -> None:
    found = difference(current, received)
    assert found is not None
    assert found.startswith("inequivalent arg '")
    assert text in found


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.binary(max_size=5))
nested = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3))
tables = st.dictionaries(st.text(max_size=5), nested, max_size=4)


@given(tables)
def test_every_table_is_equivalent_to_itself(table: dict[str, Any]) -> None:
    assert difference(table, dict(reversed(table.items()))) is None


@given(st.dictionaries(st.sampled_from([*registry.QUEUE_ARGUMENTS, "x-other"]), nested))
def test_no_value_raises_anything_but_a_refusal(values: dict[str, Any]) -> None:
    try:
        parsed(values)
    except PreconditionFailed as refusal:
        assert "arg '" in str(refusal) or "property" in str(refusal)


def test_inequivalent_names_properties_too() -> None:
    assert a.inequivalent("durable", WHAT, False, True) == (
        "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'"
    )


@pytest.mark.parametrize(
    ("name", "is_misspelt"),
    [
        ("x-abc", False),
        ("x-abcd", True),
        ("x-ab", True),
        ("x-acb", True),
        ("x-abd", True),
        ("xx-abc", False),
        ("x-a", False),
        ("x-cba", False),
        ("x-abcde", False),
        ("", False),
        ("x-ab\udcff", True),
    ],
)
def test_misspelt_arguments(name: str, is_misspelt: bool) -> None:
    warnings = [f"unknown argument {name!a} has no effect; did you mean 'x-abc'?"] if is_misspelt else []
    assert a.misspelt_arguments(["x-abc", "x-long-name"], [name]) == warnings


def test_the_log_of_unknown_arguments(caplog: pytest.LogCaptureFixture) -> None:
    now = 0
    unknown = a.UnknownArguments(lambda: now)

    def logged(names: Iterable[str], effect: str = "") -> list[str]:
        caplog.clear()
        unknown.note(a.CONSUMER_ARGUMENTS, names, effect)
        return [record.getMessage() for record in caplog.records]

    assert logged(["x-own", "x-prioritty"]) == [
        "unknown argument 'x-prioritty' has no effect; did you mean 'x-priority'? (compat.strict refuses it)"
    ]
    assert logged(["x-prioritty"]) == []
    assert logged(["x-own"], "is ignored") == ["unknown argument 'x-own' is ignored (compat.strict refuses it)"]
    assert len(logged(map(str, range(1000)), "is ignored")) == a.MAX_NOTED_AT_ONCE
    while logged(map(str, range(len(unknown.noted), 10_000)), "is ignored"):
        pass
    assert len(unknown.noted) == a.MAX_NOTED
    now = a.NOTED_INTERVAL - 1
    assert logged(["x-prioritty2"]) == []
    assert logged(["x-priorty"]) == []
    now = a.NOTED_INTERVAL
    assert len(logged(["x-priorty"])) == 1
    assert len(unknown.noted) == 1
