"""A guard for regular expressions: an administrator writes them, but any client chooses the names to match.

Python's matcher backtracks. A repetition of something that itself repeats (`(a+)+`) takes time exponential in the
name's length, and each repetition in a row adds a power. The former is refused, and of the latter more than
`MOST_REPEATS`: names have at most 255 octets. Atomic groups `(?>...)` and possessive quantifiers (`a++`) do not
backtrack and are not counted.
"""

from __future__ import annotations

import re
import warnings

LONGEST = 1024
MOST_REPEATS = 4

_COUNTED = re.compile(r"\{(\d*)(,?)(\d*)\}")
# A bounded repetition up to this many times is harmless.
_FEW = 8


def check_pattern(pattern: str) -> None:
    """Raise ValueError, saying why, for an expression that is not valid or not safe to match with a client's names."""
    if len(pattern) > LONGEST:
        raise ValueError(f"has {len(pattern)} characters; expected at most {LONGEST}")
    try:
        with warnings.catch_warnings():
            # Sets such as [[:alpha:]] mean something else here than in RabbitMQ.
            warnings.simplefilter("error", FutureWarning)
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError, FutureWarning) as error:
        raise ValueError(f"is no regular expression: {error}") from None
    scanner = _Scanner(pattern)
    try:
        repeats = scanner.alternatives()
    except IndexError:
        repeats = -1
    if repeats < 0 or not scanner.finished:
        raise ValueError("uses a construct that is not supported here, such as (?(1)...) or (?x)")
    if repeats > MOST_REPEATS:
        raise ValueError(
            f"has {repeats} unbounded repetitions in a row, which may take too long to match; "
            f"expected at most {MOST_REPEATS}, or possessive ones such as .*+"
        )


class _Scanner:
    """Reads an expression that is known to be valid, and counts repetitions that may backtrack."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    @property
    def finished(self) -> bool:
        return self._at == len(self._pattern)

    def alternatives(self) -> int:
        """The most repetitions in a row of any alternative, up to the end of the group."""
        most = count = 0
        while self._at < len(self._pattern):
            char = self._pattern[self._at]
            if char == ")":
                break
            if char == "|":
                self._at += 1
                most, count = max(most, count), 0
                continue
            count += self._item(char)
        return max(most, count)

    def _item(self, char: str) -> int:
        inside = 0
        if char == "(":
            inside = self._group()
        elif char == "[":
            self._set()
        elif char == "\\":
            self._at += 2
        else:
            self._at += 1
        unbounded, possessive = self._quantifier()
        if possessive or not unbounded:
            return 0 if possessive else inside
        if inside:
            raise ValueError(
                "repeats a group that itself has a repetition, which may take for ever to match; "
                "expected a possessive one inside, such as ([a-z]++-)*"
            )
        return 1

    def _group(self) -> int:
        self._at += 1
        atomic = self._pattern.startswith("?>", self._at)
        if self._pattern.startswith("?", self._at):
            self._at += 1
            comment = self._pattern.startswith("#", self._at)
            while self._pattern[self._at] not in (")" if comment else ":=!>)"):
                self._at += 1
            if self._pattern[self._at] != ")":
                self._at += 1
        inside = self.alternatives()
        self._at += 1
        return 0 if atomic else inside

    def _set(self) -> None:
        self._at += 1
        if self._pattern.startswith("^", self._at):
            self._at += 1
        first = True
        while first or self._pattern[self._at] != "]":
            self._at += 2 if self._pattern[self._at] == "\\" else 1
            first = False
        self._at += 1

    def _quantifier(self) -> tuple[bool, bool]:
        """Whether a quantifier follows that repeats without a small bound, and whether it is possessive."""
        unbounded = False
        char = self._pattern[self._at : self._at + 1]
        if char in ("*", "+"):
            unbounded = True
            self._at += 1
        elif char == "?":
            self._at += 1
        elif (match := _COUNTED.match(self._pattern, self._at)) and (match[1] or match[3] or match[2]):
            unbounded = not match[3] if match[2] else False
            unbounded = unbounded or int(match[3] or match[1] or 0) > _FEW
            self._at = match.end()
        else:
            return False, False
        if self._pattern.startswith("+", self._at):
            self._at += 1
            return unbounded, True
        if self._pattern.startswith("?", self._at):
            self._at += 1
        return unbounded, False
