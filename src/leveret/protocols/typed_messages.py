"""Messages as JSON without loss: content headers and sections of AMQP 1.0, with the types of their values.

The types are those of `leveret.segments.typed_json`. Payloads are not part of the JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from leveret.broker.bodies import StoredBody, size_of, whole
from leveret.broker.message import Entry, Message
from leveret.management.json_values import exact, exact_text
from leveret.protocols.amqp10.errors import LinkRefused
from leveret.protocols.amqp10.messages import check_annotations, sections_of, tail_of
from leveret.protocols.convert.to_amqp0 import MAX_VALUES, content_of
from leveret.segments import typed_json
from leveret.segments.amqp0_records import headers_at
from leveret.segments.typed_json import Json, JsonObject
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.properties import FLAGS_AT, decode_header, encode_header
from leveret.wire.amqp0.table_amqp091 import V0_9_1
from leveret.wire.amqp10 import codes, descriptors, message
from leveret.wire.amqp10.decode import count_values
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.messaging import Properties
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.values import Checked, Map, Pairs, Symbol, Table

# An object of a request, before its values are checked.
Fields: TypeAlias = Mapping[str, Any]

BASIC: Final = 60
# Maximum bytes of a content header, which is sent in one frame.
MAX_HEADER: Final = 128 << 10
_NUMBERS: Final = ("delivery_mode", "priority", "timestamp")
_PROPERTIES: Final = tuple(field.name for field in V0_9_1.classes[BASIC].properties)
_BEFORE_HEADERS: Final = ("content_type", "content_encoding")
_HEADERS_FLAG: Final = 0x20

# Encodings of a payload in a body: the content of data sections, the text of a value, or all sections.
NO_BODY: Final = "none"
DATA: Final = "data"
STRING: Final = "string"
SECTIONS: Final = "sections"
_BODIES: Final = (NO_BODY, DATA, STRING, SECTIONS)
_MAX_BYTE: Final = 255
_MAX_TTL: Final = (1 << 32) - 1
_DECODE_ERRORS: Final = (DecodeError, IndexError, ValueError, OverflowError)

# The sections that are maps: how they are decoded and encoded.
_ANNOTATIONS: Final[dict[str, tuple[Callable[[Any], Checked], Callable[[Table], bytes]]]] = {
    "delivery_annotations": (message.delivery_annotations, message.encode_delivery_annotations),
    "message_annotations": (message.message_annotations, message.encode_message_annotations),
    "footer": (message.footer, message.encode_footer),
}
_SYMBOLS: Final = ("content_type", "content_encoding")
_KEYS: Final = ("body", "header", *_ANNOTATIONS, "properties", "application_properties")
_HEADER_KEYS: Final = ("durable", "priority", "ttl")


# AMQP 0-9-1 and 0-9


def describe_basic(header: bytes) -> JsonObject:
    """Return the properties of a content header, or why they cannot be decoded."""
    try:
        found: JsonObject = {
            name: exact(value) if isinstance(value, str) else int(value)
            for name, value in decode_header(header)[2].items()
            if name != "headers"
        }
        at = headers_at(header)
        if at >= 0:
            end = at + 4 + int.from_bytes(header[at : at + 4], "big")
            found["headers"] = typed_json.from_table(header, at + 4, end)
    except (WireError, IndexError, ValueError) as error:
        return {"malformed": str(error)}
    return {"properties": found}


def encode_basic(properties: Fields, size: int, user: str) -> bytes:
    """Return the content header of a message with a payload of some bytes. Raises `ValueError`."""
    _check_names("property", properties, _PROPERTIES)
    known: dict[str, Any] = {}
    for name, value in properties.items():
        if value is None or name == "headers":
            continue
        if name in _NUMBERS:
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"invalid value of property '{name}'; expected an integer")
            known[name] = value
        else:
            known[name] = exact_text(name, value)
    if known.get("user_id", user) != user:
        del known["user_id"]
    try:
        header = encode_header(BASIC, size, known)
        headers = properties.get("headers")
        if headers is not None:
            at = len(encode_header(BASIC, size, {name: known[name] for name in _BEFORE_HEADERS if name in known}))
            flagged = bytes((header[FLAGS_AT] | _HEADERS_FLAG,))
            header = header[:FLAGS_AT] + flagged + header[FLAGS_AT + 1 : at] + typed_json.to_table(headers) + header[at:]
    except (EncodeError, TypeError, OverflowError) as error:
        raise ValueError(f"invalid properties: {error}") from None
    if len(header) > MAX_HEADER:
        raise ValueError(f"the properties have {len(header)} bytes; expected at most {MAX_HEADER}")
    return header


# AMQP 1.0


class Amqp10Description:
    """The sections of an entry, which are described later."""

    def __init__(self, entry: Entry) -> None:
        overlay = entry.overlay
        self._message = entry.message
        self._sections = sections_of(entry.message, overlay)
        self._has_ttl = overlay is None or not overlay.drop_expiration

    def describe(self) -> JsonObject:
        """Return the sections as JSON, or why they cannot be decoded."""
        try:
            return {"amqp10": self._describe()}
        except _DECODE_ERRORS as error:
            return {"malformed": str(error)}

    def _describe(self) -> JsonObject:
        received = self._message
        own = split(received.header if received.headers_at < 0 else received.header[: received.headers_at])
        sections = split(self._sections)
        header: JsonObject = {"durable": received.persistent}
        if received.priority >= 0:
            header["priority"] = received.priority
        if own.ttl >= 0 and self._has_ttl:
            header["ttl"] = own.ttl
        found: JsonObject = {"body": _kind_of(received), "header": header}
        tail = split(tail_of(received))
        for name, part in (("delivery_annotations", own), ("message_annotations", sections), ("footer", tail)):
            value = _ANNOTATIONS[name][0](part)
            if value is not None:
                found[name] = _annotations(value)
        properties = message.properties(sections)
        if properties is not None:
            found["properties"] = _properties(properties)
        application = message.application_properties(sections)
        if application is not None:
            found["application_properties"] = typed_json.from_pairs(_pairs(application))
        return found


def _kind_of(received: Message) -> str:
    """Return how the payload, as `content_of` returns it, is encoded in the body."""
    body = received.body
    if not received.size:
        return NO_BODY
    if size_of(content_of(received)) == received.size:
        return SECTIONS
    begin = body.read(0, 3) if isinstance(body, StoredBody) else whole(body)
    if begin[:2] == bytes((codes.DESCRIBED, codes.SMALL_ULONG)):
        return STRING if begin[2] == descriptors.AMQP_VALUE else DATA
    return STRING if split(begin).body_kind == descriptors.AMQP_VALUE else DATA


def _pairs(value: Checked) -> Pairs:
    pairs: Pairs = value.pairs if isinstance(value, Map) else list(value.items())
    return pairs


def _annotations(value: Checked) -> Json:
    """Return a map: an object if its keys are symbols."""
    pairs = _pairs(value)
    if all(type(key) is Symbol for key, _ in pairs):
        pairs = [(str(key), item) for key, item in pairs]
    return typed_json.from_pairs(pairs)


def _properties(properties: Properties) -> JsonObject:
    found: JsonObject = {}
    for name in message.PROPERTY_FIELDS:
        value = getattr(properties, name)
        if value is not None:
            found[name] = str(value) if name in _SYMBOLS else typed_json.from_value(value)
    return found


def encode_sections(fields: object, payload: bytes, user: str) -> tuple[bytes, bytes]:
    """Return the sections before the body and those from the body on. Raises `ValueError`."""
    given = _object("amqp10", fields)
    _check_names("section", given, _KEYS)
    kind = given.get("body", DATA)
    if kind not in _BODIES:
        raise ValueError(f"invalid value of 'body'; expected one of {', '.join(_BODIES)}")
    head = _header(_object("header", given.get("header") or {}))
    for name in ("delivery_annotations", "message_annotations"):
        if given.get(name) is not None:
            head += _ANNOTATIONS[name][1](_table(name, given[name]))
    if given.get("properties") is not None:
        head += _encode_properties(_object("properties", given["properties"]), user)
    application = given.get("application_properties")
    if application is not None:
        pairs = _pairs(_table("application_properties", application))
        head += bytes((codes.DESCRIBED, codes.SMALL_ULONG, descriptors.APPLICATION_PROPERTIES)) + encode_pairs(pairs)
    body = _body(kind, payload)
    if given.get("footer") is not None:
        body += _ANNOTATIONS["footer"][1](_table("footer", given["footer"]))
    _check(head, body)
    return head, body


def _check(head: bytes, body: bytes) -> None:
    """Raise `ValueError` for a message that the broker does not accept from a client."""
    try:
        sections = split(head + body)
        check_annotations(sections, False)
        message.application_properties(sections)
    except DecodeError as error:
        raise ValueError(f"invalid sections: {error}") from None
    except LinkRefused as error:
        raise ValueError(f"invalid sections: {error}") from None
    if count_values(head, 0, len(head), MAX_VALUES) > MAX_VALUES:
        raise ValueError(f"the annotations and properties have more than {MAX_VALUES} values, the maximum")


def _header(fields: Fields) -> bytes:
    _check_names("key of 'header'", fields, _HEADER_KEYS)
    durable = fields.get("durable", False)
    if not isinstance(durable, bool):
        raise ValueError("invalid value of 'durable'; expected true or false")
    priority = _number("priority", fields.get("priority"), _MAX_BYTE)
    return message.encode_header(durable, priority, _number("ttl", fields.get("ttl"), _MAX_TTL), False, 0)


def _number(name: str, value: object, highest: int) -> int:
    if value is None:
        return -1
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= highest:
        raise ValueError(f"invalid value of '{name}'; expected an integer from 0 to {highest}")
    return value


def _encode_properties(fields: Fields, user: str) -> bytes:
    _check_names("property", fields, message.PROPERTY_FIELDS)
    values: dict[str, Any] = {name: typed_json.to_value(name, value) for name, value in fields.items() if value is not None}
    if values.get("user_id", user.encode()) != user.encode():
        del values["user_id"]
    properties = Properties()
    for name, value in values.items():
        try:
            setattr(properties, name, value)
        except TypeError as error:  # compiled modules check the type
            raise ValueError(f"{name}: {error}") from None
    try:
        return message.encode_properties(properties)
    except (AttributeError, TypeError, OverflowError) as error:
        raise ValueError(f"invalid properties: {error}") from None


def _body(kind: str, payload: bytes) -> bytes:
    if kind == NO_BODY:
        return b""
    if kind == SECTIONS:
        return payload
    if kind == STRING:
        try:
            return message.encode_body_value(payload.decode())
        except UnicodeDecodeError:
            raise ValueError("the payload is not UTF-8; expected the text of a 'body' that is a string") from None
    return message.encode_data_head(len(payload)) + payload


def _table(name: str, value: Json) -> Checked:
    found = typed_json.to_value(name, value)
    if not isinstance(found, dict | Map):
        raise ValueError(f"invalid value of '{name}'; expected an object")
    return found


def _object(name: str, value: object) -> Fields:
    if not isinstance(value, dict):
        raise ValueError(f"invalid value of '{name}'; expected an object")
    return value


def _check_names(what: str, fields: Fields, known: tuple[str, ...]) -> None:
    unknown = next((name for name in fields if name not in known), None)
    if unknown is not None:
        raise ValueError(f"unknown {what} '{unknown[:80]}'; expected one of {', '.join(known)}")
