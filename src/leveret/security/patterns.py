"""Regular expressions from users and clients, matched by RE2 in time linear in the length of the name.

RE2 has no lookarounds, backreferences or possessive quantifiers. A pattern that begins with `^(?!...)`, which RabbitMQ
users write to exclude names, is translated to a negated prefix test. For any other unsupported construct, the error names
the construct. There is no fallback to Python's `re`, which backtracks: a client that chooses the names could block the
broker.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

try:
    import re2
except ImportError as error:
    raise ImportError(
        "google-re2 is not installed, and Leveret has no fallback for matching patterns; install a wheel"
        " (pip install --only-binary google-re2 google-re2)"
    ) from error

# Characters of a pattern.
MAX_PATTERN_LENGTH: Final = 1024
# Bytes of a name; names of entities have at most 255. A longer one matches no pattern.
MAX_SUBJECT_LENGTH: Final = 1024
# Bytes of a compiled pattern and of its automaton. Without room for the automaton RE2 simulates it, which takes at most
# about 10 ms for the longest name.
MAX_PATTERN_MEMORY: Final = 128 * 1024
# Cached decisions by pattern and name: a match takes 20 times as long as with `re`.
MAX_DECISIONS: Final = 16_384
# Cached compiled patterns.
MAX_COMPILED: Final = 512

# Bytes that are not UTF-8 (surrogates in a name) as characters of the private use area, one each.
_PRIVATE_USE: Final = {0xDC00 + byte: 0x10FF00 + byte for byte in range(0x80, 0x100)}
_NEGATION: Final = "(?!"
_BEGINNING: Final = "^" + _NEGATION

# Unsupported constructs by the last part of RE2's error message.
_UNSUPPORTED: Final = {
    "(?=": "a lookahead '(?='",
    "(?!": "a negative lookahead '(?!' that is not at the beginning, as in '^(?!amq\\.)'",
    "(?<=": "a lookbehind '(?<='",
    "(?<!": "a negative lookbehind '(?<!'",
    "(?>": "an atomic group '(?>'",
    "(?#": "a comment '(?#'",
    "(?(": "a conditional '(?('",
    "(?P": "a backreference '(?P='",
    "\\Z": "'\\Z'; write '\\z' for the end of the name",
}


class Pattern:
    """A compiled pattern.

    whole  whether it must match the whole name
    cost   the maximum number of steps of a match per byte of a name

    Raises:
        ValueError: The pattern is invalid, too long, or not supported by RE2.
    """

    def __init__(self, text: str, *, whole: bool = False) -> None:
        if len(text) > MAX_PATTERN_LENGTH:
            raise ValueError(f"has {len(text)} characters; expected at most {MAX_PATTERN_LENGTH}")
        negated, rest = _split_negations(text, whole)
        self.text = text
        self.whole = whole
        self._rest = _compile(rest)
        self._negated = [_at_the_beginning(one) for one in negated]
        if negated:
            self._rest = _at_the_beginning(rest)
        self.cost: int = sum(one.programsize for one in (*self._negated, self._rest))

    def __reduce__(self) -> tuple[Callable[[str, bool], Pattern], tuple[str, bool]]:
        return _make, (self.text, self.whole)

    def matches(self, name: str) -> bool:
        """Return whether a name matches; names with more than `MAX_SUBJECT_LENGTH` bytes do not."""
        subject = subject_of(name)
        if len(subject) > MAX_SUBJECT_LENGTH or any(one.search(subject) for one in self._negated):
            return False
        return (self._rest.fullmatch if self.whole else self._rest.search)(subject) is not None

    def is_in(self, content: bytes) -> bool:
        """Return whether a content matches. Its length is not limited: the caller bounds the steps of `cost` per byte."""
        if any(one.search(content) for one in self._negated):
            return False
        return self._rest.search(content) is not None

    def replace(self, replacement: Callable[[str], str], text: str) -> str:
        """Return the text with every match replaced. Its length is not limited."""
        if self._negated:
            raise ValueError("a negative lookahead '(?!' cannot be replaced")
        replaced: str = self._rest.sub(lambda found: replacement(found.group()), text)
        return replaced


def compile_pattern(text: str) -> Callable[[str], bool]:
    """Return a function that searches a pattern in a name. Raises ValueError."""
    return Pattern(text).matches


def subject_of(name: str) -> bytes:
    """Return the bytes of a name that patterns are matched against."""
    return (name if name.isascii() else name.translate(_PRIVATE_USE)).encode("utf-8", "replace")


@lru_cache(MAX_DECISIONS)
def matches(pattern: str, name: str, whole: bool = False) -> bool:
    """Return whether a part of the name, or the whole name, matches; False for an invalid pattern."""
    compiled = _compiled(pattern, whole)
    return compiled is not None and compiled.matches(name)


@lru_cache(MAX_COMPILED)
def _compiled(pattern: str, whole: bool) -> Pattern | None:
    try:
        return Pattern(pattern, whole=whole)
    except ValueError:
        return None


def _make(text: str, whole: bool) -> Pattern:
    return Pattern(text, whole=whole)


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MAX_PATTERN_MEMORY
    return options


def _compile(text: str) -> re2._Regexp:
    try:
        return re2.compile(text, _options())
    except UnicodeEncodeError:
        raise ValueError("has a character that is not Unicode text") from None
    except re2.error as error:
        raise ValueError(_explain(error.args[0].decode("utf-8", "replace"))) from None


def _at_the_beginning(text: str) -> re2._Regexp:
    _compile(text)  # compiled alone first, because an unbalanced parenthesis would end the group
    return _compile(f"^(?:{text})")


def _explain(message: str) -> str:
    """Return RE2's error message with the name of the unsupported construct."""
    kind, _, fragment = message.partition(": ")
    what = _UNSUPPORTED.get(fragment)
    if what is None and kind == "invalid escape sequence" and fragment[1:].isdecimal():
        what = f"a backreference '{fragment}'"
    if what is None and kind == "bad repetition operator" and fragment[1:] == "+":
        what = f"a possessive quantifier '{fragment}'"
    if what is not None:
        return f"uses {what}, which RE2 does not support"
    if kind.startswith("pattern too large"):
        return f"needs more than {MAX_PATTERN_MEMORY // 1024} KiB compiled"
    if kind == "invalid repetition size":
        return f"repeats too often: {fragment}; expected at most 1000 times, nested ones multiplied"
    return f"is not a valid RE2 regular expression: {message}"


def _split_negations(text: str, whole: bool) -> tuple[list[str], str]:
    """Split `^(?!A)(?!B)REST` into [A, B] and REST; any other text is returned unchanged, without negations.

    A name matches if no negation matches at its beginning and REST matches.
    """
    if text.startswith(_BEGINNING):
        start = 1
    elif whole and text.startswith(_NEGATION):
        start = 0
    else:
        return [], text
    negated = []
    while text.startswith(_NEGATION, start):
        end, _ = _scan(text, start + len(_NEGATION))
        if end == len(text):
            raise ValueError("is not a valid RE2 regular expression: missing ): " + text[start:])
        negated.append(text[start + len(_NEGATION) : end])
        start = end + 1
    end, alternatives = _scan(text, start)
    if alternatives and end == len(text):
        raise ValueError(
            "uses a negative lookahead '(?!' in one of several alternatives, which RE2 does not support; put"
            " the alternatives after it in parentheses"
        )
    return negated, text[start:]


def _scan(text: str, at: int) -> tuple[int, bool]:
    """Return the end of the group that contains `at`, and whether it has alternatives.

    The end is that of the closing parenthesis, or of the text.
    """
    depth = 0
    alternatives = False
    while at < len(text):
        char = text[at]
        if text.startswith("\\Q", at):
            end = text.find("\\E", at + 2)
            at = len(text) if end < 0 else end + 2
            continue
        if char == "\\":
            at += 1
        elif char == "[":
            at = _end_of_set(text, at)
        elif char == "(":
            depth += 1
        elif char == ")":
            if not depth:
                return at, alternatives
            depth -= 1
        elif char == "|" and not depth:
            alternatives = True
        at += 1
    return at, alternatives


def _end_of_set(text: str, at: int) -> int:
    """Return the position of the closing bracket of a set such as `[^]a-z[:digit:]]`."""
    at += 2 if text.startswith("^", at + 1) else 1
    first = True
    while at < len(text) and (first or text[at] != "]"):
        if text[at] == "\\":
            at += 1
        elif text.startswith("[:", at):
            end = text.find(":]", at)
            at = end + 1 if end > 0 else at
        first = False
        at += 1
    return at
