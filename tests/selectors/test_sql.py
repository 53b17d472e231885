"""`amqp:sql-filter`: the examples of RabbitMQ 4.2's documentation of stream filtering, one expression per row."""

from __future__ import annotations

from uuid import UUID

import pytest

from leveret.selectors import SelectorError, sql_filter
from tests.selectors.support import NOW, View

T, F, U = True, False, None

ORDER = View(
    {"order-status": "pending", "注文状況": "pending", "and": 1, "a]b[c": 2},
    age=25,
    temperature=-5.5,
    active=True,
    name="Alice",
    quote="It's great",
    underscored="_foo",
    blob=b"\xff",
    raw=b"red",
    big=2**64 - 1,
    color="blue",
    header={"priority": 5, "durable": True},
    annotations={"x-opt-kind": "new"},
    properties={
        "message-id": UUID(int=0x426F62),
        "user-id": b"John",
        "to": "orders",
        "subject": "order.created",
        "reply-to": "/queues/q1",
        "content-type": "application/json",
        "absolute-expiry-time": NOW + 1,
        "creation-time": NOW - 1,
        "group-id": "Group A",
        "group-sequence": 6,
    },
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # Sections
        ("header.priority = 5", T),
        ("h.priority > 4", T),
        ("h.durable = TRUE", T),
        ("h.delivery_count = 0", T),
        ("properties.user_id = 'John'", T),
        ("p.user_id = 0x4A6F686E", T),
        ("p.message_id = 0x00000000000000000000000000426F62", T),
        ("p.to = 'orders'", T),
        ("p.subject LIKE 'order%'", T),
        ("p.reply_to = '/queues/q1'", T),
        ("p.correlation_id IS NOT NULL", F),
        ("p.correlation_id IS NULL", T),
        ("p.content_type = 'application/json'", T),
        ("p.content_encoding IN ('gzip', 'zstd')", U),
        ("p.absolute_expiry_time > UTC()", T),
        ("p.creation_time < UTC() - 3600000", F),
        ('p.group_id = "Group A"', T),
        ("p.group_sequence % 3 = 0", T),
        ("p.reply_to_group_id = 'Group B'", U),
        ("application_properties.color = 'blue'", T),
        ("a.color = 'blue'", T),
        ("color = 'blue'", T),
        ("a.and = 1", T),
        ("m.[x-opt-kind] = 'new' AND message_annotations.[x-opt-kind] = 'new'", T),
        ("subject = 'order.created'", U),
        ("a.[order-status] = 'pending'", T),
        # Constants
        ("age = 25", T),
        ("age = 025", T),
        ("temperature = -5.5", T),
        ("temperature * -1E0 = 5.5", T),
        ("age = 2.5E1", T),
        ("active = TRUE", T),
        ("name = 'Alice'", T),
        ('name = "Alice"', T),
        ("quote = 'It''s great'", T),
        ('quote = "It\'s great"', T),
        ("'😎☀️' = '😎☀️'", T),
        ("big = 18446744073709551615", T),
        ("big + 1 > big", T),
        # Identifiers
        ("[order-status] = 'pending'", T),
        ("[注文状況] = 'pending'", T),
        ("[and] = 1", T),
        ("[a]]b[[c] = 2", T),
        ("[] IS NULL", T),
        ("[UTC] IS NULL", T),
        # Logic and comparison
        ("h.priority > 4 AND p.subject = 'order.created'", T),
        ("NOT active", F),
        ("(name = 'x' OR name = 'Alice') AND age < 26", T),
        ("name != 'Bob'", T),
        ("name <> 'Alice'", F),
        ("name > 'Alan'", T),
        ("name <= 'Alice'", T),
        ("raw = 'red'", T),
        ("raw < 'ree'", T),
        ("raw IN ('red')", T),
        ("raw NOT IN ('red', 'blue')", F),
        # Values of different types differ, and are in no order.
        ("name = 5", F),
        ("name <> 5", T),
        ("active <> 1", T),
        ("name > 5", F),
        ("3 > 'London'", F),
        ("active < TRUE", F),
        # Arithmetic
        ("age + 5 > 29", T),
        ("age / 2 = 12.5", T),
        ("age / 0 = 1", U),
        ("3 / 0 IS NULL", T),
        ("-7 % 3 = -1", T),
        ("7 % -3 = 1", T),
        ("7 % 0 = 1", U),
        ("3 % 1.2 = 0", U),
        ("age / 0.0 = 1", U),
        ("1E308 * 10 > 0", U),
        ("name + 'x' = 'Alicex'", U),
        ("-age = -25 AND +age = 25", T),
        ("-name = 1", U),
        # Other predicates
        ("name LIKE 'A%e'", T),
        ("name NOT LIKE 'John%'", T),
        ("name LIKE '___ce'", T),
        ("raw LIKE 'r_d'", T),
        ("blob LIKE '%'", U),
        ("blob NOT LIKE '%'", U),
        ("age LIKE '%'", U),
        ("age NOT LIKE '%'", U),
        (r"underscored LIKE '\_%' ESCAPE '\'", T),
        (r"name LIKE '\_%' ESCAPE '\'", F),
        ("name NOT IN ('DEV', 'STAGING')", T),
        ("age IN (1, age - 0, 'x')", T),
        ("age IN (missing)", F),
        ("age NOT IN (missing)", T),
        ("missing IN (missing)", U),
        # Values that are not conditions are never true.
        ("5", U),
        ("name", U),
        ("name OR TRUE", T),
        ("between = 1", U),
        ("INF IS NULL", T),
    ],
)
def test_filters(text: str, wanted: bool | None) -> None:
    found = sql_filter(text)
    assert found.evaluate(ORDER) is wanted
    assert found.matches(ORDER) is (wanted is True)


def test_the_documented_example() -> None:
    found = sql_filter(
        "p.subject = 'order.created' AND p.creation_time > UTC() - 3600000 AND region IN ('AMER', 'EMEA', 'APJ') AND "
        "(h.priority > 4 OR price >= 99.99 OR premium_customer = TRUE)"
    )
    properties: dict[str, object] = {"subject": "order.created", "creation-time": NOW - 3_599_999}
    assert found.matches(View(properties=properties, region="EMEA", premium_customer=True))
    assert found.matches(View(properties=properties, region="EMEA", price=99.99))
    assert not found.matches(View(properties=properties, region="EMEA", price=99))
    assert not found.matches(View(properties=properties | {"creation-time": NOW - 3_600_000}, region="EMEA", price=100))
    assert not found.matches(View(properties=properties, price=100))


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("", 0, "a literal, an identifier or '('"),
        ("a = 1 and b = 2", 6, "AND in upper case, or [and] for the property"),
        ("a = true", 4, "TRUE in upper case, or [true] for the property"),
        ("lower = 1", 0, "[lower] for the property (LOWER is not supported)"),
        ("EXISTS(a)", 0, "[EXISTS] for the property (EXISTS is not supported)"),
        ("a BETWEEN 1 AND 2", 2, "an operator or the end"),
        ("f.x = 1", 0, "one of the sections header, h, message_annotations, m, properties, p, application_properties, a"),
        ("header.x = 1", 0, "a field of header: durable, priority, ttl, first_acquirer, delivery_count"),
        ("p. = 1", 2, "the name of a field"),
        ("a = 0x123", 9, "an even number of hexadecimal digits"),
        ("a = 18446744073709551616", 4, "a number from -9223372036854775808 to 18446744073709551615"),
        ("[a = 1", 6, "a closing ]"),
        ("[a[ = 1", 2, "[[ for a bracket in a name"),
        ("UTC = 1", 4, "'('"),
        ("UTC(1)", 4, "')'"),
        ("größe = 1", 2, "a literal, an identifier or an operator"),
        ("a NOT NULL", 6, "IN or LIKE"),
        ("a LIKE \"x\" ESCAPE 'ab'", 18, "one character in quotes"),
    ],
)
def test_errors(text: str, position: int, expected: str) -> None:
    with pytest.raises(SelectorError) as caught:
        sql_filter(text)
    assert (caught.value.position, caught.value.expected) == (position, expected)
