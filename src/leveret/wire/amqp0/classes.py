"""Contents of the classes that only 0-9 has, as those of class basic, and the other way round.

The header of a content of class file or stream is that of its header frame. A message of class message has none: its
header is made of the fields of `message.transfer` from `ttl` to `application-headers`, octet for octet as they came,
behind class, weight and body size as in any other.

What has no place in class basic: `security-token`, which is for the broker alone; `transaction-id` and `filename` become
headers.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from leveret.wire.amqp0.constants import SYNTAX_ERROR
from leveret.wire.amqp0.dialects import QPID, RABBITMQ, Dialect
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.methods import decode_field, encode_field, field_end
from leveret.wire.amqp0.model import FieldSpec
from leveret.wire.amqp0.properties import decode_header, encode_header
from leveret.wire.amqp0.table_0_9 import V0_9

BASIC: Final = 60
FILE: Final = 70
STREAM: Final = 80
MESSAGE: Final = 120

FILENAME: Final = "x-filename"
TRANSACTION_ID: Final = "x-transaction-id"

_FIXED: Final = struct.Struct(">HHQ")
_TRANSFER: Final = V0_9.by_name["message.transfer"].fields
_NAMES: Final = [field.name for field in _TRANSFER]
# Those that say where a message goes stand in its address, or concern one hop only.
TRANSFER_FIELDS: Final[list[FieldSpec]] = [field for field in _TRANSFER[_NAMES.index("ttl") : _NAMES.index("body")]
                                           if field.name not in ("exchange", "routing_key")]
_TEXTS: Final = ("message_id", "correlation_id", "reply_to", "content_type", "content_encoding", "user_id", "app_id")


def class_of(header: bytes) -> int:
    """The content class of a header."""
    return header[0] << 8 | header[1]


def encode_transfer(size: int, arguments: dict[str, Any], dialect: Dialect = QPID) -> bytes:
    """The header of a message of class message from the arguments of its transfer; EncodeError where they do not fit."""
    pieces = [_FIXED.pack(MESSAGE, 0, size)]
    for field in TRANSFER_FIELDS:
        try:
            pieces.append(encode_field(field, arguments.get(field.name), dialect))
        except (ValueError, struct.error) as error:
            raise EncodeError(f"{field.name}: {error}") from error
    return b"".join(pieces)


def decode_transfer(header: bytes, dialect: Dialect = QPID) -> dict[str, Any]:
    """The arguments that `encode_transfer` was given, all of them. WireError 502 for what is malformed."""
    pos = _FIXED.size
    end = len(header)
    arguments: dict[str, Any] = {}
    for field in TRANSFER_FIELDS:
        stop = field_end(field.type, header, pos, end)
        if stop > end:
            raise WireError(SYNTAX_ERROR, f"the message ends within {field.spec_name}")
        arguments[field.name] = decode_field(field.type, header, pos, stop, dialect)
        pos = stop
    if pos != end:
        raise WireError(SYNTAX_ERROR, f"the message has {end - pos} octets behind its last field")
    return arguments


def to_basic(header: bytes) -> bytes:
    """The header of class basic that says the same, as far as it can; without properties where it is malformed."""
    kind = class_of(header)
    if kind == BASIC:
        return header
    size: int = _FIXED.unpack_from(header)[2]
    try:
        properties = _of_transfer(decode_transfer(header)) if kind == MESSAGE else decode_header(header, QPID, V0_9)[2]
    except WireError:
        properties = {}
    filename = properties.pop("filename", None)
    if filename:
        properties["headers"] = {**properties.get("headers", {}), FILENAME: filename}
    return _encode(BASIC, size, properties)


def from_basic(header: bytes, kind: int, size: int) -> bytes:
    """The header of another class that says the same as one of class basic, for a body of `size` octets."""
    try:
        properties = decode_header(header, RABBITMQ)[2]
    except WireError:
        properties = {}
    if kind == MESSAGE:
        return _encode_transfer(size, _to_transfer(properties))
    headers = properties.get("headers") or {}
    if kind == FILE and isinstance(headers.get(FILENAME), str):
        properties["filename"] = headers[FILENAME]
        properties["headers"] = {name: value for name, value in headers.items() if name != FILENAME}
    known = {field.name for field in V0_9.classes[kind].properties}
    return _encode(kind, size, {name: value for name, value in properties.items() if name in known})


def _of_transfer(arguments: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {name: arguments[name] for name in _TEXTS if arguments[name]}
    properties["priority"] = arguments["priority"]
    properties["delivery_mode"] = arguments["delivery_mode"] or None
    properties["timestamp"] = arguments["timestamp"] or None
    if arguments["ttl"]:
        properties["expiration"] = str(arguments["ttl"])
    headers = dict(arguments["application_headers"])
    if arguments["transaction_id"]:
        headers[TRANSACTION_ID] = arguments["transaction_id"]
    if headers:
        properties["headers"] = headers
    return properties


def _to_transfer(properties: dict[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {name: properties[name] for name in _TEXTS if name in properties}
    headers = dict(properties.get("headers") or {})
    transaction = headers.get(TRANSACTION_ID)
    if isinstance(transaction, str):
        arguments["transaction_id"] = headers.pop(TRANSACTION_ID)
    arguments["application_headers"] = headers
    arguments["priority"] = properties.get("priority", 4)
    arguments["delivery_mode"] = properties.get("delivery_mode", 1)
    arguments["timestamp"] = properties.get("timestamp", 0)
    expiration = properties.get("expiration", "")
    if expiration.isascii() and expiration.isdigit() and len(expiration) < 20:
        arguments["ttl"] = min(int(expiration), 0xFFFFFFFFFFFFFFFF)
    return arguments


def _encode_transfer(size: int, arguments: dict[str, Any]) -> bytes:
    """The header. What does not fit its type is left out rather than the message."""
    try:
        return encode_transfer(size, arguments)
    except EncodeError:
        kept: dict[str, Any] = {}
        for name, value in arguments.items():
            if name == "application_headers":
                value = {key: item for key, item in value.items() if _fits({name: {key: item}})}
            if _fits({name: value}):
                kept[name] = value
        return encode_transfer(size, kept)


def _fits(arguments: dict[str, Any]) -> bool:
    try:
        encode_transfer(0, arguments)
    except EncodeError:
        return False
    return True


def _encode(kind: int, size: int, properties: dict[str, Any]) -> bytes:
    """The header. What does not fit its type is left out rather than the message."""
    dialect, version = (RABBITMQ, V0_9) if kind == BASIC else (QPID, V0_9)
    try:
        return encode_header(kind, size, properties, dialect, version)
    except EncodeError:
        kept: dict[str, Any] = {}
        for name, value in properties.items():
            try:
                encode_header(kind, size, {name: value}, dialect, version)
            except EncodeError:
                continue
            kept[name] = value
        return encode_header(kind, size, kept, dialect, version)
