"""Expressions over names: what they match, and which are refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.errors import PreconditionFailed
from leveret.security.patterns import check_pattern
from leveret.security.permissions import CONFIGURE, READ, WRITE, Permission, allows, check_permission


@pytest.mark.parametrize(("pattern", "name", "matches"), [
    (".*", "anything", True), ("", "anything", False), ("^$", "anything", False),
    ("b", "abc", True), ("^b", "abc", False), ("^(a|b)$", "b", True), ("^(a|b)$", "ab", False),
    ("^amq.default$", "", True), (".*", "", True), ("^amq\\.default$", "", True), ("", "", False), ("^$", "", False),
    ("ü", "über", True), ("^celery@", "celery@host.celery.pidbox", True),
])
def test_expressions_match_as_rabbitmqs(pattern: str, name: str, matches: bool) -> None:
    for operation, permission in ((CONFIGURE, Permission(pattern, "x", "x")), (WRITE, Permission("x", pattern, "x")),
                                  (READ, Permission("x", "x", pattern))):
        assert allows(permission, operation, name) is matches


@pytest.mark.parametrize("pattern", [
    "", ".*", "^$", "^(amq\\.gen.*|shop-.*)$", "a*b*c*d*", "(a|b|c)*", "(ab)+", "[a*b+]+", "\\(a+\\)+", "a{2}",
    "(a{1,3}b)*", "(?:ab){2,}", "(?>a+)*", "([a-z]++-)*x", "(?i)abc", "(?P<n>a+)", "[]+]*", "[^]+]*",
    "a|b*|c*|d*|e*|f*",
    "(?=a+)b",
    "a?b?c?d?e?f?", "(a?)*", "x*+y*+z*+a*+b*+", "(?#comment+)a", "a{,}", "a{}", "[\\]+]+",
])
def test_expressions_that_are_taken(pattern: str) -> None:
    check_pattern(pattern)


@pytest.mark.parametrize(("pattern", "reason"), [
    ("(", "is no regular expression"), ("[[:alpha:]]", "is no regular expression"),
    ("a" * 1025, "at most 1024"), ("(a+)+", "a group that itself has a repetition"),
    ("((a)*b)*", "itself has"), ("(a|b+)*", "itself has"), ("(?:a{2,})+", "itself has"), ("(.*,){11}", "itself has"),
    ("(?P<n>x*)+$", "itself has"), ("((?>a)b+)+", "itself has"), ("a*b*c*d*e*", "5 unbounded repetitions in a row"),
    (".*.*(.*.*).*", "5 unbounded"), ("(a)?(?(1)b|c)", "not supported"), ("(?x)a #)", "not supported"),
])
def test_expressions_that_are_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_pattern(pattern)
    with pytest.raises(PreconditionFailed, match="write permission"):
        check_permission(Permission(".*", pattern, ".*"))


@given(st.text("()[]{}*+?|^$\\ab,12:#=!<>P-", max_size=12))
def test_the_check_never_fails_otherwise(pattern: str) -> None:
    try:
        check_pattern(pattern)
    except ValueError:
        return
    re.compile(pattern)
