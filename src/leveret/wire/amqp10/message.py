"""Encoding and decoding of the sections of a message (messaging 3.2), one section at a time.

Maps become dict or `values.Map`. In annotations, plain str keys are encoded as symbols.
"""

from __future__ import annotations

import struct
from typing import Final

from leveret.wire.amqp10 import codes
from leveret.wire.amqp10.composites import decode_composite, decode_value, encode_any, encode_composite
from leveret.wire.amqp10.decode import Decoder, check_keys, value_end
from leveret.wire.amqp10.descriptors import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
)
from leveret.wire.amqp10.encode import encode_binary, encode_list, encode_pairs
from leveret.wire.amqp10.errors import DecodeError, EncodeError
from leveret.wire.amqp10.messaging import Header, Properties
from leveret.wire.amqp10.sections import ABSENT, Sections
from leveret.wire.amqp10.short import uint
from leveret.wire.amqp10.values import Array, Checked, Map, Pairs, Table, ULong, Value

# The fields of the properties section, in its order.
PROPERTY_FIELDS: Final = (
    "message_id",
    "user_id",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "absolute_expiry_time",
    "creation_time",
    "group_id",
    "group_sequence",
    "reply_to_group_id",
)

_STRINGS: Final = bytes((codes.STRING_8, codes.STRING_32))
_ANNOTATION_KEYS: Final = bytes((codes.SYMBOL_8, codes.SYMBOL_32, codes.ULONG_0, codes.SMALL_ULONG, codes.ULONG))
_PACK_HEAD: Final = struct.Struct(">BBBBBB").pack
_PACK_DATA_HEAD: Final = struct.Struct(">BBBBI").pack


def header(sections: Sections) -> Header | None:
    """Return the header. Raises DecodeError if it is malformed."""
    if sections.header == ABSENT:
        return None
    value = decode_composite(sections.data, sections.header, sections.header_end)[0]
    return value if isinstance(value, Header) else None


def properties(sections: Sections) -> Properties | None:
    """Return the properties. Raises DecodeError if they are malformed."""
    if sections.properties == ABSENT:
        return None
    value = decode_composite(sections.data, sections.properties, sections.properties_end)[0]
    return value if isinstance(value, Properties) else None


def delivery_annotations(sections: Sections) -> Checked:
    """Return the delivery annotations as a map, or None. Raises DecodeError if they are malformed."""
    return _annotations(sections.data, sections.delivery_annotations, sections.delivery_annotations_end)


def message_annotations(sections: Sections) -> Checked:
    """Return the message annotations as a map, or None. Raises DecodeError if they are malformed."""
    return _annotations(sections.data, sections.message_annotations, sections.message_annotations_end)


def footer(sections: Sections) -> Checked:
    """Return the footer as a map, or None. Raises DecodeError if it is malformed."""
    return _annotations(sections.data, sections.footer, sections.footer_end)


def application_properties(sections: Sections) -> Checked:
    """Return the application properties as a map with str keys, or None. Raises DecodeError if they are malformed.

    Values of compound types are accepted, although the specification does not allow them.
    """
    start = sections.application_properties
    if start == ABSENT:
        return None
    _check_keys(
        sections.data, start, sections.application_properties_end, _STRINGS, "application-properties: expected a string"
    )
    return _content(sections.data, start, sections.application_properties_end)


def body(sections: Sections) -> list[Checked]:
    """Return the values of the body sections in order. Raises DecodeError if they are malformed.

    They are the bytes of `data`, the lists of `amqp-sequence`, or the one value of `amqp-value` (an object if AMQP 1.0
    defines its type).
    """
    values: list[Checked] = []
    pos = sections.body
    while ABSENT < pos < sections.body_end:
        stop = value_end(sections.data, pos, sections.body_end)
        values.append(_content(sections.data, pos, stop))
        pos = stop
    return values


def _annotations(data: bytes, start: int, stop: int) -> Checked:
    if start == ABSENT:
        return None
    _check_keys(data, start, stop, _ANNOTATION_KEYS, "annotations: expected a symbol or ulong")
    return _content(data, start, stop)


def _check_keys(data: bytes, start: int, stop: int, allowed: bytes, expected: str) -> None:
    """Raise DecodeError if the map between `start` and `stop` has a key of another type. The map is not decoded."""
    code = check_keys(data, value_end(data, start + 1, stop), stop, allowed)
    if code >= 0:
        raise DecodeError(start, f"{expected} as key, not {codes.TYPES.get(code, 'a described value')}")


def _content(data: bytes, start: int, stop: int) -> Value:
    """Return the value of the section between `start` and `stop`, after its descriptor."""
    pos = value_end(data, start + 1, stop)
    if data[pos] == codes.DESCRIBED:
        return decode_value(data, pos, stop)[0]
    return Decoder(data, pos, stop).value(1)


def encode_header(durable: bool, priority: int, ttl: int, first_acquirer: bool, delivery_count: int) -> bytes:
    """Return the encoded header; empty if all fields are absent, False or 0. A priority or ttl of -1 is absent."""
    content = b"\x41" if durable else b"\x40"
    count = 5
    if not delivery_count:
        count = 4
        if not first_acquirer:
            count = 3 if ttl >= 0 else 2 if priority >= 0 else 1 if durable else 0
    if count == 0:
        return b""
    if count > 1:
        content += b"\x40" if priority < 0 else bytes((codes.UBYTE, priority))
    if count > 2:
        content += b"\x40" if ttl < 0 else uint(ttl)
    if count > 3:
        content += b"\x41" if first_acquirer else b"\x40"
    if count > 4:
        content += uint(delivery_count)
    return _PACK_HEAD(0, codes.SMALL_ULONG, HEADER, codes.LIST_8, len(content) + 1, count) + content


def encode_properties(value: Properties) -> bytes:
    """Encode a `properties` section. Raises EncodeError for a field that does not fit its type."""
    return encode_composite(value)


def encode_delivery_annotations(value: Table) -> bytes:
    """Encode a `delivery-annotations` section. Raises EncodeError for a key that is neither symbol nor ulong."""
    return _encode_annotations(DELIVERY_ANNOTATIONS, value)


def encode_message_annotations(value: Table) -> bytes:
    """Encode a `message-annotations` section. Raises EncodeError for a key that is neither symbol nor ulong."""
    return _encode_annotations(MESSAGE_ANNOTATIONS, value)


def encode_footer(value: Table) -> bytes:
    """Encode a `footer` section. Raises EncodeError for a key that is neither symbol nor ulong."""
    return _encode_annotations(FOOTER, value)


def encode_application_properties(value: Table) -> bytes:
    """Encode an `application-properties` section.

    Raises EncodeError for a key that is not a plain str, or a value of a compound type.
    """
    pairs = _pairs(value)
    for key, item in pairs:
        if type(key) is not str:
            raise EncodeError(f"application-properties: expected a string as key, not {key!r}")
        if isinstance(item, (list, tuple, dict, Map, Array)):
            raise EncodeError(f"application-properties: expected a simple value for '{key}', not a {type(item).__name__}")
    return _head(APPLICATION_PROPERTIES) + encode_pairs(pairs)


def encode_data(value: bytes) -> bytes:
    """Encode a `data` section."""
    return _head(DATA) + encode_binary(value)


def encode_data_head(size: int) -> bytes:
    """Encode the bytes before the content of a `data` section of this size."""
    if size < 256:
        return bytes((0, codes.SMALL_ULONG, DATA, codes.BINARY_8, size))
    return _PACK_DATA_HEAD(0, codes.SMALL_ULONG, DATA, codes.BINARY_32, size)


def encode_sequence(values: list[Value]) -> bytes:
    """Encode an `amqp-sequence` section."""
    return _head(AMQP_SEQUENCE) + encode_list(values)


def encode_body_value(value: Value) -> bytes:
    """Encode an `amqp-value` section, whose value may be an object of a composite type (as sent to a coordinator)."""
    return _head(AMQP_VALUE) + encode_any(value)


def _encode_annotations(kind: int, value: Table) -> bytes:
    pairs = _pairs(value)
    for key, _ in pairs:
        if not isinstance(key, (str, ULong)):
            raise EncodeError(f"annotations: expected a symbol or ulong as key, not {key!r}")
    return _head(kind) + encode_pairs(pairs, 0, True)


def _head(kind: int) -> bytes:
    return bytes((0, codes.SMALL_ULONG, kind))


def _pairs(value: Table) -> Pairs:
    return value.pairs if isinstance(value, Map) else list(value.items())
