"""Conditions on messages: by exchange, routing key, property, header and body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from leveret.broker.bodies import Body
from leveret.broker.errors import PreconditionFailed
from leveret.broker.values import FieldTable
from leveret.management.descriptions import PROPERTIES
from leveret.management.json_values import encode_json, plain
from leveret.management.operations.messages import start_of
from leveret.management.structs import Request
from leveret.security.patterns import Pattern

MAX_CONDITIONS: Final = 16
# Bytes of a body that are searched for a text, and that are decoded as JSON.
MAX_SEARCHED: Final = 1 << 20
MAX_JSON: Final = 256 << 10
# Maximum steps of a regular expression in one body, about 10 ns each.
MAX_STEPS: Final = 20_000_000

_ADDRESS: Final = ("exchange", "routing_key")
_HEADERS: Final = "headers."
_BODY: Final = "body"
_IN_BODY: Final = "body."
_MISSING: Final = object()

Match = Literal["equals", "contains", "regex", "exists"]


class Condition(Request, kw_only=True):
    """A condition on a message.

    Attributes:
        field: `exchange`, `routing_key`, a property, `headers.NAME`, `body`, or `body.PATH` for a value in a JSON body.
        match: How the field must match. Numbers and tables are compared as JSON.
        value: The value, text or regular expression.
    """

    field: str
    match: Match = "equals"
    value: Any = None


class Search:
    """Conditions, all of which a message must meet.

    Raises:
        PreconditionFailed: A condition is invalid.
    """

    def __init__(self, conditions: list[Condition]) -> None:
        if len(conditions) > MAX_CONDITIONS:
            raise PreconditionFailed(f"{len(conditions)} conditions; expected at most {MAX_CONDITIONS}")
        self._properties: list[tuple[str, Callable[[object], bool]]] = []
        self._values: list[tuple[list[str], Callable[[object], bool]]] = []
        self._contents: list[Callable[[bytes], bool]] = []
        for condition in conditions:
            field = condition.field
            if field == _BODY:
                self._contents.append(_content_test(condition))
            elif field.startswith(_IN_BODY):
                self._values.append((field.removeprefix(_IN_BODY).split("."), _value_test(condition)))
            elif field in _ADDRESS or field in PROPERTIES or field.startswith(_HEADERS):
                self._properties.append((field, _value_test(condition)))
            else:
                known = ", ".join((*_ADDRESS, *PROPERTIES, "headers.NAME", _BODY, "body.PATH"))
                raise PreconditionFailed(f"unknown field '{field}'; expected one of {known}")

    @property
    def looks_into_bodies(self) -> bool:
        return bool(self._contents or self._values)

    def accepts(self, exchange: str, routing_key: str, properties: FieldTable) -> bool:
        """Return whether a message meets the conditions on everything but its body."""
        for field, test in self._properties:
            if field.startswith(_HEADERS):
                headers = properties.get("headers")
                name = field.removeprefix(_HEADERS)
                value = headers.get(name, _MISSING) if isinstance(headers, dict) else _MISSING
            elif field in _ADDRESS:
                value = exchange if field == "exchange" else routing_key
            else:
                value = properties.get(field, _MISSING)
            if not test(value):
                return False
        return True

    def accepts_body(self, body: Body) -> bool:
        """Return whether a body meets the conditions. Slow: runs in a thread."""
        content = start_of(body, MAX_SEARCHED)
        if not all(test(content) for test in self._contents):
            return False
        if not self._values:
            return True
        try:
            document = msgspec.json.decode(content) if len(content) <= MAX_JSON else _MISSING
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return all(test(_at(document, path)) for path, test in self._values)


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
    if condition.match == "regex":
        pattern = _pattern(condition)
        limit = MAX_STEPS // max(pattern.cost, 1)
        return lambda content: pattern.is_in(content[:limit])
    wanted = _text_value(condition).encode("utf-8", "surrogateescape")
    if condition.match == "contains":
        return lambda content: wanted in content
    return lambda content: content == wanted


def _value_test(condition: Condition) -> Callable[[object], bool]:
    """Return the test of a value; `_MISSING` stands for none."""
    if condition.match == "exists":
        return lambda value: value is not _MISSING
    if condition.match == "equals":
        wanted = plain(condition.value)
        return lambda value: value is not _MISSING and (plain(value) == wanted or _as_text(value) == wanted)
    if condition.match == "regex":
        pattern = _pattern(condition)
        limit = MAX_STEPS // max(pattern.cost, 1) >> 4
        return lambda value: value is not _MISSING and pattern.is_in(_as_text(value).encode()[:limit])
    text = _text_value(condition)
    return lambda value: value is not _MISSING and text in _as_text(value)


def _as_text(value: object) -> str:
    shown = plain(value)
    return shown if isinstance(shown, str) else encode_json(shown).decode()
