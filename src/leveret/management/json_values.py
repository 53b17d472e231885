"""Encoding of replies as JSON, including arbitrary values from clients."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, TypeAlias, Union, overload

import msgspec

from leveret.broker import values

# Range of integers that JSON parsers with 64-bit integers support.
_MIN_INTEGER: Final = -(1 << 63)
_MAX_INTEGER: Final = (1 << 64) - 1
# The key of the object that stands for a text whose bytes are not UTF-8.
_BYTES: Final = "$string"


# A value in a reply: a struct, a value from a client's table, or a collection of these.
ReplyValue: TypeAlias = Any
Json: TypeAlias = Union[bool, int, float, str, list["Json"], dict[str, "Json"], None]


class ClientTable:
    """A client's table in a reply: arguments or properties."""

    __slots__ = ("fields",)

    def __init__(self, fields: values.FieldTable) -> None:
        self.fields = fields


@overload
def plain(value: str) -> str: ...


@overload
def plain(value: ReplyValue) -> Json: ...


def plain(value: ReplyValue) -> Json:
    """Return a reply, or a field table value, as a JSON value. Accepts every value that a client can send.

    Bytes, decimals, NaN and infinities become strings; times become ISO 8601.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return int(value) if _MIN_INTEGER <= value <= _MAX_INTEGER else str(int(value))
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(float(value))
    if isinstance(value, ClientTable):
        return _plain_table(value.fields)
    if isinstance(value, dict):
        return _plain_table(value)
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, msgspec.Struct):
        fields: dict[str, Json] = {name: plain(inner) for name, inner in fields_of(value).items()}
        return list(fields.values()) if value.__struct_config__.array_like else fields
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    return value.isoformat() if hasattr(value, "isoformat") else _text(str(value))


def fields_of(reply: msgspec.Struct) -> dict[str, ReplyValue]:
    """Return the fields of a reply that are set, by their JSON names."""
    found = (
        (name, getattr(reply, field))
        for name, field in zip(reply.__struct_encode_fields__, reply.__struct_fields__, strict=True)
    )
    return {name: value for name, value in found if value is not msgspec.UNSET}


def _plain_table(table: Mapping[ReplyValue, ReplyValue]) -> dict[str, Json]:
    shown: dict[str, Json] = {}
    for key, inner in table.items():
        name = unique = str(plain(key))
        number = 1
        while unique in shown:  # such as the byte 0xFF and the string \\xff
            number += 1
            unique = f"{name}#{number}"
        shown[unique] = plain(inner)
    return shown


def _text(text: str) -> str:
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a surrogate that represents no byte
        return text.encode("utf-8", "backslashreplace").decode()


def _table(value: ReplyValue) -> dict[str, Json]:
    if isinstance(value, ClientTable):
        return _plain_table(value.fields)
    raise TypeError(f"'{type(value).__name__}' is not a JSON type")


def exact(text: str) -> Json:
    """Return a text of a client as JSON without loss: an object with its bytes in base64 if they are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return {_BYTES: base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()}
    return text


def exact_text(name: str, value: object) -> str:
    """Return the text that `exact` has encoded. Raises `ValueError`, which includes `name`, for any other value."""
    if isinstance(value, str):
        return value
    encoded = value.get(_BYTES) if isinstance(value, dict) and len(value) == 1 else None
    try:
        if isinstance(encoded, str):
            return base64.b64decode(encoded, validate=True).decode("utf-8", "surrogateescape")
    except binascii.Error:
        pass
    raise ValueError(f"invalid value of '{name}'; expected a text, or {{\"{_BYTES}\": its bytes in base64}}")


def encode_json(value: ReplyValue) -> bytes:
    """Encode a reply as JSON. Accepts any value."""
    try:
        return msgspec.json.encode(value, enc_hook=_table)
    except (TypeError, ValueError, OverflowError):
        return msgspec.json.encode(plain(value))
