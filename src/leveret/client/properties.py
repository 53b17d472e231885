"""Message properties (0-9-1 section 1.8.3, class basic)."""

from __future__ import annotations

import difflib
import math
import reprlib
import struct
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias

from leveret.client.errors import InvalidMessage
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.fieldtable import MAX_DEPTH, encode_short_string, encode_timestamp, encode_value
from leveret.wire.amqp0.properties import decode_header, encode_basic
from leveret.wire.amqp10.values import Checked

# Encoded properties of a message without any.
NO_PROPERTIES: Final = b"\0\0"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_VALUES: Final = (bool, int, float, Decimal, str, bytes, bytearray, memoryview, datetime)
_EXPECTED_VALUES: Final = "; expected bool, int, float, Decimal, str, bytes, datetime, None, or dicts and lists of these"
# First second that `datetime` cannot represent.
_TIMESTAMP_END: Final = 253402300800
_MILLISECOND: Final = timedelta(milliseconds=1)

# Type of a property. The encoder validates the value.
PropertyValue: TypeAlias = Any
# Received headers may contain any value; the encoder validates sent ones.
Headers: TypeAlias = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Properties:
    """Properties of a message. A property that is None is absent.

    Properties without a description are strings of at most 255 bytes in UTF-8.

    Attributes:
        headers: Names of at most 255 bytes; values are bool, int (64 bits), float, Decimal, str, bytes, datetime, None,
            and dicts and lists of these.
        delivery_mode: 2 for persistent, 1 for transient.
        priority: 0 to 255.
        expiration: Milliseconds until the message expires, or a timedelta. Received as int, or as str if it is not an
            integer.
        timestamp: A datetime (UTC if naive) or seconds since 1970, sent as whole seconds. Received as an aware datetime in
            UTC, or as int after the year 9999.
    """

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Headers | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: int | float | str | timedelta | None = None
    message_id: str | None = None
    timestamp: datetime | int | float | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None

    @property
    def persistent(self) -> bool:
        """Whether `delivery_mode` is 2."""
        return self.delivery_mode == 2

    def encode(self) -> bytes:
        """Return the encoded properties; see `encode_properties`."""
        return encode_properties(self)


NAMES: Final = tuple(field.name for field in fields(Properties))
_NAMES: Final = frozenset(NAMES)


def encode_properties(properties: Properties) -> bytes:
    """Return property flags and values, which follow the body size in a content header.

    Raises:
        InvalidMessage: A property cannot be encoded; the message names it.
    """
    headers, expiration, timestamp = properties.headers, properties.expiration, properties.timestamp
    try:
        if headers is not None and not isinstance(headers, dict):
            raise TypeError("headers: expected a dict")
        return encode_basic(
            properties.content_type,
            properties.content_encoding,
            headers,
            properties.delivery_mode,
            properties.priority,
            properties.correlation_id,
            properties.reply_to,
            None if expiration is None else _expiration(expiration),
            properties.message_id,
            None if timestamp is None else _timestamp(timestamp),
            properties.type,
            properties.user_id,
            properties.app_id,
            properties.cluster_id,
        )
    except (ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise InvalidMessage(_fault(properties) or str(error)) from error


def decode_properties(header: bytes) -> Properties:
    """Return the properties of a content header, given as the payload of its frame. Raises `InvalidMessage`."""
    try:
        _, _, values = decode_header(header)
    except WireError as error:
        raise InvalidMessage(f"received malformed properties: {error}") from error
    expiration = values.get("expiration")
    if expiration is not None and expiration.isascii() and expiration.isdigit() and len(expiration) <= 20:
        values["expiration"] = int(expiration)
    seconds = values.get("timestamp")
    if seconds is not None and seconds < _TIMESTAMP_END:
        values["timestamp"] = _EPOCH + timedelta(seconds=seconds)
    return Properties(**values)


def from_keywords(properties: Properties | None, keywords: dict[str, PropertyValue]) -> Properties:
    """Return a copy of `properties` with those in `keywords` replaced; None removes a property.

    `persistent` sets `delivery_mode`: 2 if true, 1 if false.

    Raises:
        TypeError: A keyword is not a property.
    """
    merged = Properties() if properties is None else _copy(properties)
    for name, value in keywords.items():
        if name in _NAMES:
            setattr(merged, name, value)
        elif name != "persistent":
            raise TypeError(f"unknown property {name!r}; did you mean {_nearest(name)!r}")
    persistent = keywords.get("persistent")
    if persistent is not None:
        if keywords.get("delivery_mode") is not None:
            raise TypeError("persistent and delivery_mode set the same property; expected one of them")
        merged.delivery_mode = 2 if persistent else 1
    return merged


def _copy(of: Properties) -> Properties:
    """Return a copy of the properties. `copy.copy` takes four times as long."""
    return Properties(
        content_type=of.content_type,
        content_encoding=of.content_encoding,
        headers=of.headers,
        delivery_mode=of.delivery_mode,
        priority=of.priority,
        correlation_id=of.correlation_id,
        reply_to=of.reply_to,
        expiration=of.expiration,
        message_id=of.message_id,
        timestamp=of.timestamp,
        type=of.type,
        user_id=of.user_id,
        app_id=of.app_id,
        cluster_id=of.cluster_id,
    )


def _nearest(name: str) -> str:
    return difflib.get_close_matches(name, (*NAMES, "persistent"), 1, 0.0)[0]


def in_milliseconds(value: object) -> int:
    """Return an expiration in milliseconds. Raises `InvalidMessage` for an invalid one."""
    try:
        return int(_expiration(value))
    except ValueError as error:
        raise InvalidMessage(f"expiration: {error}") from error


def _expiration(value: object) -> str:
    """Return the wire format: milliseconds as digits."""
    if isinstance(value, str):
        return value
    if isinstance(value, timedelta):
        value = value / _MILLISECOND
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return str(round(value))
    raise EncodeError(f"{_shown(value)}; expected milliseconds of at least 0, or a timedelta")


def _timestamp(value: object) -> int:
    """Return the wire format: whole seconds since 1970."""
    if isinstance(value, datetime):
        return encode_timestamp(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**64:
        return int(value)
    raise EncodeError(f"{_shown(value)}; expected a datetime or seconds, neither before 1970")


def _fault(properties: Properties) -> str:
    """Return a description of the property that cannot be encoded, or "" if none is found."""
    for name in NAMES:
        value = getattr(properties, name)
        if value is None:
            continue
        if name == "headers":
            fault = _table_fault(name, value, 0)
        elif name in ("delivery_mode", "priority"):
            fits = isinstance(value, int) and 0 <= value <= 255
            fault = "" if fits else f"{name}: {_shown(value)}; expected an integer from 0 to 255"
        else:
            fault = _value_fault(name, value)
        if fault:
            return fault
    return ""


def _value_fault(name: str, value: Checked) -> str:
    try:
        if name == "timestamp":
            _timestamp(value)
        elif name == "expiration":
            encode_short_string(_expiration(value))
        elif isinstance(value, (str, bytes)):
            encode_short_string(value)
        else:
            return f"{name}: {_shown(value)}; expected a str of at most 255 bytes"
    except (ValueError, OverflowError) as error:
        return f"{name}: {error}"
    return ""


def _table_fault(path: str, table: Any, depth: int) -> str:
    if not isinstance(table, dict):
        return f"{path}: {_shown(table)}; expected a dict"
    for name, value in table.items():
        if not isinstance(name, str):
            return f"{path}: the name {_shown(name)}; expected a str of at most 255 bytes"
        try:
            encode_short_string(name)
        except ValueError as error:
            return f"{path}: the name {_shown(name)}: {error}"
        fault = _field_fault(f"{path}[{name!r}]", value, depth)
        if fault:
            return fault
    return ""


def _field_fault(path: str, value: Checked, depth: int) -> str:
    if isinstance(value, (dict, list, tuple)):
        if depth >= MAX_DEPTH:
            return f"{path[:100]}...: nested too deeply; expected at most {MAX_DEPTH} levels of tables and lists"
        if isinstance(value, dict):
            return _table_fault(path, value, depth + 1)
        for index, item in enumerate(value):
            fault = _field_fault(f"{path}[{index}]", item, depth + 1)
            if fault:
                return fault
        return ""
    try:
        encode_value(value, RABBITMQ)
    except EncodeError as error:
        return f"{path}: {error}{_EXPECTED_VALUES if not isinstance(value, _VALUES) else ''}"
    except (ValueError, OverflowError) as error:
        return f"{path}: {error}"
    return ""


def _shown(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer of thousands of digits
        return "the number"
