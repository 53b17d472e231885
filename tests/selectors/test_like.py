"""LIKE: patterns against the definition, and patterns that take others for ever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.selectors.like import Pattern
from tests.selectors.reference import like


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
    with pytest.raises(ValueError, match="ends in its escape"):
        Pattern(pattern, "!")


@settings(max_examples=1000)
@given(st.text("ab%_", max_size=9), st.text("ab", max_size=9))
def test_every_pattern_matches_what_the_definition_says(pattern: str, value: str) -> None:
    assert Pattern(pattern).matches(value) is like(value, pattern, "")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "pattern",
    [
        "%a" * 2_000 + "b",
        "%a%a%a%a%a%a%a%a%a%a%a%a%a%a%a%b%",
        "%" + "a" * 4_000 + "b%",
        "%" + "a_" * 2_000 + "b%",
        "%a" + "_" * 4_000 + "b%",
        "a_%" * 1_000 + "b",
        "%_" * 2_000 + "b",
        "%" * 8_000 + "b",
    ],
)
def test_the_time_grows_with_the_value_alone(pattern: str) -> None:
    """Each would take longer than the world has been there if places were tried in turn, or minutes if only lengths
    multiplied; the timeout is far from either."""
    assert not Pattern(pattern).matches("a" * 200_000)
    assert Pattern(pattern + "%").matches("a" * 200_000 + "b")
