"""Conversion of 0-9-1 messages for 1.0 consumers."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from urllib.parse import quote

from leveret.broker.bodies import Body, whole
from leveret.broker.message import FORMAT_CLASS_AMQP09, Entry, Message, Overlay
from leveret.protocols.convert.annotations import PREFIX, annotation_of, encode_annotations, symbol
from leveret.protocols.convert.names import (
    AMQP_BODY,
    AMQP_ENCODED,
    FIELDS,
    ID_TYPES,
    NESTED,
    QUEUES,
    STRING_BODY,
)
from leveret.protocols.convert.offsets import with_stream_offset
from leveret.protocols.convert.origins import EXCHANGE, ROUTING_KEY
from leveret.protocols.convert.usual_amqp10 import DIFFERING, usual_sections
from leveret.protocols.convert.values import is_simple, text_of, typed
from leveret.wire.amqp0.classes import to_basic
from leveret.wire.amqp0.errors import WireError
from leveret.wire.amqp0.properties import decode_header
from leveret.wire.amqp0.values import Arguments, ContentProperties, FieldTable
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.errors import EncodeError
from leveret.wire.amqp10.messaging import Properties
from leveret.wire.amqp10.values import Pairs, Symbol, Timestamp

_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"
_VALUE: Final = b"\x00\x53\x77"
_DATA_8: Final = b"\x00\x53\x75\xa0"
_DATA_32: Final = b"\x00\x53\x75\xb0"
TYPE: Final = "x-basic-type"
LOST: Final = "x-opt-headers-lost"
CLUSTER: Final = "x-opt-cluster-id"
# Offset of the properties in a content header, after class, weight and body size.
_PROPERTIES_AT: Final = 12
_MAX_CACHED: Final = 1024
# Maximum number of headers to convert; more would take too long.
MAX_HEADERS: Final = 8192

_cache: dict[tuple[bytes, bytes], bytes] = {}


def head_of(entry: Entry) -> bytes:
    """Return the sections between header and body, and the start of the body's section."""
    message = entry.message
    overlay = entry.overlay
    marked = _marked_sections(message, overlay)
    marks = marked[:1]
    sections = marked[1:]
    if overlay is not None and overlay.shows_offset:
        sections = with_stream_offset(sections, entry.seq - 1)
    if marks == _ENCODED:
        return sections
    if marks == _STRING:
        return sections + _string_head(message)
    size = message.size
    if size < 256:
        return sections + _DATA_8 + bytes((size,))
    return sections + _DATA_32 + size.to_bytes(4, "big")


def sections_of(message: Message, overlay: Overlay | None) -> bytes:
    """Return the sections between header and body."""
    return _marked_sections(message, overlay)[1:]


def _marked_sections(message: Message, overlay: Overlay | None) -> bytes:
    """Return the kind of the body as one byte, then the sections between header and body."""
    address = message.address
    if overlay is not None:
        if overlay.address is not None:
            address = overlay.address
        if overlay.headers:
            properties = _properties(message)
            headers = dict(properties.get("headers") or {})
            for name, value in overlay.headers.items():
                if value is None:
                    headers.pop(name, None)
                else:
                    headers[name] = value
            properties["headers"] = headers
            return _sections(address, properties)
    return _plain_sections(message, address)


def _plain_sections(message: Message, address: bytes) -> bytes:
    header = _basic(message)
    if (header[_PROPERTIES_AT] << 8 | header[_PROPERTIES_AT + 1]) & DIFFERING:
        usual = usual_sections(header, address, _sections)
        if usual is not None:
            return usual
    # Publishers repeat the same properties.
    key = (address, header[_PROPERTIES_AT:])
    found = _cache.get(key)
    if found is None:
        found = _sections(address, _properties(message))
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        if len(found) < 4096:
            _cache[key] = found
    return found


# Kinds of bodies, as the first byte of cached sections.
_DATA: Final = b"d"
_ENCODED: Final = b"e"
_STRING: Final = b"s"


def _string_head(message: Message) -> bytes:
    size = message.size
    if size < 256:
        return _VALUE + b"\xa1" + bytes((size,))
    return _VALUE + b"\xb1" + size.to_bytes(4, "big")


def body_of(message: Message) -> Body:
    """Return the bytes that follow the result of `head_of`."""
    body = message.body
    return whole(body) if isinstance(body, list) else body


def _basic(message: Message) -> bytes:
    return message.header if message.format != FORMAT_CLASS_AMQP09 else to_basic(message.header)


def _properties(message: Message) -> ContentProperties:
    try:
        return dict(decode_header(_basic(message))[2])
    except WireError:
        return {}


def _sections(address: bytes, properties: ContentProperties) -> bytes:
    """Return the kind of the body as one byte, then annotations, properties and application properties.

    If the headers cannot be converted (too many, or tables nested too deeply), an annotation replaces them.
    """
    try:
        return _encoded(address, properties)
    except EncodeError:
        kept = {name: value for name, value in properties.items() if name not in ("content_type", "content_encoding")}
        kept["headers"] = {LOST: True}
        return _encoded(address, kept)


def _encoded(address: bytes, properties: ContentProperties) -> bytes:
    headers: FieldTable = dict(properties.get("headers") or {})
    if len(headers) > MAX_HEADERS:
        raise EncodeError(f"a message has {len(headers)} headers; expected at most {MAX_HEADERS}")
    kind = _DATA
    basic_type = properties.get("type")
    if basic_type == AMQP_ENCODED:
        kind = _ENCODED
        basic_type = None
    elif headers.get(AMQP_BODY) == STRING_BODY:
        kind = _STRING
    headers.pop(AMQP_BODY, None)
    fields, restored = _fields(properties, headers)
    length = address[0]
    annotations: Pairs = [
        (Symbol(EXCHANGE), text_of(address[1 : 1 + length].decode("utf-8", "surrogateescape"))),
        (Symbol(ROUTING_KEY), text_of(address[2 + length :].decode("utf-8", "surrogateescape"))),
    ]
    if basic_type is not None:
        annotations.append((Symbol(TYPE), text_of(basic_type)))
    if properties.get("cluster_id") is not None:
        annotations.append((Symbol(CLUSTER), text_of(properties["cluster_id"])))
    application: Pairs = []
    for name, value in headers.items():
        if name in restored:
            continue
        if name.startswith("x-"):
            if name != "x-delivery-count":
                annotations.append((symbol(annotation_of(name)), typed(value)))
        elif is_simple(value):
            application.append((text_of(name), typed(value)))
        else:
            annotations.append((symbol(NESTED + text_of(name)), typed(value)))
    data = kind + encode_annotations(annotations)
    if fields:
        data += encode_composite(Properties(**fields))
    if application:
        data += _APPLICATION_PROPERTIES + encode_pairs(application)
    return data


def _fields(properties: ContentProperties, headers: FieldTable) -> tuple[Arguments, set[str]]:
    """Return the fields of the properties section, and the headers from which they were restored."""
    fields: Arguments = {}
    restored: set[str] = set()
    for name, field in (("message_id", "message_id"), ("correlation_id", "correlation_id")):
        value = properties.get(name)
        if value is not None:
            mark = PREFIX + name.replace("_", "-") + "-type"
            restore = ID_TYPES.get(str(headers.get(mark)))
            fields[field] = text_of(value)
            if restore is not None:
                try:
                    fields[field] = restore(value)
                except ValueError:
                    continue
                restored.add(mark)
    user_id = properties.get("user_id")
    if user_id is not None:
        fields["user_id"] = user_id.encode("utf-8", "surrogateescape")
    reply_to = properties.get("reply_to")
    if reply_to is not None:
        fields["reply_to"] = text_of(reply_to) if "/" in reply_to else QUEUES + _quoted(reply_to)
    for name in ("content_type", "content_encoding"):
        value = properties.get(name)
        if value is not None and value.isascii():
            fields[name] = value  # a symbol
    if properties.get("app_id") is not None:
        fields["group_id"] = text_of(properties["app_id"])
    timestamp = properties.get("timestamp")
    if timestamp is not None:
        seconds = timestamp.timestamp() if isinstance(timestamp, datetime) else timestamp
        fields["creation_time"] = Timestamp(min(int(seconds), (1 << 63) // 1000 - 1) * 1000)
    for header, field, kind in FIELDS:
        value = headers.get(header)
        if value is None:
            continue
        value = typed(value)
        if isinstance(value, kind) and not isinstance(value, bool):
            fields[field] = value
            restored.add(header)
    return fields, restored


def _quoted(name: str) -> str:
    return quote(name, safe="", errors="surrogateescape")
