"""Filters that are maps: `amqp:properties-filter` and `amqp:application-properties-filter`.

AMQP Filter Expressions 1.0, sections 4.1.1, 4.2.4 and 4.2.5, as in RabbitMQ 4.1: every entry of the map must match its
field of the message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Final
from uuid import UUID

from leveret.selectors.errors import DEFAULT_LIMITS, EntryError, Limits
from leveret.selectors.message import APPLICATION_PROPERTIES, PROPERTIES, Filter, MessageView
from leveret.selectors.names import PROPERTIES_FIELDS
from leveret.selectors.values import double, plain, to_bytes

EXACT: Final = 0
PREFIX: Final = 1
SUFFIX: Final = 2
ANYTHING: Final = 3

_STRINGS: Final = frozenset({"to", "subject", "reply-to", "group-id", "reply-to-group-id"})
_SYMBOLS: Final = frozenset({"content-type", "content-encoding"})
_IDS: Final = frozenset({"message-id", "correlation-id"})
_INTEGERS: Final = frozenset({"absolute-expiry-time", "creation-time", "group-sequence"})


class Entry:
    """The condition of a field: it is equal to `reference`, or a string that starts or ends with it."""

    __slots__ = ("data", "kind", "name", "number", "reference")

    def __init__(self, name: str, kind: int, reference: object) -> None:
        reference = plain(reference)
        self.name: Final = name
        self.kind: Final = kind
        self.reference: Final = reference
        self.data: Final[bytes | None] = to_bytes(reference)
        self.number: Final[float] = (
            double(reference) if isinstance(reference, (int, float)) and not isinstance(reference, bool) else math.nan
        )

    def matches(self, found: object) -> bool:
        """Return whether a value other than null matches."""
        kind = self.kind
        reference = self.reference
        if kind == EXACT and isinstance(found, str) and isinstance(reference, str):
            return found == reference
        if kind == ANYTHING:
            return True
        wanted = self.data
        if wanted is not None:
            data = to_bytes(found)
            if data is None:
                return False
            if kind == PREFIX:
                return data.startswith(wanted)
            return data.endswith(wanted) if kind == SUFFIX else data == wanted
        found = plain(found)
        if isinstance(found, bool) or isinstance(reference, bool):
            return found is reference
        if isinstance(found, (int, float)) and isinstance(reference, (int, float)):
            # Numbers of different types are compared as doubles.
            if isinstance(found, float) == isinstance(reference, float):
                return found == reference
            return double(found) == self.number
        return False


class FieldsFilter(Filter):
    """The entries for the fields of a section. If `optional`, an absent field is null."""

    __slots__ = ("entries", "optional", "section")

    def __init__(self, section: int, entries: list[Entry], optional: bool) -> None:
        self.section: Final = section
        self.entries: Final = entries
        self.optional: Final = optional

    def matches(self, view: MessageView) -> bool:
        section = self.section
        for entry in self.entries:
            found = view.get(section, entry.name)
            if found is None:
                if entry.kind != ANYTHING or not self.optional:
                    return False
            elif not entry.matches(found):
                return False
        return True


def properties_filter(fields: Mapping[str, object], limits: Limits = DEFAULT_LIMITS) -> FieldsFilter:
    """Compile an `amqp:properties-filter` from its map.

    Keys are names of fields of the properties section (`message-id`). A value has the type of its field, or is None, which
    matches everything. Raises `EntryError`.
    """
    entries: list[Entry] = []
    for index, (name, value) in enumerate(_limited(fields, limits).items()):
        if name not in PROPERTIES_FIELDS:
            raise EntryError(index, f"a field of properties: {', '.join(PROPERTIES_FIELDS)}", name)
        entries.append(_property(index, str(name), value))
    return FieldsFilter(PROPERTIES, entries, True)


def application_properties_filter(fields: Mapping[str, object], limits: Limits = DEFAULT_LIMITS) -> FieldsFilter:
    """Compile an `amqp:application-properties-filter` from its map. A value of None requires that the property exists.

    Raises `EntryError`.
    """
    entries: list[Entry] = []
    for index, (name, value) in enumerate(_limited(fields, limits).items()):
        if value is not None and not isinstance(value, (bool, int, float, Decimal, str, bytes, UUID)):
            raise EntryError(index, "a value of a simple type", name)
        entries.append(_entry(index, str(name), value))
    return FieldsFilter(APPLICATION_PROPERTIES, entries, False)


def _limited(fields: Mapping[str, object], limits: Limits) -> Mapping[str, object]:
    if not fields:
        raise EntryError(0, "at least one entry", "")
    if len(fields) > limits.entries:
        raise EntryError(limits.entries, f"at most {limits.entries} entries", "")
    return fields


def _property(index: int, name: str, value: object) -> Entry:
    if value is None:
        return Entry(name, ANYTHING, None)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if name in _STRINGS or name in _SYMBOLS:
        if not isinstance(value, str):
            raise EntryError(index, "a string" if name in _STRINGS else "a symbol", name)
        return _entry(index, name, value) if name in _STRINGS else Entry(name, EXACT, value)
    if name in _IDS:
        if not (whole or isinstance(value, (str, bytes, UUID))):
            raise EntryError(index, "a ulong, a uuid, a binary or a string", name)
        return _entry(index, name, value)
    if name in _INTEGERS:
        if not whole:
            raise EntryError(index, "a uint" if name == "group-sequence" else "a timestamp", name)
    elif not isinstance(value, (bytes, str)):
        raise EntryError(index, "a binary", name)
    return Entry(name, EXACT, value)


def _entry(index: int, name: str, value: object) -> Entry:
    """Return an entry whose value may start with a modifier if it is a string."""
    if value is None:
        return Entry(name, ANYTHING, None)
    if not isinstance(value, str) or not value.startswith("&"):
        return Entry(name, EXACT, value)
    if value.startswith("&p:"):
        return Entry(name, PREFIX, value[3:])
    if value.startswith("&s:"):
        return Entry(name, SUFFIX, value[3:])
    if value.startswith("&&"):
        return Entry(name, EXACT, value[1:])
    raise EntryError(index, "&p:, &s: or && at the start", name)
