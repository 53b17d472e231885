"""`amqp:properties-filter` and `amqp:application-properties-filter`: AMQP Filter Expressions 1.0, section 4."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

import pytest

from leveret.selectors import EntryError, Limits, application_properties_filter, properties_filter
from tests.selectors.support import View

UNIQUE = UUID("12345678-1234-5678-1234-567812345678")

FULL: dict[str, object] = {
    "message-id": 7,
    "user-id": b"John",
    "to": "orders",
    "subject": "order.created",
    "reply-to": "&answers",
    "correlation-id": UNIQUE,
    "content-type": "text/plain",
    "content-encoding": "gzip",
    "absolute-expiry-time": 2000,
    "creation-time": 1000,
    "group-id": "group a",
    "group-sequence": 3,
    "reply-to-group-id": "group b",
}


def test_every_field_of_properties_can_be_tested() -> None:
    wanted = FULL | {"reply-to": "&&answers"}
    assert properties_filter(wanted).matches(View(properties=FULL))
    for name in FULL:
        found = properties_filter({name: wanted[name]})
        assert found.matches(View(properties=FULL)), name
        assert not found.matches(View(properties={key: value for key, value in FULL.items() if key != name})), name


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"subject": "order.created"}, True),
        ({"subject": "Order.created"}, False),
        ({"subject": "order"}, False),
        ({"subject": "&p:order"}, True),
        ({"subject": "&p:order.created"}, True),
        ({"subject": "&p:order.created."}, False),
        ({"subject": "&p:Order"}, False),
        ({"subject": "&p:"}, True),
        ({"subject": "&s:created"}, True),
        ({"subject": "&s:order"}, False),
        ({"subject": "&s:"}, True),
        ({"reply-to": "&&answers"}, True),
        ({"reply-to": "&p:&"}, True),
        ({"subject": None}, True),
        ({"subject": "&p:order", "group-sequence": 3}, True),
        ({"subject": "&p:order", "group-sequence": 4}, False),
        ({"message-id": 7}, True),
        ({"message-id": 8}, False),
        ({"message-id": "7"}, False),
        ({"correlation-id": UNIQUE}, True),
        ({"correlation-id": UNIQUE.bytes}, True),
        ({"correlation-id": str(UNIQUE)}, False),
        ({"user-id": b"John"}, True),
        ({"user-id": "John"}, True),
        ({"user-id": b"Joh"}, False),
        ({"content-type": "text/plain"}, True),
        # Symbols have no modifiers.
        ({"content-type": "&p:text"}, False),
    ],
)
def test_properties(fields: dict[str, object], wanted: bool) -> None:
    assert properties_filter(fields).matches(View(properties=FULL)) is wanted


def test_null_matches_a_missing_field_of_properties_and_nothing_else_does() -> None:
    assert properties_filter({"subject": None}).matches(View())
    assert not properties_filter({"subject": "&p:"}).matches(View())
    assert not properties_filter({"subject": ""}).matches(View())


@pytest.mark.parametrize(
    ("reference", "value", "wanted"),
    [
        ("emea", "emea", True),
        ("emea", "EMEA", False),
        ("&p:em", "emea", True),
        ("&s:ea", "emea", True),
        ("&&x", "&x", True),
        ("&p:em", 5, False),
        ("&s:5", 5, False),
        ("&p:em", b"emea", True),
        ("emea", b"emea", True),
        ("é", "é".encode(), True),
        (b"emea", "emea", True),
        (UNIQUE, UNIQUE, True),
        (1, 1, True),
        (1, 1.0, True),
        (1.5, Decimal("1.5"), True),
        (Decimal("1.5"), 1.5, True),
        (1, 2, False),
        (2**53 + 1, 2**53, False),
        (2**53 + 1, float(2**53), True),
        (0.1, 0.1, True),
        (float("nan"), float("nan"), False),
        (1, True, False),
        (True, 1, False),
        (True, True, True),
        (False, True, False),
        (True, "true", False),
        ("1", 1, False),
        (1, "1", False),
        (None, "anything", True),
        (None, [1], True),
        (1, [1], False),
        ("a", ["a"], False),
        ("", "", True),
        (None, None, False),
        ("a", None, False),
    ],
)
def test_application_properties(reference: object, value: object, wanted: bool) -> None:
    view = View() if value is None else View(key=value)
    assert application_properties_filter({"key": reference}).matches(view) is wanted


def test_every_entry_has_to_match() -> None:
    found = application_properties_filter({"a": 1, "b": "&p:x"})
    assert found.matches(View(a=1, b="xy", c=3))
    assert not found.matches(View(a=1, b="yx"))
    assert not found.matches(View(a=1))


@pytest.mark.parametrize(
    ("fields", "position", "expected"),
    [
        ({}, 0, "at least one entry"),
        ({"subject": "a", "colour": "red"}, 1, "a field of properties: message-id, user-id, to, subject"),
        ({"subject": 5}, 0, "a string"),
        ({"subject": b"a"}, 0, "a string"),
        ({"content-type": 5}, 0, "a symbol"),
        ({"message-id": 1.5}, 0, "a ulong, a uuid, a binary or a string"),
        ({"message-id": True}, 0, "a ulong, a uuid, a binary or a string"),
        ({"user-id": 5}, 0, "a binary"),
        ({"creation-time": "5"}, 0, "a timestamp"),
        ({"group-sequence": 1.0}, 0, "a uint"),
        ({"group-sequence": True}, 0, "a uint"),
        ({"subject": "&x:a"}, 0, "&p:, &s: or && at the start"),
        ({"subject": "&"}, 0, "&p:, &s: or && at the start"),
        ({"message-id": "&q"}, 0, "&p:, &s: or && at the start"),
    ],
)
def test_errors_of_properties(fields: dict[str, object], position: int, expected: str) -> None:
    with pytest.raises(EntryError) as caught:
        properties_filter(fields)
    assert caught.value.position == position
    assert caught.value.expected.startswith(expected)
    assert expected in str(caught.value)


@pytest.mark.parametrize("value", ["&x", [1], {"a": 1}, object()])
def test_errors_of_application_properties(value: object) -> None:
    with pytest.raises(EntryError) as caught:
        application_properties_filter({"a": 1, "b": value})
    assert (caught.value.position, caught.value.text) == (1, "b")


def test_a_map_has_a_limit() -> None:
    limits = Limits(entries=2)
    assert application_properties_filter({"a": 1, "b": 1}, limits).matches(View(a=1, b=1))
    with pytest.raises(EntryError, match="at most 2 entries"):
        application_properties_filter({"a": 1, "b": 1, "c": 1}, limits)
