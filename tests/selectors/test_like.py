"""LIKE: patterns against the definition, and patterns that are exponential elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.selectors.compilation import jms_selector, sql_filter
from leveret.selectors.errors import SelectorError
from leveret.selectors.evaluate import Selector
from leveret.selectors.like import MAX_VALUE, Pattern
from tests.selectors.reference import like
from tests.selectors.support import View
from tests.support.examples import examples


@pytest.mark.parametrize(
    ("pattern", "value", "wanted"),
    [
        ("", "", True),
        ("", "a", False),
        ("%", "", True),
        ("%%", "", True),
        ("_", "", False),
        ("_", "é", True),
        ("_", "😎", True),
        ("__", "a", False),
        ("a%", "a", True),
        ("a%a", "a", False),
        ("a%a", "aa", True),
        ("%a%a%", "a", False),
        ("%_%", "", False),
        ("%_%", "a", True),
        ("%_a_%", "bab", True),
        ("%_a_%", "abb", False),
        ("%a_c%", "xxabcabx", True),
        ("%a_c%", "xxabbabx", False),
        ("%a_%b", "xab", False),
        ("%a_%b", "xaab", True),
        ("%_a%b", "abb", False),
        ("a%b_d%e", "axxbcdxxe", True),
        ("a%b_d%e", "axxbcde", True),
        ("a%b_d%de", "axxbcde", False),
        ("a.c", "abc", False),
        ("a\n%", "a\nb\nc", True),
        ("[a]", "a", False),
        ("*", "a", False),
        ("A", "a", False),
    ],
)
def test_patterns(pattern: str, value: str, wanted: bool) -> None:
    assert Pattern(pattern).matches(value) is wanted


@pytest.mark.parametrize(
    ("pattern", "escape", "value", "wanted"),
    [
        ("!%", "!", "%", True),
        ("!%", "!", "a", False),
        ("!_%", "!", "_foo", True),
        ("!_%", "!", "bar", False),
        ("!!", "!", "!", True),
        ("!a", "!", "a", True),
        ("%%", "%", "%", True),
        ("%%", "%", "%%", False),
        ("a__", "_", "a_", True),
    ],
)
def test_escapes(pattern: str, escape: str, value: str, wanted: bool) -> None:
    assert Pattern(pattern, escape).matches(value) is wanted


@pytest.mark.parametrize("pattern", ["!", "a!", "!!!"])
def test_a_pattern_cannot_end_in_its_escape_character(pattern: str) -> None:
    with pytest.raises(ValueError, match="does not end with its escape"):
        Pattern(pattern, "!")


@examples(1000)
@given(st.text("ab%_", max_size=9), st.text("ab", max_size=9))
def test_every_pattern_matches_as_defined(pattern: str, value: str) -> None:
    assert Pattern(pattern).matches(value) is like(value, pattern, "")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "pattern",
    [
        "%a" * 2_000 + "b",
        "%a%a%a%a%a%a%a%a%a%a%a%a%a%a%a%b%",
        "%" + "a" * 4_000 + "b%",
        "%" + "a_" * 29 + "b%",
        "%a" + "_" * 58 + "b%",
        "a_%" * 1_000 + "b",
        "%_" * 2_000 + "b",
        "%" * 8_000 + "b",
    ],
)
def test_the_time_grows_only_with_the_value(pattern: str) -> None:
    """With backtracking, each would take longer than the age of the universe; with time proportional to the product of the
    lengths, minutes. The timeout is far below either."""
    assert not Pattern(pattern).matches("a" * 200_000)
    assert Pattern(pattern + "%").matches("a" * 200_000 + "b")


@pytest.mark.parametrize("pattern", ["%a" + "_" * 15_000 + "b%", "%" + "a_" * 30 + "b%"])
def test_a_piece_with_any_character_fits_into_a_machine_word(pattern: str) -> None:
    with pytest.raises(ValueError, match="at most 60 characters between two %, if one of them is _"):
        Pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["%" + "_" * 15_000 + "%", "a" + "_" * 15_000 + "%", "%" + "_" * 15_000 + "a", "a" + "_" * 7000 + "b%" + "_" * 7000],
)
def test_pieces_at_the_ends_have_any_length(pattern: str) -> None:
    assert not Pattern(pattern).matches("a" * 5_000)


def test_the_number_of_like_operators_is_limited() -> None:
    jms_selector(" OR ".join(["a LIKE 'b%'"] * 32))
    with pytest.raises(SelectorError, match="at most 32 LIKE operators"):
        jms_selector(" OR ".join(["a LIKE 'b%'"] * 33))


@pytest.mark.parametrize("make", [jms_selector, sql_filter])
def test_a_value_that_is_too_long_is_unknown_and_takes_no_time(make: Callable[[str], Selector]) -> None:
    selector = make("a LIKE '%x_x%'")
    view = View(a="b" * MAX_VALUE)
    assert selector.evaluate(view) is False
    assert view.work >= MAX_VALUE >> 6
    view = View(a="x" * (MAX_VALUE + 1))
    assert selector.evaluate(view) is None
    assert view.work == 0
