"""Bodies as JSON text: the column `body_json`.

A body of AMQP 0-x, of `data` sections, or of an `amqp-value` with a string or binary is text or bytes. Text that is a
JSON object or array stays as it is, other text becomes a JSON string, and other bytes become a JSON string in base64.
Other bodies are those of `typed_json` without the names of types: a `uint` is a number, a map an object, and the
`amqp-sequence` sections of a message are one array.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from leveret.segments import typed_json
from leveret.segments.folding import SEQUENCE_BODY, VALUE_BODY
from leveret.segments.texts import clean, text_of, to_json
from leveret.segments.typed_json import Document, Json
from leveret.wire.amqp10 import message
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.sections import split

_SECTIONS: Final = (VALUE_BODY, SEQUENCE_BODY)
_SPACE: Final = b" \t\r\n"
_BEGINS: Final = (b"{", b"[")
_MALFORMED: Final = (DecodeError, IndexError, ValueError, OverflowError, AttributeError, TypeError, RecursionError)


def body_jsons(bodies: pa.Array | pa.ChunkedArray, amqp10: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the bodies as JSON text; null without a body, and for one that cannot be decoded.

    Args:
        bodies: The column `body`.
        amqp10: The column `amqp10`.
    """
    kinds: Iterable[str | None] = [None] * len(bodies)
    if amqp10.null_count < len(amqp10):
        kinds = pc.struct_field(amqp10, "body_type").to_pylist()
    texts = [
        _sections_json(body, kind) if kind in _SECTIONS else _bytes_json(body)
        for body, kind in zip(bodies.to_pylist(), kinds, strict=True)
    ]
    return pa.array(texts, pa.string())


def _bytes_json(body: bytes) -> str | None:
    if not body:
        return None
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return f'"{b64encode(body).decode("ascii")}"'
    if body.lstrip(_SPACE).startswith(_BEGINS):
        try:
            msgspec.json.decode(body, type=msgspec.Raw)
            return text
        except (msgspec.DecodeError, RecursionError):
            pass
    return to_json(text)


def _sections_json(body: bytes, kind: str | None) -> str | None:
    try:
        values = [plain(typed_json.from_value(value)) for value in message.body(split(body))]
    except _MALFORMED:
        return None
    if kind == SEQUENCE_BODY:
        return to_json([item for value in values if isinstance(value, list) for item in value])
    return to_json(values[0]) if values else None


def plain(data: Document) -> Json:
    """Return JSON data of `typed_json` without the names of types."""
    if isinstance(data, str):
        return clean(data)
    if isinstance(data, list):
        return [plain(item) for item in data]
    if not isinstance(data, dict):
        scalar: Json = data
        return scalar
    tag = next(iter(data), "")
    if len(data) > 1 or not tag.startswith("$"):
        return {clean(key): plain(item) for key, item in data.items()}
    inner: Document = data[tag]
    if tag == "$map":
        return {text_of(plain(key)) or "": plain(item) for key, item in inner}
    if tag == "$array":
        return plain(inner["items"])
    if tag == "$described":
        return plain(inner[1])
    if tag == "$table":
        return {clean(key): plain(item) for key, item in inner.items()}
    if tag == "$string":
        return text_of(data)
    if isinstance(inner, dict):
        return plain(inner["octets"])
    return plain(inner)
