"""Records of the sections around the body of a message of AMQP 1.0."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from leveret.segments import typed_json
from leveret.segments.records import DEATHS, DELIVERY_COUNT, NOTHING, OFFSET, Record, micros_of_ms
from leveret.segments.texts import clean, text_of, to_json
from leveret.wire.amqp0.values import RawTimestamp
from leveret.wire.amqp1 import message
from leveret.wire.amqp1.errors import DecodeError
from leveret.wire.amqp1.sections import Sections, split
from leveret.wire.amqp1.values import Map, Timestamp, ULong

# Annotations that the broker writes anew for each delivery.
_OF_DELIVERY: Final = frozenset((OFFSET, "x-exchange", "x-routing-key"))
_DEATHS: Final = "x-opt-deaths"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_WRONG: Final = (DecodeError, IndexError, ValueError, OverflowError)


def parse(header: bytes) -> Record:
    """The record; NOTHING where the octets are no sections. A section that is malformed gives nulls."""
    try:
        sections = split(header)
    except _WRONG:
        return NOTHING
    application = _map(message.application_properties, sections)
    annotations = _map(message.message_annotations, sections)
    fields = _properties(sections)
    marks: dict[str, Any] | None = None
    if annotations:
        deaths = annotations.get(_DEATHS)
        count = annotations.get(DELIVERY_COUNT)
        marks = {DEATHS: deaths, DELIVERY_COUNT: count}
        for name in _OF_DELIVERY:
            annotations.pop(name, None)
    if marks is None or marks[DELIVERY_COUNT] is None:
        marks = {**(marks or {}), DELIVERY_COUNT: sections.delivery_count}
    message_id, message_id_type = _identifier(fields.message_id) if fields is not None else (None, None)
    correlation_id, correlation_id_type = _identifier(fields.correlation_id) if fields is not None else (None, None)
    amqp10 = (
        message_id_type, correlation_id_type, _text(fields, "to"), _text(fields, "group_id"),
        getattr(fields, "group_sequence", None), _text(fields, "reply_to_group_id"),
        micros_of_ms(getattr(fields, "absolute_expiry_time", None)), _json(_map(message.delivery_annotations, sections)),
        _json(annotations), _json(application), _json(_map(message.footer, sections)),
    )
    user_id = fields.user_id.decode("utf-8", "replace") if fields is not None and fields.user_id is not None else None
    return (
        _text(fields, "content_type"), _text(fields, "content_encoding"), sections.durable,
        sections.priority if sections.priority >= 0 else None, correlation_id, _text(fields, "reply_to"),
        sections.ttl if sections.ttl >= 0 else None, message_id,
        micros_of_ms(getattr(fields, "creation_time", None)), _text(fields, "subject"), user_id, None,
        application, amqp10, marks,
    )


def _properties(sections: Sections) -> Any:
    try:
        return message.properties(sections)
    except _WRONG:
        return None


def _map(decode: Any, sections: Sections) -> dict[str, Any] | None:
    """A section's map as JSON data with its keys as text; None where there is none, or it is malformed."""
    try:
        value = decode(sections)
    except (*_WRONG, AttributeError, TypeError):
        return None
    if value is None:
        return None
    pairs = value.pairs if isinstance(value, Map) else value.items()
    return {text_of(typed_json.from_value(key)) or "": typed_json.from_value(item) for key, item in pairs}


def _json(data: dict[str, Any] | None) -> str | None:
    return to_json(data) if data else None


def _text(fields: Any, name: str) -> str | None:
    value = getattr(fields, name, None)
    return clean(str(value)) if isinstance(value, str) else None


def _identifier(value: Any) -> tuple[str | None, str | None]:
    """A message identifier as text, and its type."""
    if value is None:
        return None, None
    if isinstance(value, UUID):
        return str(value), "uuid"
    if isinstance(value, ULong):
        return str(int(value)), "ulong"
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii"), "binary"
    return clean(str(value)), "string"


def annotated(annotations: str | None, changes: dict[str, Any]) -> str | None:
    """The message annotations, as JSON, with headers that the broker has added as it delivers them."""
    table: dict[str, Any] = typed_json.parse(annotations) if annotations else {}
    for name, value in changes.items():
        if name == DELIVERY_COUNT:
            continue  # the header section says it
        annotation = _DEATHS if name == DEATHS else clean(name if name.startswith("x-") else f"x-opt-{name}")
        if value is None:
            table.pop(annotation, None)
        else:
            table[annotation] = added(value)
    return _json(table)


def added(value: Any) -> Any:
    """A header of an overlay as JSON data, typed as consumers of 1.0 get it."""
    if isinstance(value, datetime):
        return typed_json.from_value(Timestamp((value - _EPOCH) // _MILLISECOND))
    if isinstance(value, RawTimestamp):
        return typed_json.from_value(Timestamp(int(value) * 1000))
    if isinstance(value, str):
        try:
            value.encode("utf-8")
            return value
        except UnicodeEncodeError:
            return typed_json.from_value(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [added(item) for item in value]
    if isinstance(value, dict):
        return {clean(str(key)): added(item) for key, item in value.items()}
    return typed_json.from_value(value)
