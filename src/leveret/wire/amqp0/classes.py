"""Conversion of contents between class basic and the classes of 0-9.

The header of a content of class file or stream is the payload of its header frame. A message of class message has no header
frame. Its header consists of class, weight and body size, as in any other, and the fields of `message.transfer` from `ttl`
to `application-headers`, byte for byte as received.

Some fields have no equivalent in class basic: `security-token` is only for the broker and is dropped; `transaction-id` and
`filename` become headers. Text properties of class basic without a field in another class become headers there, and are
converted back. `user-id` is not, because headers are not verified.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from leveret.wire.amqp0.constants import SYNTAX_ERROR
from leveret.wire.amqp0.dialects import QPID, RABBITMQ, Dialect
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.methods import decode_field, encode_field, field_end
from leveret.wire.amqp0.model import FieldSpec
from leveret.wire.amqp0.properties import decode_header, encode_header
from leveret.wire.amqp0.table_amqp09 import V0_9
from leveret.wire.amqp0.values import Arguments, ContentProperties, FieldTable

BASIC: Final = 60
FILE: Final = 70
STREAM: Final = 80
MESSAGE: Final = 120

FILENAME: Final = "x-filename"
TRANSACTION_ID: Final = "x-transaction-id"
# Prefix of headers that contain a property of class basic.
_BASIC_PREFIX: Final = "x-basic-"
_KEPT: Final = ("correlation_id", "reply_to", "message_id", "type", "app_id", "cluster_id")
_PERSISTENT: Final = 2
_TRANSIENT: Final = 1
_MAX_TEXT: Final = 255

_FIXED: Final = struct.Struct(">HHQ")
_TRANSFER: Final = V0_9.by_name["message.transfer"].fields
_NAMES: Final = [field.name for field in _TRANSFER]
# The fields before `ttl` are part of the address, or concern a single hop.
TRANSFER_FIELDS: Final[list[FieldSpec]] = [
    field
    for field in _TRANSFER[_NAMES.index("ttl") : _NAMES.index("body")]
    if field.name not in ("exchange", "routing_key")
]
_TEXTS: Final = ("message_id", "correlation_id", "reply_to", "content_type", "content_encoding", "user_id", "app_id")


def class_of(header: bytes) -> int:
    """Return the content class of a header."""
    return header[0] << 8 | header[1]


def encode_transfer(size: int, arguments: Arguments, dialect: Dialect = QPID) -> bytes:
    """Return the header of a message of class message, from the arguments of its transfer.

    Raises:
        EncodeError: a value does not fit its field.
    """
    pieces = [_FIXED.pack(MESSAGE, 0, size)]
    for field in TRANSFER_FIELDS:
        try:
            pieces.append(encode_field(field, arguments.get(field.name), dialect))
        except (ValueError, struct.error) as error:
            raise EncodeError(f"{field.name}: {error}") from error
    return b"".join(pieces)


def decode_transfer(header: bytes, dialect: Dialect = QPID) -> Arguments:
    """Return the arguments encoded by `encode_transfer`.

    Raises:
        WireError: 502, the header is malformed.
    """
    pos = _FIXED.size
    end = len(header)
    arguments: Arguments = {}
    for field in TRANSFER_FIELDS:
        stop = field_end(field.type, header, pos, end)
        if stop > end:
            raise WireError(SYNTAX_ERROR, f"the message ends within {field.spec_name}")
        arguments[field.name] = decode_field(field.type, header, pos, stop, dialect)
        pos = stop
    if pos != end:
        raise WireError(SYNTAX_ERROR, f"the message has {end - pos} bytes after its last field")
    return arguments


def to_basic(header: bytes) -> bytes:
    """Convert a header to class basic. A malformed header becomes one without properties."""
    kind = class_of(header)
    if kind == BASIC:
        return header
    size: int = _FIXED.unpack_from(header)[2]
    try:
        properties = _of_transfer(decode_transfer(header)) if kind == MESSAGE else _of_content(kind, header)
    except WireError:
        properties = {}
    headers = properties.get("headers")
    if headers:
        for name, header_name in HIDDEN[kind]:
            value = headers.get(header_name)
            if isinstance(value, str) and len(value.encode("utf-8", "surrogateescape")) <= _MAX_TEXT:
                properties[name] = value
                del headers[header_name]
    return _encode(BASIC, size, properties)


def from_basic(header: bytes, kind: int, size: int, expires: int = 0) -> bytes:
    """Convert a header of class basic to another class, for a body of `size` bytes.

    `expires` is the second of Unix time at which the message expires; class message has a field for it.
    """
    try:
        properties = decode_header(header, RABBITMQ)[2]
    except WireError:
        properties = {}
    headers = dict(properties.get("headers") or {})
    for name, header_name in HIDDEN[kind]:
        if name in properties:
            headers[header_name] = properties[name]
    if kind == FILE and isinstance(headers.get(FILENAME), str):
        properties["filename"] = headers.pop(FILENAME)
    if headers:
        properties["headers"] = headers
    else:
        properties.pop("headers", None)
    if kind == MESSAGE:
        return _encode_transfer(size, {**_to_transfer(properties), "expiration": expires})
    return _encode(kind, size, {name: value for name, value in properties.items() if name in _FIELDS[kind]})


def with_headers(header: bytes, changes: FieldTable, drop_expiration: bool) -> bytes:
    """Set some headers of a content of a class other than basic; None removes a header.

    A malformed header is returned unchanged.
    """
    kind = class_of(header)
    size: int = _FIXED.unpack_from(header)[2]
    name = "application_headers" if kind == MESSAGE else "headers"
    try:
        fields = decode_transfer(header) if kind == MESSAGE else dict(decode_header(header, QPID, V0_9)[2])
    except WireError:
        return header
    table = {**(fields.get(name) or {}), **changes}
    fields[name] = {key: value for key, value in table.items() if value is not None or key not in changes}
    if kind != MESSAGE:
        return _encode(kind, size, fields)
    if drop_expiration:
        fields["ttl"] = fields["expiration"] = 0
    return _encode_transfer(size, fields)


def _of_content(kind: int, header: bytes) -> ContentProperties:
    """Convert the properties of a content of class file or stream to those of class basic."""
    properties = dict(decode_header(header, QPID, V0_9)[2])
    headers = dict(properties.get("headers") or {})
    filename = properties.pop("filename", None)
    if filename:
        headers[FILENAME] = filename
    if headers:
        properties["headers"] = headers
    # The class implies the delivery mode.
    properties["delivery_mode"] = _PERSISTENT if kind == FILE else _TRANSIENT
    return properties


def _of_transfer(arguments: Arguments) -> ContentProperties:
    properties: ContentProperties = {name: arguments[name] for name in _TEXTS if arguments[name]}
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


def _to_transfer(properties: ContentProperties) -> Arguments:
    arguments: Arguments = {name: properties[name] for name in _TEXTS if name in properties}
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


def _encode_transfer(size: int, arguments: Arguments) -> bytes:
    """Encode the header, without values that do not fit their fields."""
    try:
        return encode_transfer(size, arguments)
    except EncodeError:
        return encode_transfer(size, _fitting(arguments, "application_headers", _fits_transfer))


def _fits_transfer(arguments: Arguments) -> bool:
    try:
        encode_transfer(0, arguments)
    except EncodeError:
        return False
    return True


def _encode(kind: int, size: int, properties: ContentProperties) -> bytes:
    """Encode the header, without values that do not fit their fields."""
    dialect = RABBITMQ if kind == BASIC else QPID

    def fits(some: ContentProperties) -> bool:
        try:
            encode_header(kind, size, some, dialect, V0_9)
        except EncodeError:
            return False
        return True

    try:
        return encode_header(kind, size, properties, dialect, V0_9)
    except EncodeError:
        return encode_header(kind, size, _fitting(properties, "headers", fits), dialect, V0_9)


def _fitting(properties: ContentProperties, table: str, fits: Callable[[ContentProperties], bool]) -> ContentProperties:
    """Return the properties that fit, with only those fields of the table that fit."""
    kept: ContentProperties = {}
    for name, value in properties.items():
        if name == table:
            kept[name] = {key: item for key, item in value.items() if fits({name: {key: item}})}
        elif fits({name: value}):
            kept[name] = value
    return kept


_FIELDS: Final = {kind: frozenset(field.name for field in V0_9.classes[kind].properties) for kind in (FILE, STREAM)}
# Properties of class basic without a field, and the header for each, by class.
HIDDEN: Final = {
    kind: [(name, _BASIC_PREFIX + name.replace("_", "-")) for name in _KEPT if name not in fields]
    for kind, fields in {**_FIELDS, MESSAGE: frozenset(_NAMES)}.items()
}
