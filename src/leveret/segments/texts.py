"""Header values as text, from the JSON data of `typed_json`."""

from __future__ import annotations

from base64 import b64decode
from typing import Final

import msgspec

from leveret.segments import typed_json
from leveret.segments.typed_json import Document, Json

_encode: Final = msgspec.json.encode
# The range of `datetime`, in milliseconds.
FIRST_TIME: Final = -62135596800000
LAST_TIME: Final = 253402300799999

# Tags of JSON data that is not a scalar.
_NESTED: Final = frozenset(("$array", "$map", "$described", "$table"))


def clean(text: str) -> str:
    """Return the text with U+FFFD for invalid UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def to_json(data: Json) -> str:
    """Encode JSON data."""
    try:
        return _encode(data).decode("utf-8")
    except (OverflowError, msgspec.MsgspecError):  # an integer of more than 64 bits
        return typed_json.dumps(data)


def text_of(data: Document) -> str | None:
    """Return JSON data as text: nested values as JSON, binary as base64, times in ISO 8601."""
    kind = type(data)
    if kind is str or data is None:
        return data  # type: ignore[no-any-return]
    if kind is int:
        return str(data)
    if kind is bool:
        return "true" if data else "false"
    if kind is dict and len(data) == 1:
        tag, inner = next(iter(data.items()))
        if tag == "$string":
            return b64decode(inner).decode("utf-8", "replace")
        if tag.startswith("$") and tag not in _NESTED and type(inner) is not dict:
            return text_of(inner)
    if kind is float:
        return repr(data)
    return to_json(data)


def untag(data: Document) -> Json:
    """Return the value without the tag of its type."""
    if type(data) is dict and len(data) == 1:
        tag, inner = next(iter(data.items()))
        if tag.startswith("$"):
            value: Json = untag(inner) if tag == "$table" else inner
            return value
    plain: Json = data
    return plain
