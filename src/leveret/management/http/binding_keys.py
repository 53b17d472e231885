"""`properties_key` of bindings: the routing key and the hash of the arguments, as RabbitMQ computes them.

Without arguments it is the quoted routing key, or `~` for an empty one. With arguments, the hash follows after `~`: the
four bytes of Erlang's `phash2` of the arguments, in base64url. `phash2` mixes one term after the other into 32 bits with
the function of Bob Jenkins (https://burtleburtle.net/bob/hash/evahash.html).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from operator import itemgetter
from typing import Any, Final, TypeAlias, Union
from urllib.parse import quote_plus, unquote, unquote_plus

from leveret.management.json_values import Json

_MASK: Final = 0xFFFFFFFF
_GOLDEN_RATIO: Final = 0x9E3779B9
# Shifts of the mixing function: right, left and right, three times.
_SHIFTS: Final = ((13, 8, 13), (12, 16, 5), (3, 10, 15))
# Bytes of a binary that are mixed at a time.
_BLOCK: Final = 12
# Factors of the golden ratio that `phash2` adds to terms of each type.
_SMALL: Final = 1
_NIL: Final = 2
_ATOM: Final = 3
_BYTES: Final = 4
_TUPLE: Final = 9
_NEGATIVE: Final = 10
_POSITIVE: Final = 11
_FLOAT: Final = 12
_BINARY: Final = 13
# Integers in this range are small.
_SMALL_LIMIT: Final = 1 << 27
# Erlang's names and the layout of values whose length is fixed, by their tags in RabbitMQ's dialect.
_FIXED: Final = {
    tag: (name, struct.Struct(layout))
    for tag, name, layout in (
        (b"I", "signedint", ">i"),
        (b"l", "long", ">q"),
        (b"L", "long", ">q"),
        (b"b", "byte", ">b"),
        (b"B", "unsignedbyte", ">B"),
        (b"s", "short", ">h"),
        (b"U", "short", ">h"),
        (b"u", "unsignedshort", ">H"),
        (b"i", "unsignedint", ">I"),
        (b"f", "float", ">f"),
        (b"d", "double", ">d"),
        (b"T", "timestamp", ">Q"),
        (b"D", "decimal", ">BI"),
    )
}
# The number that stands for an empty list, and the hash of one that is the first term.
_NIL_TAG: Final = 2
_ONLY_NIL: Final = 3468870702


def properties_key(routing_key: str, arguments: Mapping[str, Json], encoded: bytes = b"") -> str:
    """Return the identity of a binding among those of its source and destination.

    Args:
        routing_key: The routing key.
        arguments: The arguments in JSON.
        encoded: The fields of the arguments as an AMQP client has encoded them, if JSON lacks their types.
    """
    quoted = quote_plus(routing_key, safe="", errors="surrogateescape").replace("~", "%7E")
    if encoded:
        return f"{quoted}~{encoded_hash(encoded)}"
    if arguments:
        return f"{quoted}~{arguments_hash(arguments)}"
    return quoted or "~"


def matches(key: str, found: str) -> bool:
    """Return whether a key from a path that a client has not quoted again stands for a `properties_key`."""
    return key in (unquote(found, errors="surrogateescape"), unquote_plus(found, errors="surrogateescape"))


def arguments_hash(arguments: Mapping[str, Json]) -> str:
    """Return the hash of binding arguments in JSON."""
    return _shown(_mix_list(0, [_row(name, arguments[name]) for name in sorted(arguments)]))


def encoded_hash(encoded: bytes) -> str:
    """Return the hash of binding arguments in AMQP. RabbitMQ sorts them, but not the fields of nested tables."""
    rows = sorted(_Fields(encoded).rows(), key=itemgetter(0))
    return _shown(_mix_list(0, rows))


def special_values(encoded: str) -> str:
    """Return a text that identifies the arguments of a binding with these fields, in base64; "" if JSON represents them.

    Raises:
        ValueError: The fields are invalid. Not all invalid ones are found.
    """
    if not encoded:
        return ""
    try:
        rows = sorted(_Fields(base64.b64decode(encoded, validate=True)).rows(), key=itemgetter(0))
        return "" if all(_is_text(row[0]) and _is_json(row[1], row[2]) for row in rows) else repr(rows)
    except (IndexError, struct.error, RecursionError):
        raise ValueError("the fields are invalid") from None


def _is_json(name: Any, value: Any) -> bool:
    """Return whether JSON represents a value of a type, apart from the width of a number."""
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, bytes):
        return name != "binary" and _is_text(value)
    if name == "table":
        return all(_is_text(row[0]) and _is_json(row[1], row[2]) for row in value)
    if name == "array":
        return all(_is_json(item[0], item[1]) for item in value)
    return name not in ("timestamp", "decimal")


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _shown(hashed: int) -> str:
    return base64.urlsafe_b64encode(hashed.to_bytes(4, "big")).decode().rstrip("=")


class _Atom(str):
    """An atom."""


# A term of Erlang.
_Term: TypeAlias = Union[_Atom, bytes, int, float, tuple["_Term", ...], list["_Term"]]


def _row(name: str, value: Json) -> _Term:
    """Return an argument as Erlang's tuple of name, type and value."""
    return (_encode(name), *_typed(value))


def _typed(value: Json) -> tuple[_Atom, _Term]:
    """Return type and value of a field, as RabbitMQ reads them from JSON."""
    if value is None:
        return _Atom("void"), _Atom("undefined")
    if isinstance(value, bool):
        return _Atom("bool"), _Atom("true" if value else "false")
    if isinstance(value, int):
        return _Atom("long"), value
    if isinstance(value, float):
        return _Atom("double"), value
    if isinstance(value, str):
        return _Atom("longstr"), _encode(value)
    if isinstance(value, list):
        return _Atom("array"), [_typed(item) for item in value]
    return _Atom("table"), [_row(name, value[name]) for name in sorted(value)]


class _Fields:
    """Reads the fields of an encoded table, which the broker has checked."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def rows(self) -> Iterator[tuple[bytes, _Atom, _Term]]:
        """Yield the fields as Erlang's tuples of name, type and value."""
        while self._at < len(self._data):
            yield (self._take(self._take(1)[0]), *self._value())

    def _values(self) -> Iterator[tuple[_Atom, _Term]]:
        while self._at < len(self._data):
            yield self._value()

    def _value(self) -> tuple[_Atom, _Term]:
        tag = self._take(1)
        if tag in _FIXED:
            name, layout = _FIXED[tag]
            found = layout.unpack(self._take(layout.size))
            return _Atom(name), found[0] if len(found) == 1 else found
        if tag == b"t":
            return _Atom("bool"), _Atom("true" if self._take(1) != b"\0" else "false")
        if tag == b"V":
            return _Atom("void"), _Atom("undefined")
        content = self._take(int.from_bytes(self._take(4), "big"))
        if tag == b"F":
            return _Atom("table"), list(_Fields(content).rows())
        if tag == b"A":
            return _Atom("array"), list(_Fields(content)._values())
        return _Atom("binary" if tag == b"x" else "longstr"), content

    def _take(self, length: int) -> bytes:
        start = self._at
        self._at += length
        return self._data[start : self._at]


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for first, second, third in _SHIFTS:
        a = (a - b - c & _MASK) ^ c >> first
        b = (b - c - a & _MASK) ^ a << second & _MASK
        c = (c - a - b & _MASK) ^ b >> third
    return a, b, c


def _mix_words(hashed: int, factor: int, first: int, second: int = 0) -> int:
    """Mix two words into a hash."""
    constant = _GOLDEN_RATIO * factor
    return _mix(constant + first & _MASK, constant + second & _MASK, hashed)[2]


def _mix_term(hashed: int, term: _Term) -> int:
    """Mix a term into a hash, which is 0 before the first one."""
    if isinstance(term, _Atom):
        value = _atom(term)
        return _mix_words(hashed, _ATOM, value) if hashed else value
    if isinstance(term, bytes):
        return _mix_binary(hashed, term)
    if isinstance(term, int):
        return _mix_integer(hashed, term)
    if isinstance(term, float):
        low, high = struct.unpack("<II", struct.pack("<d", term or 0.0))
        return _mix_words(hashed, _FLOAT, high, low)
    if isinstance(term, tuple):
        hashed = _mix_words(hashed, _TUPLE, len(term))
        for item in term:
            hashed = _mix_term(hashed, item)
        return hashed
    return _mix_list(hashed, term)


def _mix_list(hashed: int, items: Sequence[_Term]) -> int:
    for item in items:
        hashed = _mix_term(hashed, item)
    return _mix_words(hashed, _NIL, _NIL_TAG) if hashed else _ONLY_NIL


def _mix_binary(hashed: int, data: bytes) -> int:
    c = _GOLDEN_RATIO * _BINARY + hashed & _MASK
    if not data:
        return c
    a = b = _GOLDEN_RATIO
    full = len(data) - len(data) % _BLOCK
    for at in range(0, full, _BLOCK):
        first, second, third = struct.unpack_from("<III", data, at)
        a, b, c = _mix(a + first & _MASK, b + second & _MASK, c + third & _MASK)
    rest = data[full:]
    # The lowest byte of the last word has the length.
    first, second, third = struct.unpack("<III", rest[:8].ljust(9, b"\0") + rest[8:].ljust(3, b"\0"))
    return _mix(a + first & _MASK, b + second & _MASK, c + third + len(data) & _MASK)[2]


def _mix_integer(hashed: int, value: int) -> int:
    if -_SMALL_LIMIT <= value < _SMALL_LIMIT:
        if value < 0:
            hashed = _mix_words(hashed, _SMALL, -value)
        return _mix_words(hashed, _SMALL, value)
    factor = _NEGATIVE if value < 0 else _POSITIVE
    for first, second in _words(abs(value)):
        hashed = _mix_words(hashed, factor, first, second)
    return hashed


def _words(value: int) -> Iterator[tuple[int, int]]:
    """Yield the words of a number in pairs, the lowest first."""
    while value:
        yield value & _MASK, value >> 32 & _MASK
        value >>= 64


def _atom(name: str) -> int:
    """Return the hash of an atom: that of P. J. Weinberger."""
    hashed = 0
    for byte in name.encode():
        hashed = (hashed << 4) + byte
        high = hashed & 0xF0000000
        hashed ^= high >> 24 ^ high
    return hashed
