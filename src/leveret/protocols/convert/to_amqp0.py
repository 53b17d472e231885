"""Conversion of 1.0 messages for 0-9-1 consumers, and the properties that the broker reads from them."""

from __future__ import annotations

import struct
from typing import Final
from urllib.parse import unquote
from uuid import UUID

from leveret.broker.bodies import Body, StoredBody, whole
from leveret.broker.broker import HeaderReader
from leveret.broker.message import AT_ONCE, FORMAT_CLASS_AMQP09, ONLY_OFFSET, Entry, Message
from leveret.protocols.amqp10.errors import LinkRefused
from leveret.protocols.amqp10.message_times import delivery_time, expiry_of
from leveret.protocols.convert.annotations import DEATHS, PREFIX
from leveret.protocols.convert.names import AMQP_BODY, AMQP_ENCODED, FIELDS, NESTED, QUEUES, STRING_BODY
from leveret.protocols.convert.parts import Part
from leveret.protocols.convert.usual_amqp0 import usual_properties
from leveret.protocols.convert.values import name_of, plain
from leveret.wire.amqp0.classes import to_basic
from leveret.wire.amqp0.errors import EncodeError
from leveret.wire.amqp0.offsets import with_stream_offset
from leveret.wire.amqp0.properties import encode_header, overlay_header
from leveret.wire.amqp0.values import ContentProperties, FieldTable
from leveret.wire.amqp10 import codes, descriptors
from leveret.wire.amqp10.annotations import find_application_text
from leveret.wire.amqp10.composites import decode_composite
from leveret.wire.amqp10.decode import decode_text, section_pairs, value_end
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.messaging import Properties
from leveret.wire.amqp10.sections import MAX_SECTIONS, Sections, section_ranges, split
from leveret.wire.amqp10.values import Pairs, ULong, Value

BASIC: Final = 60
MAX_NAME_BYTES: Final = 255
# Annotations that become 0-9-1 properties if they are strings.
ANNOTATED: Final = {"x-basic-type": "type", "x-opt-cluster-id": "cluster_id"}
# Annotations whose values 0-9-1 has as fields of the delivery.
OMITTED: Final = ("x-exchange", "x-routing-key")
GROUP_ID: Final = "group-id"


# Maximum number of values in a section. Messages received over 1.0 have no more.
MAX_VALUES: Final = 8192
# The usual encodings of data sections and of string values: descriptor and both format codes.
_DATA: Final = bytes((0, codes.SMALL_ULONG, descriptors.DATA, codes.BINARY_8, codes.BINARY_32))
_TEXT: Final = bytes((0, codes.SMALL_ULONG, descriptors.AMQP_VALUE, codes.STRING_8, codes.STRING_32))
# Content headers from the flags on, by the sections before the body, persistence and priority: publishers that set neither
# ids nor times repeat the same sections.
_cache: dict[tuple[bytes, bool, int], bytes] = {}
_MAX_CACHED: Final = 1024
_FIXED: Final = struct.Struct(">HHQ").pack
_FIXED_SIZE: Final = 12


def convert(entry: Entry) -> Message:
    """Return the entry's message as a message of class basic, with the overlay in its headers."""
    message = entry.message
    if message.format == FORMAT_CLASS_AMQP09:
        return _convert_class(entry)
    body, kind = _body_of(message)
    size = body.size if isinstance(body, StoredBody) else len(body)
    overlay = entry.overlay
    if (overlay is None or overlay is ONLY_OFFSET) and not kind:
        header = _FIXED(BASIC, 0, size) + _plain(entry)
        if overlay is not None:
            header = with_stream_offset(header, entry.seq - 1)
        return Message(message.address, header, body, size, message.persistent, message.priority, message.expires_at)
    entry.queue.broker.converted += len(message.header)
    properties = _with_kind(_properties_of(message), kind)
    headers = properties["headers"]
    if overlay is not None:
        for name, value in overlay.headers.items():
            if value is None:
                headers.pop(name, None)
            else:
                headers[name] = value
        if overlay.drop_expiration:
            properties.pop("expiration", None)
    if not headers:
        del properties["headers"]
    header = _encode(size, properties)
    if overlay is not None and overlay.shows_offset:
        header = with_stream_offset(header, entry.seq - 1)
    return Message(message.address, header, body, size, message.persistent, message.priority, message.expires_at)


def _with_kind(properties: ContentProperties, kind: str) -> ContentProperties:
    """Add the kind of a body, as `_content_of` returns it."""
    if kind == STRING_BODY:
        properties["headers"][AMQP_BODY] = STRING_BODY
    elif kind:
        properties["type"] = kind
    return properties


def _convert_class(entry: Entry) -> Message:
    """Return a 0-9 message of another class as a message of class basic."""
    message = entry.message
    header = to_basic(message.header)
    overlay = entry.overlay
    if overlay is not None:
        if overlay.headers or overlay.drop_expiration:
            header = overlay_header(header, overlay.headers, overlay.drop_expiration)
        if overlay.shows_offset:
            header = with_stream_offset(header, entry.seq - 1)
    return Message(
        message.address, header, message.body, message.size, message.persistent, message.priority, message.expires_at
    )


def _plain(entry: Entry) -> bytes:
    """Return the encoded properties of an entry whose overlay and body add none."""
    message = entry.message
    encoded = message.header if message.headers_at < 0 else message.header[: message.headers_at]
    usual = usual_properties(message, encoded, _properties_of)
    if usual is not None:
        return usual
    key = (encoded, message.persistent, message.priority)
    found = _cache.get(key)
    if found is None:
        entry.queue.broker.converted += len(encoded)
        properties = _properties_of(message)
        if not properties["headers"]:
            del properties["headers"]
        found = _encode(0, properties)[_FIXED_SIZE:]
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        if len(encoded) < 1024:
            _cache[key] = found
    return found


def _encode(size: int, properties: ContentProperties) -> bytes:
    """Encode the content header, omitting properties and headers that do not fit their types."""
    try:
        return encode_header(BASIC, size, properties)
    except EncodeError:
        headers = properties.get("headers", {})
        kept: ContentProperties = {
            name: value for name, value in properties.items() if name != "headers" and _fits(size, {name: value})
        }
        kept["headers"] = {name: value for name, value in headers.items() if _fits(size, {"headers": {name: value}})}
        return encode_header(BASIC, size, kept)


def _fits(size: int, properties: ContentProperties) -> bool:
    try:
        encode_header(BASIC, size, properties)
    except EncodeError:
        return False
    return True


def content_of(message: Message) -> Body:
    """Return the body for a 0-9-1 consumer."""
    return _body_of(message)[0]


def _body_of(message: Message) -> tuple[Body, str]:
    """Return the result of `_content_of`; a malformed body stays unchanged."""
    try:
        return _content_of(message)
    except DecodeError:
        return whole(message.body), AMQP_ENCODED


def _content_of(message: Message) -> tuple[Body, str]:
    """Return the body for 0-9-1, and its kind.

    The body is the content of the data sections (kind ""), of a string (STRING_BODY), or the encoded sections
    (AMQP_ENCODED).
    """
    body = message.body
    if isinstance(body, StoredBody):
        begin, size = _data_at(body.read(0, 8))
        if begin and begin + size == message.size:
            return Part(body, begin, size), ""
        begin, size = _data_at(body.read(0, 8), _TEXT)
        if begin and begin + size == message.size:
            return Part(body, begin, size), STRING_BODY
        # Several sections, or another type. A stored body is too large to read and scan in one turn.
        return body, AMQP_ENCODED
    encoded = whole(body)
    if not encoded:
        return b"", ""
    begin, size = _data_at(encoded)
    if begin and begin + size == len(encoded):
        return encoded[begin:], ""
    pieces: list[bytes] = []
    for kind, start, stop in section_ranges(encoded, MAX_SECTIONS):
        at = value_end(encoded, start + 1, stop)
        code = encoded[at]
        if kind == descriptors.DATA:
            pieces.append(encoded[at + (2 if code == codes.BINARY_8 else 5) : stop])
            continue
        if (
            kind == descriptors.AMQP_VALUE
            and not start
            and stop == len(encoded)
            and (code == codes.STRING_8 or code == codes.STRING_32)
        ):
            return decode_text(encoded, at + (2 if code == codes.STRING_8 else 5), stop).encode("utf-8"), STRING_BODY
        return encoded, AMQP_ENCODED
    return b"".join(pieces), ""


def _data_at(encoded: bytes, form: bytes = _DATA) -> tuple[int, int]:
    """Return offset and size of the content of a section of binary or string in its usual encoding, otherwise (0, 0).

    Args:
        encoded: the section, or its first 8 bytes.
        form: its descriptor and both format codes.
    """
    if encoded[:3] != form[:3] or len(encoded) < 5:
        return 0, 0
    if encoded[3] == form[3]:
        return 5, encoded[4]
    if encoded[3] == form[4] and len(encoded) >= 8:
        return 8, int.from_bytes(encoded[4:8], "big")
    return 0, 0


def _sections_of(message: Message) -> Sections:
    header = message.header if message.headers_at < 0 else message.header[: message.headers_at]
    return split(header)


def _headers_of(sections: Sections) -> FieldTable:
    """Return application properties and annotations as headers."""
    headers: FieldTable = {}
    for key, value in _map_at(sections.data, sections.message_annotations, sections.message_annotations_end):
        name = name_of(key)
        if name.startswith(NESTED):
            headers[name[len(NESTED) :]] = plain(value)
        elif name == DEATHS:
            headers["x-death"] = plain(value)
        elif name.startswith("x-") and name not in OMITTED:
            headers[name] = plain(value)
    for key, value in _map_at(sections.data, sections.application_properties, sections.application_properties_end):
        headers[name_of(key)] = plain(value)
    return headers


def _map_at(data: bytes, begin: int, end: int) -> Pairs:
    return section_pairs(data, begin, end, MAX_VALUES) if begin >= 0 else []


def _fields_of(sections: Sections) -> Properties:
    """Return the properties section."""
    if sections.properties >= 0:
        found = decode_composite(sections.data, sections.properties, sections.properties_end)[0]
        if isinstance(found, Properties):
            return found
    return Properties()


def _properties_of(message: Message) -> ContentProperties:
    """Return the content properties, always including `headers`."""
    try:
        sections = _sections_of(message)
        headers = _headers_of(sections)
        fields = _fields_of(sections)
    except DecodeError:
        return {"headers": {}, "delivery_mode": 2 if message.persistent else 1}
    properties: ContentProperties = {"headers": headers, "delivery_mode": 2 if message.persistent else 1}
    if message.priority >= 0:
        properties["priority"] = message.priority
    if sections.ttl >= 0:
        properties["expiration"] = str(sections.ttl)
    _add_id(properties, "message_id", fields.message_id)
    _add_id(properties, "correlation_id", fields.correlation_id)
    if fields.user_id is not None:
        properties["user_id"] = fields.user_id.decode("utf-8", "surrogateescape")
    if fields.reply_to is not None:
        reply_to = str(fields.reply_to)
        queue = reply_to[len(QUEUES) :] if reply_to.startswith(QUEUES) else "/"
        properties["reply_to"] = unquote(queue, errors="surrogateescape") if "/" not in queue else reply_to
    if fields.content_type is not None:
        properties["content_type"] = str(fields.content_type)
    if fields.content_encoding is not None:
        properties["content_encoding"] = str(fields.content_encoding)
    if fields.group_id is not None:
        properties["app_id"] = fields.group_id
    if fields.creation_time is not None and fields.creation_time >= 0:
        properties["timestamp"] = int(fields.creation_time) // 1000
    for header, field, kind in FIELDS:
        value = getattr(fields, field)
        if value is not None:
            headers[header] = plain(kind(value))
    for annotation, name in ANNOTATED.items():
        value = headers.get(annotation)
        if isinstance(value, str):
            properties[name] = value
            del headers[annotation]
    return properties


def _group_of(message: Message) -> str:
    """Return the property `group-id`, which is `app-id` of 0-9-1 for consumers."""
    try:
        group = _fields_of(_sections_of(message)).group_id
    except DecodeError:
        return ""
    return "" if group is None else str(group)


def _add_id(properties: ContentProperties, name: str, value: Value) -> None:
    """Add an id as a string, and its original type as a header."""
    if value is None:
        return
    kind = ""
    if isinstance(value, UUID):
        kind = "uuid"
    elif isinstance(value, ULong):
        kind = "ulong"
        value = int(value)
    elif isinstance(value, bytes):
        kind = "binary"
        value = value.hex()
    properties[name] = str(value)
    if kind:
        properties["headers"][PREFIX + name.replace("_", "-") + "-type"] = kind


class Amqp10HeaderReader(HeaderReader):
    """Reader of the properties of messages published over 1.0."""

    def headers(self, message: Message) -> FieldTable:
        try:
            return _headers_of(_sections_of(message))
        except DecodeError:
            return {}

    def header(self, message: Message, name: bytes) -> str:
        try:
            sections = _sections_of(message)
            begin, end = sections.application_properties, sections.application_properties_end
            return find_application_text(sections.data, begin, end, name) if begin >= 0 else ""
        except DecodeError:
            return ""

    def as_basic(self, message: Message) -> tuple[FieldTable, Body]:
        body, kind = _body_of(message)
        properties = _with_kind(_properties_of(message), kind)
        if not properties["headers"]:
            del properties["headers"]
        return properties, body

    def property(self, message: Message, name: str) -> str:
        if name == GROUP_ID:
            return _group_of(message)
        value = _properties_of(message).get(name.replace("-", "_"))
        return "" if value is None else str(value)

    def expiration(self, message: Message) -> str | None:
        if message.expires_at <= AT_ONCE and not message.expires_at:
            return None
        value: str | None = _properties_of(message).get("expiration")
        return value

    def content(self, message: Message) -> Body:
        return content_of(message)

    def times(self, message: Message, now: int, step: int) -> tuple[int, int]:
        try:
            sections = _sections_of(message)
            due = delivery_time(sections, now, step) if sections.message_annotations >= 0 else 0
        except (DecodeError, LinkRefused):
            return 0, 0
        return expiry_of(sections, now, step), due
