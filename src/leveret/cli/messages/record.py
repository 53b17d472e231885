"""Messages as JSON, one object per line, for input and output.

    {"exchange": "events", "routing_key": "order.new", "redelivered": false,
     "properties": {"delivery_mode": 2, "timestamp": "2026-01-31T12:00:00+00:00"}, "headers": {"attempt": 1},
     "body": "...", "encoding": "text"}

A body that is not UTF-8 is encoded as base64. A header value without a JSON type is an object with one key: "!bytes"
(base64), "!decimal", "!timestamp" (ISO 8601) or "!float" (nan, inf, -inf).
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from leveret.cli.output import Item, Reply
from leveret.client.errors import InvalidMessage
from leveret.client.properties import NAMES, Properties

if TYPE_CHECKING:
    from leveret.client.message import Message

KEYS: Final = ("body", "encoding", "exchange", "routing_key", "properties", "headers")
# Keys of received messages that `publish` ignores.
_IGNORED: Final = ("redelivered",)
_PROPERTIES: Final = tuple(name for name in NAMES if name != "headers")


class Draft(NamedTuple):
    """A message to publish. None means unspecified."""

    body: bytes
    exchange: str | None = None
    routing_key: str | None = None
    properties: Properties | None = None


def dump(message: Message) -> bytes:
    """Return a received message as a line of JSON."""
    record: Item = {"exchange": message.exchange, "routing_key": message.routing_key, "redelivered": message.redelivered}
    try:
        properties = message.properties
    except InvalidMessage as error:
        record["malformed"] = str(error)
        properties = Properties()
    record["properties"] = {
        name: _to_json(value) if name != "timestamp" else _time_text(value)
        for name in _PROPERTIES
        if (value := getattr(properties, name)) is not None
    }
    record["headers"] = {name: _to_json(value) for name, value in (properties.headers or {}).items()}
    try:
        record |= {"body": message.body.decode("utf-8"), "encoding": "text"}
    except UnicodeDecodeError:
        record |= {"body": base64.b64encode(message.body).decode(), "encoding": "base64"}
    try:
        return json.dumps(record, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        # Escape the lone surrogates in strings that are not UTF-8.
        return json.dumps(record).encode() + b"\n"


def _time_text(value: Reply) -> Reply:
    return value.isoformat() if isinstance(value, datetime) else value


def _to_json(value: Reply) -> Reply:
    if isinstance(value, dict):
        return {name: _to_json(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(inner) for inner in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"!bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"!timestamp": value.isoformat()}
    if isinstance(value, Decimal):
        return {"!decimal": str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"!float": str(value)}
    return value


def parse(line: bytes) -> Draft:
    """Parse a line. Raises `ValueError`, whose text says what is wrong and what was expected."""
    try:
        record = json.loads(line, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"invalid JSON: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object with {', '.join(KEYS)}")
    unknown = [key for key in record if key not in KEYS and key not in _IGNORED]
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}; expected {', '.join(KEYS)}")
    return Draft(_body(record), _text(record, "exchange"), _text(record, "routing_key"), _properties(record))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _text(record: Item, key: str) -> str | None:
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key}: expected a string")
    return value


def _body(record: Item) -> bytes:
    body = record.get("body", "")
    encoding = record.get("encoding", "text")
    if not isinstance(body, str):
        raise ValueError("body: expected a string (write a JSON body as a string too)")
    if encoding == "text":
        return body.encode("utf-8", "surrogatepass")
    if encoding == "base64":
        return _base64("body", body)
    raise ValueError(f"encoding: got {encoding!r}, expected 'text' or 'base64'")


def _base64(what: str, value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{what}: invalid base64: {error}") from None


def _properties(record: Item) -> Properties | None:
    given = record.get("properties")
    headers = record.get("headers")
    for what, value in (("properties", given), ("headers", headers)):
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"{what}: expected an object")
    values = dict(given or {})
    unknown = [name for name in values if name not in NAMES]
    if unknown:
        raise ValueError(f"properties: unknown property {unknown[0]!r}; expected {', '.join(NAMES)}")
    inner = values.pop("headers", None)
    if inner is not None and not isinstance(inner, dict):
        raise ValueError("properties: headers: expected an object")
    if isinstance(values.get("timestamp"), str):
        values["timestamp"] = read_time(values["timestamp"])
    merged = {**(inner or {}), **(headers or {})}
    if merged:
        values["headers"] = {name: _from_json(name, value) for name, value in merged.items()}
    return Properties(**values) if values else None


def read_time(value: str) -> datetime | int:
    """Parse a time in ISO 8601 or in seconds since 1970. Raises `ValueError`."""
    if value.isascii() and value.isdigit():
        return int(value[:20])
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"timestamp: got {value!r}, expected ISO 8601 or seconds since 1970") from None


def _read_decimal(value: str) -> Decimal:
    try:
        return Decimal(value)
    except InvalidOperation:
        raise ValueError(f"!decimal: {value!r} is not a number") from None


_TAGGED: Final[dict[str, Callable[[str], Reply]]] = {
    "!bytes": lambda value: _base64("!bytes", value),
    "!decimal": _read_decimal,
    "!timestamp": read_time,
    "!float": float,
}


def _from_json(path: str, value: Reply) -> Reply:
    if isinstance(value, dict):
        if len(value) == 1:
            [(tag, inner)] = value.items()
            if tag in _TAGGED and isinstance(inner, str):
                try:
                    return _TAGGED[tag](inner)
                except ValueError as error:
                    raise ValueError(f"headers: {path}: {error}") from None
        return {name: _from_json(name, inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_from_json(path, inner) for inner in value]
    return value
