"""Any input yields a filter, or an error with its position, and no value makes a filter raise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.selectors import (
    EntryError,
    Limits,
    Selector,
    SelectorError,
    application_properties_filter,
    jms_selector,
    properties_filter,
    sql_filter,
)
from leveret.selectors.compilation import compiled
from leveret.selectors.lexer import JMS, SQL
from leveret.selectors.names import PROPERTIES_FIELDS
from leveret.selectors.syntax import Node
from tests.selectors import strategies
from tests.selectors.support import View

FRAGMENTS = [
    *("a", "b", "c", "JMSType", "amqp.annotation.x-y", "p.subject", "h.priority", "a.b", "m.[x]", '"y"', "[z]"),
    *("AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "ESCAPE", "BETWEEN", "TRUE", "FALSE", "UTC", "UTC()"),
    *("(", ")", ",", "=", "<>", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "&", "#", "."),
    *("0", "1", "007", "0x1F", "0b1", "1.5", ".5", "1.", "1e9", "5L", "2f", "0x1p3", "99999999999999999999"),
    *("'x'", "'%_'", "'!'", "'", '"', "[", "]", "\0"),
]

soup = st.lists(st.sampled_from([*FRAGMENTS, " ", ""]), max_size=30).map(" ".join)
tight = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)
anything = st.one_of(st.text(), soup, tight)
odd_views = st.builds(
    View,
    st.fixed_dictionaries(dict.fromkeys("abcd", strategies.odd_values)),
    header=st.fixed_dictionaries(dict.fromkeys(("priority", "durable", "delivery-count"), strategies.odd_values)),
    properties=st.fixed_dictionaries(dict.fromkeys(PROPERTIES_FIELDS, strategies.odd_values)),
)


def _accepted(make: Callable[[str], Selector], text: str) -> Selector | None:
    try:
        return make(text)
    except SelectorError as error:
        assert 0 <= error.position <= len(text)
        assert error.expected
        assert str(error)
        return None


@given(anything, odd_views)
def test_any_text_is_a_filter_or_an_error(text: str, view: View) -> None:
    for make in (jms_selector, sql_filter):
        selector = _accepted(make, text)
        if selector is not None:
            assert selector.evaluate(view) in (True, False, None)


@given(strategies.jms_trees(strategies.simple_names), strategies.sql_trees(strategies.simple_names), odd_views)
def test_no_value_makes_a_selector_raise(jms: Node, sql: Node, view: View) -> None:
    assert Selector("", compiled(jms, JMS)).evaluate(view) in (True, False, None)
    assert Selector("", compiled(sql, SQL)).evaluate(view) in (True, False, None)


JMS_NAMES = [
    *("JMSDeliveryMode", "JMSPriority", "JMSMessageID", "JMSTimestamp", "JMSCorrelationID", "JMSType", "JMSXUserID"),
    *("JMSXGroupID", "JMSXGroupSeq", "JMSXDeliveryCount", "amqp.message_id", "amqp.user_id", "amqp.correlation_id"),
    *("amqp.priority", "amqp.durable"),
]


@given(st.sampled_from(JMS_NAMES), odd_views)
def test_no_value_makes_a_name_raise(name: str, view: View) -> None:
    for text in (f"{name} = 'x'", f"{name} > 3", f"{name} LIKE 'x%'", f"{name} + 1 < 5", f"{name} IN ('a', 1)"):
        assert jms_selector(text).evaluate(view) in (True, False, None)


@given(st.dictionaries(st.sampled_from(PROPERTIES_FIELDS), strategies.odd_values, max_size=3), odd_views)
def test_any_map_is_a_filter_or_an_error(fields: dict[str, object], view: View) -> None:
    for make in (properties_filter, application_properties_filter):
        try:
            found = make(fields)
        except EntryError as error:
            assert str(error)
        else:
            assert found.matches(view) in (True, False)


@pytest.mark.parametrize("make", [jms_selector, sql_filter])
@pytest.mark.parametrize(
    "text",
    [
        "(" * 16_000,
        "NOT " * 4_000,
        "-" * 16_000 + "a = 1",
        "a" + " + a" * 4_000 + " = 1",
        "a" + " * a" * 4_000 + " = 1",
        "((((" * 20 + "a" + "+ 1)" * 80 + " = 1",
        "a = 1" + " OR a = 1" * 1_700,
        "9" * 16_000 + " = a",
        "0" * 16_000 + " = a",
        "1e" + "9" * 16_000 + " = a",
        "0." + "0" * 16_000 + "1 = a",
        "1_" * 8_000 + " = a",
        "'" * 16_001,
        "[" * 16_000,
        "a.[" + "]]" * 8_000,
        "x" * 17_000,
    ],
)
def test_long_and_deep_texts_are_refused_or_work(make: Callable[[str], Selector], text: str) -> None:
    selector = _accepted(make, text)
    if selector is not None:
        assert selector.evaluate(View(a=1)) in (True, False, None)


def test_limits() -> None:
    limits = Limits(length=20, terms=3, depth=4)
    for text, expected in (
        ("a = 1", None),
        ("a = 1              OR b", "at most 20 characters"),
        ("a = b OR c", None),
        ("a = b OR c OR d", "at most 3 terms"),
        ("((((a))))", None),
        ("(((((a)))))", "at most 4 levels"),
        ("NOT NOT NOT a", None),
        ("NOT NOT NOT NOT a", "at most 4 levels"),
        ("---a = 1", "at most 4 levels"),
    ):
        if expected is None:
            jms_selector(text, limits)
            continue
        with pytest.raises(SelectorError) as caught:
            jms_selector(text, limits)
        assert caught.value.expected == expected


@pytest.mark.parametrize("operand", ["NOT a", "(a)", "a = -(1)", "a = -b", "a = -1", "NOT (a = -(-b))"])
def test_closed_levels_do_not_count(operand: str) -> None:
    assert jms_selector(" OR ".join([operand] * 200)).evaluate(View()) is None


def test_as_many_choices_as_terms() -> None:
    choices = ", ".join(f"'{index}'" for index in range(1_999))
    assert jms_selector(f"a IN ({choices})").matches(View(a="1998"))
    with pytest.raises(SelectorError, match="at most 2000 terms"):
        jms_selector(f"a IN ({choices}, 'x')")
