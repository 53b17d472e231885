"""Expressions over names: matches, and invalid ones."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.errors import PreconditionFailed
from leveret.security.patterns import MAX_PATTERN_LENGTH, MAX_SUBJECT_LENGTH, Pattern, matches
from leveret.security.permissions import CONFIGURE, READ, WRITE, Permission, allows, check_permission


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        (".*", "anything", True),
        ("", "anything", False),
        ("^$", "anything", False),
        ("b", "abc", True),
        ("^b", "abc", False),
        ("^(a|b)$", "b", True),
        ("^(a|b)$", "ab", False),
        ("^amq.default$", "", True),
        (".*", "", True),
        ("^amq\\.default$", "", True),
        ("", "", False),
        ("^$", "", False),
        ("ü", "über", True),
        ("^celery@", "celery@host.celery.pidbox", True),
        ("^[[:alpha:]]+$", "shop", True),
        # bytes that are not UTF-8 are one character each
        ("^a.b$", "a\udcffb", True),
        ("^a..b$", "a\udcff\udcfeb", True),
        ("^a[^x]b$", "a\udc80b", True),
        # negated prefixes
        ("^(?!amq\\.).*", "amq.topic", False),
        ("^(?!amq\\.).*", "shop", True),
        ("^(?!amq\\.)", "a", True),
        ("^(?!amq\\.)", "amq.", False),
        ("^(?!(amq|sys)\\.).*$", "sys.log", False),
        ("^(?!amq|sys).*$", "sys.log", False),
        ("^(?!(amq|sys)\\.).*$", "system", True),
        ("^(?!shop$).*", "shop", False),
        ("^(?!shop$).*", "shops", True),
        ("^(?!shop-)(?!amq\\.)[a-z]+", "shop-1", False),
        ("^(?!shop-)(?!amq\\.)[a-z]+", "amq.x", False),
        ("^(?!shop-)(?!amq\\.)[a-z]+", "workshop-", True),
        ("^(?!shop-)(?!amq\\.)[a-z]+", "1a", False),
        ("^(?![])]).*", ")", False),
        ("^(?![^])[:digit:]]).*", "a", False),
        ("^(?!\\)).*", ")", False),
        ("^(?!\\Q(a\\E).(b|c)", "(ab", False),
        ("^(?!\\Q(a\\E).(b|c)", "xc", True),
        ("^(?!amq\\.).*", "", False),
        ("^(?!shop).*", "a\udcff", True),
    ],
)
def test_expressions_match_as_in_rabbitmq(pattern: str, name: str, matches: bool) -> None:
    for operation, permission in (
        (CONFIGURE, Permission(pattern, "x", "x")),
        (WRITE, Permission("x", pattern, "x")),
        (READ, Permission("x", "x", pattern)),
    ):
        check_permission(permission)
        assert allows(permission, operation, name) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        ".*",
        "^$",
        "^(amq\\.gen.*|shop-.*)$",
        "a*b*c*d*e*",
        "(a|b|c)*",
        "(ab)+",
        "[a*b+]+",
        "\\(a+\\)+",
        "a{2}",
        "(a+)+",
        "(a{1,3}b)*",
        "(?:ab){2,}",
        "(?i)abc",
        "(?P<n>a+)",
        "[]+]*",
        "[^]+]*",
        "a?b?c?d?e?f?",
        "(a?)*",
        "[\\]+]+",
        "^(a|a)*$",
        "^(a{1,8})+$",
        "a*a*a*a*b",
        "x" * MAX_PATTERN_LENGTH,
    ],
)
def test_accepted_expressions(pattern: str) -> None:
    Pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "missing \\)"),
        ("[b-a]", "invalid character class range"),
        ("a**", "bad repetition"),
        ("a" * 1025, "at most 1024"),
        ("(?=a+)b", "a lookahead '\\(\\?='"),
        ("shop(?!x)", "a negative lookahead '\\(\\?!' that is not at the beginning"),
        ("(?!x)shop", "not at the beginning"),
        ("^(?!a)b|c", "one of several alternatives"),
        ("^(?!a", "missing \\)"),
        ("^(?!a)b)(c", "unexpected \\)"),
        ("^(?!a)*", "no argument"),
        ("^(?!(?!a)b)c", "negative lookahead"),
        ("(?<=a)b", "a lookbehind '\\(\\?<='"),
        ("(?<!a)b", "a negative lookbehind"),
        ("(?>a+)b", "an atomic group"),
        ("[a-z]++", "a possessive quantifier '\\+\\+'"),
        ("a*+", "a possessive"),
        ("(a)\\1", "a backreference"),
        ("(?P<n>a)(?P=n)", "a backreference"),
        ("(?#comment)a", "a comment"),
        ("(a)?(?(1)b|c)", "a conditional"),
        ("a\\Z", "write '\\\\z'"),
        ("a{1,1001}", "at most 1000"),
        ("((a{100}){100}){10}", "at most 1000"),
        ("(\\pL{1,200}){1,5}", "128 KiB"),
        ("\ud800", "not Unicode text"),
    ],
)
def test_refused_expressions(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Pattern(pattern)
    with pytest.raises(PreconditionFailed, match="write permission"):
        check_permission(Permission(".*", pattern, ".*"))
    # as stored by an earlier version
    assert not allows(Permission(pattern, pattern, pattern), READ, "shop")


def test_long_names_match_nothing() -> None:
    assert Pattern("x$").matches("x" * MAX_SUBJECT_LENGTH)
    assert not Pattern("x").matches("x" * (MAX_SUBJECT_LENGTH + 1))
    assert not Pattern("^(?!y).*").matches("x" * (MAX_SUBJECT_LENGTH + 1))


def test_decisions_are_cached() -> None:
    before = matches.cache_info()
    for _ in range(3):
        assert allows(Permission("", "", "^kept-[0-9]$"), READ, "kept-1")
    after = matches.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 2)
    assert after.maxsize is not None


def test_a_pattern_is_the_same_in_another_process() -> None:
    pattern: Pattern = pickle.loads(pickle.dumps(Pattern("^(?!a)b.*", whole=True)))
    assert pattern.matches("bc") and not pattern.matches("a")


@given(st.text("()[]{}*+?|^$\\ab,12:#=!<>PQE-", max_size=12), st.booleans(), st.text("ab()|", max_size=4))
def test_the_check_raises_no_other_error(pattern: str, whole: bool, name: str) -> None:
    try:
        Pattern(pattern, whole=whole).matches(name)
    except ValueError:
        pass


_words = st.sampled_from(["a", "b", "ab", "[ab]", "[^a]", "(a|b)", "a+", "(?:ab)*", ".", "\\.", "b$"])
_alternatives = st.lists(st.lists(_words, max_size=3).map("".join), min_size=1, max_size=3).map("|".join)


@given(
    st.lists(_alternatives, min_size=1, max_size=2),
    st.lists(_words, max_size=3).map("".join),
    st.booleans(),
    st.text("ab.", max_size=5),
)
def test_negated_prefixes_match_like_pythons_lookaheads(negated: list[str], rest: str, whole: bool, name: str) -> None:
    pattern = "^" + "".join(f"(?!{one})" for one in negated) + rest
    expected = (re.fullmatch if whole else re.search)(pattern, name) is not None
    assert Pattern(pattern, whole=whole).matches(name) is expected


def test_there_is_no_fallback() -> None:
    code = "import sys; sys.modules['re2'] = None; import leveret.security.permissions"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode != 0
    assert "google-re2 is not installed" in done.stderr.splitlines()[-1]
