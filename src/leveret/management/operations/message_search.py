"""Conditions on messages: by exchange, routing key, property, header and body, and by a selector."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from leveret.broker.bodies import Body, size_of
from leveret.broker.errors import PreconditionFailed
from leveret.broker.values import FieldTable
from leveret.management.descriptions import PROPERTIES, Match
from leveret.management.json_values import encode_json, plain
from leveret.management.operations.messages import start_of
from leveret.management.structs import Request
from leveret.security.patterns import Pattern
from leveret.selectors import Filter, Limits, SelectorError, jms_selector

MAX_CONDITIONS: Final = 16
# Bytes of a body that are searched for a text, and that are decoded as JSON.
MAX_SEARCHED: Final = 1 << 20
MAX_JSON: Final = 256 << 10
# Maximum characters of a path in a JSON body.
MAX_PATH: Final = 1000
# The maximum size of a selector: its evaluation takes a few milliseconds even if every LIKE compares a long value.
SELECTOR: Final = Limits(length=4096, terms=500, likes=4)
# Maximum steps of a regular expression in one body, about 10 ns each.
MAX_STEPS: Final = 20_000_000

_ADDRESS: Final = ("exchange", "routing_key")
_HEADERS: Final = "headers."
_BODY: Final = "body"
_IN_BODY: Final = ("body.", "body[")
# A step of a path: `.name`, `[0]` or `["name"]`.
_STEP: Final = re.compile(r"""\.([^.\[\]"]+)|\[(\d{1,9})\]|\[("(?:[^"\\]|\\.)*")\]""")
_DEATHS: Final = {f"death.{name}": name for name in ("reason", "queue", "exchange")}
_MISSING: Final = object()

_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "less": operator.lt,
    "less_or_equal": operator.le,
    "greater": operator.gt,
    "greater_or_equal": operator.ge,
}


class Condition(Request, kw_only=True):
    """A condition on a message.

    Attributes:
        field: `exchange`, `routing_key`, a property, `headers.NAME`, `body`, `body.PATH` for a value in a JSON body, as
            in `body.items[0].id` or `body["a.b"]`, or `death.reason`, `death.queue` and `death.exchange` for the last death
            of a dead letter.
        match: How the field must match. Numbers and tables are compared as JSON. Orders are those of numbers, and of texts
            by their code points.
        value: The value, text or regular expression.
    """

    field: str
    match: Match = "equals"
    value: Any = None


class Search:
    """Conditions, all of which a message must meet.

    Args:
        conditions: The conditions.
        selector: A JMS message selector; "" for none.
        since: The earliest `timestamp` in milliseconds of Unix time, whose second counts; 0 for any, or none.

    Attributes:
        selector: The compiled selector, which reads an entry rather than its decoded properties.

    Raises:
        PreconditionFailed: A condition or the selector is invalid.
    """

    def __init__(self, conditions: list[Condition], selector: str, since: int = 0) -> None:
        if len(conditions) > MAX_CONDITIONS:
            raise PreconditionFailed(f"{len(conditions)} conditions; expected at most {MAX_CONDITIONS}")
        self.selector = _compile(selector) if selector else None
        self._since = since // 1000
        self._properties: list[tuple[str, Callable[[object], bool]]] = []
        self._values: list[tuple[list[str], Callable[[object], bool]]] = []
        self._contents: list[Callable[[bytes], bool]] = []
        for condition in conditions:
            field = condition.field
            if field == _BODY:
                self._contents.append(_content_test(condition))
            elif field.startswith(_IN_BODY):
                self._values.append((_read_path(field), _value_test(condition)))
            elif field in _ADDRESS or field in PROPERTIES or field in _DEATHS or field.startswith(_HEADERS):
                self._properties.append((field, _value_test(condition)))
            else:
                known = ", ".join((*_ADDRESS, *PROPERTIES, "headers.NAME", *_DEATHS, _BODY, "body.PATH"))
                raise PreconditionFailed(f"unknown field '{field}'; expected one of {known}")

    @property
    def looks_into_bodies(self) -> bool:
        return bool(self._contents or self._values)

    def accepts(self, exchange: str, routing_key: str, properties: FieldTable) -> bool:
        """Return whether a message meets the conditions on everything but its body."""
        if self._since:
            timestamp = properties.get("timestamp")
            if not isinstance(timestamp, int) or timestamp < self._since:
                return False
        for field, test in self._properties:
            if field in _ADDRESS:
                value: object = exchange if field == "exchange" else routing_key
            else:
                value = _value_of(field, properties)
            if not test(value):
                return False
        return True

    def skips(self, body: Body) -> bool:
        """Return whether conditions on values of JSON bodies exclude a body because of its size."""
        return bool(self._values) and size_of(body) > MAX_JSON

    def accepts_body(self, body: Body) -> bool:
        """Return whether a body that is not skipped meets the conditions. Slow: runs in a thread."""
        content = start_of(body, MAX_SEARCHED)
        if not all(test(content) for test in self._contents):
            return False
        if not self._values:
            return True
        try:
            document = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return all(test(_at(document, path)) for path, test in self._values)


def _compile(selector: str) -> Filter:
    try:
        return jms_selector(selector, SELECTOR)
    except SelectorError as error:
        raise PreconditionFailed(f"invalid selector: {error}") from None


def _value_of(field: str, properties: FieldTable) -> object:
    """Return the value of a property, of a header or of the last death."""
    if field.startswith(_HEADERS):
        headers = properties.get("headers")
        return headers.get(field.removeprefix(_HEADERS), _MISSING) if isinstance(headers, dict) else _MISSING
    if field in _DEATHS:
        return last_death(properties).get(_DEATHS[field], _MISSING)
    return properties.get(field, _MISSING)


def last_death(properties: FieldTable) -> FieldTable:
    """Return the first entry of the header `x-death`, an empty one for a message that is no dead letter."""
    headers = properties.get("headers")
    deaths = headers.get("x-death") if isinstance(headers, dict) else None
    return deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict) else {}


def condition_of(field: str, properties: FieldTable, max_length: int) -> tuple[str, Match]:
    """Return a value and the kind of a condition that messages with the same value meet.

    Args:
        field: A property, `headers.NAME` or a field of the last death.
        properties: The properties of a message.
        max_length: Characters of a value that must be the same.
    """
    value = _value_of(field, properties)
    if value is _MISSING:
        return "", "missing"
    text = _as_text(value)
    return (text, "equals") if len(text) < max_length else (text[:max_length], "prefix")


def _read_path(field: str) -> list[str]:
    """Return the names and indexes of a path in a JSON body. Raises `PreconditionFailed`."""
    if len(field) > MAX_PATH:
        raise PreconditionFailed(f"a path has {len(field)} characters; expected at most {MAX_PATH}")
    path: list[str] = []
    at = len(_BODY)
    while at < len(field):
        step = _STEP.match(field, at)
        try:
            if step is None:
                raise ValueError
            name, index, quoted = step.groups()
            path.append(name or index or msgspec.json.decode(quoted, type=str))
        except ValueError:
            raise PreconditionFailed(
                f"invalid path '{field}': position {at}: expected .NAME, [INDEX] or [\"NAME\"], such as body.items[0].id"
            ) from None
        at = step.end()
    return path


def _at(document: object, path: list[str]) -> object:
    for part in path:
        if isinstance(document, dict):
            document = document.get(part, _MISSING)
        elif isinstance(document, list) and part.isdecimal() and len(part) < 10 and int(part) < len(document):
            document = document[int(part)]
        else:
            return _MISSING
    return document


def _text_value(condition: Condition) -> str:
    if not isinstance(condition.value, str) or not condition.value:
        raise PreconditionFailed(f"invalid value of the condition on '{condition.field}'; expected a text")
    return condition.value


def _pattern(condition: Condition) -> Pattern:
    try:
        return Pattern(_text_value(condition))
    except ValueError as error:
        raise PreconditionFailed(f"the regular expression for '{condition.field}' {error}") from None


def _content_test(condition: Condition) -> Callable[[bytes], bool]:
    """Return the test of a body."""
    if condition.match == "exists":
        return bool
    if condition.match == "missing":
        return lambda content: not content
    if condition.match == "regex":
        pattern = _pattern(condition)
        limit = MAX_STEPS // max(pattern.cost, 1)
        return lambda content: pattern.is_in(content[:limit])
    wanted = _text_value(condition).encode("utf-8", "surrogateescape")
    if condition.match == "contains":
        return lambda content: wanted in content
    if condition.match == "not_equals":
        return lambda content: content != wanted
    if condition.match in _ORDERS:
        raise PreconditionFailed(f"invalid match '{condition.match}' on '{_BODY}'; expected that of a value, as body.PATH")
    if condition.match == "prefix":
        return lambda content: content.startswith(wanted)
    return lambda content: content == wanted


def _value_test(condition: Condition) -> Callable[[object], bool]:
    """Return the test of a value; `_MISSING` stands for none."""
    if condition.match == "exists":
        return lambda value: value is not _MISSING
    if condition.match == "missing":
        return lambda value: value is _MISSING
    if condition.match == "equals":
        return _equality(condition.value)
    if condition.match == "not_equals":
        equals = _equality(condition.value)
        return lambda value: value is not _MISSING and not equals(value)
    if condition.match in _ORDERS:
        return _order_test(condition)
    if condition.match == "regex":
        pattern = _pattern(condition)
        limit = MAX_STEPS // max(pattern.cost, 1) >> 4
        return lambda value: value is not _MISSING and pattern.is_in(_as_text(value).encode()[:limit])
    text = _text_value(condition)
    if condition.match == "prefix":
        return lambda value: value is not _MISSING and _as_text(value).startswith(text)
    return lambda value: value is not _MISSING and text in _as_text(value)


def _equality(wanted: object) -> Callable[[object], bool]:
    expected = plain(wanted)
    return lambda value: value is not _MISSING and (_is_same(plain(value), expected) or _as_text(value) == expected)


def _is_same(value: object, expected: object) -> bool:
    """Return whether two values are equal in JSON, in which `true` is not 1."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(_is_same, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(_is_same(value[key], expected[key]) for key in value)
    return value == expected


def _order_test(condition: Condition) -> Callable[[object], bool]:
    """Return the comparison of a number with numbers, or of a text with texts."""
    wanted = condition.value
    compares = _ORDERS[condition.match]
    if isinstance(wanted, str):
        return lambda value: isinstance(found := plain(value), str) and compares(found, wanted)
    if not _is_number(wanted):
        raise PreconditionFailed(f"invalid value of the condition on '{condition.field}'; expected a number or a text")
    return lambda value: _is_number(found := plain(value)) and compares(found, wanted)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_text(value: object) -> str:
    shown = plain(value)
    return shown if isinstance(shown, str) else encode_json(shown).decode()
