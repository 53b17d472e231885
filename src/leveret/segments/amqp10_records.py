"""Records from the header of an AMQP 1.0 message: the sections around its body."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final
from uuid import UUID

from leveret.segments import typed_json
from leveret.segments.amqp10_properties import fields_of
from leveret.segments.folding import footer_start_of
from leveret.segments.records import (
    DEATHS,
    DELIVERY_COUNT,
    EMPTY_RECORD,
    OFFSET,
    Record,
    micros_of_ms,
    with_raw_timestamp,
)
from leveret.segments.texts import clean, text_of, to_json
from leveret.segments.typed_json import Json, JsonObject
from leveret.wire.amqp0.values import FieldTable, FieldValue, RawTimestamp
from leveret.wire.amqp10 import message
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.sections import Sections, split
from leveret.wire.amqp10.values import Checked, Map, Timestamp, Value

# Annotations that the broker writes for each delivery.
_DELIVERY_ANNOTATIONS: Final = frozenset((OFFSET, "x-exchange", "x-routing-key"))
_DEATHS: Final = "x-opt-deaths"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
# The last second whose milliseconds fit an AMQP 1.0 timestamp.
_LAST_SECOND: Final = ((1 << 63) - 1) // 1000
_DECODE_ERRORS: Final = (DecodeError, IndexError, ValueError, OverflowError)


def parse(header: bytes) -> Record:
    """Parse the header; EMPTY_RECORD if it is not a sequence of sections. A malformed section yields nulls."""
    try:
        sections = split(header)
    except _DECODE_ERRORS:
        return EMPTY_RECORD
    application = _map(
        message.application_properties, sections, sections.application_properties, sections.application_properties_end
    )
    annotations = _map(
        message.message_annotations, sections, sections.message_annotations, sections.message_annotations_end
    )
    deaths = None
    count: Json = sections.delivery_count
    if annotations:
        deaths = annotations.get(_DEATHS)
        count = annotations.get(DELIVERY_COUNT, count)
        if not _DELIVERY_ANNOTATIONS.isdisjoint(annotations):
            annotations = {name: value for name, value in annotations.items() if name not in _DELIVERY_ANNOTATIONS}
    (
        message_id,
        user_id,
        to,
        subject,
        reply_to,
        correlation_id,
        content_type,
        content_encoding,
        expiry,
        creation,
        group_id,
        group_sequence,
        reply_to_group_id,
    ) = fields_of(sections)
    message_id_text, message_id_type = _identifier(message_id)
    correlation_id_text, correlation_id_type = _identifier(correlation_id)
    amqp10 = (
        message_id_type,
        correlation_id_type,
        _text(to),
        _text(group_id),
        group_sequence,
        _text(reply_to_group_id),
        micros_of_ms(expiry),
        _json(
            _map(message.delivery_annotations, sections, sections.delivery_annotations, sections.delivery_annotations_end)
        ),
        _json(annotations),
        _json(application),
        _json(_map(message.footer, sections, sections.footer, sections.footer_end)),
    )
    created = micros_of_ms(creation)
    return (
        _text(content_type),
        _text(content_encoding),
        sections.durable,
        sections.priority if sections.priority >= 0 else None,
        correlation_id_text,
        _text(reply_to),
        sections.ttl if sections.ttl >= 0 else None,
        message_id_text,
        created,
        _text(subject),
        user_id.decode("utf-8", "replace") if user_id is not None else None,
        None,
        with_raw_timestamp(application, creation) if created is None and isinstance(creation, int) else application,
        amqp10,
        {DEATHS: deaths, DELIVERY_COUNT: count},
        footer_start_of(sections),
    )


# Publishers often repeat sections, so decoded maps are cached by their bytes.
_cache: dict[bytes, JsonObject | None] = {}
_MAX_CACHED: Final = 1024
_MAX_CACHED_BYTES: Final = 1024


def _map(decode: Callable[[Sections], Checked], sections: Sections, begin: int, end: int) -> JsonObject | None:
    """Decode the map of a section to JSON data with text keys; None if it is absent or malformed.

    The result is cached and must not be modified.
    """
    if begin < 0:
        return None
    encoded = sections.data[begin:end]
    if encoded in _cache:
        return _cache[encoded]
    try:
        value = decode(sections)
    except (*_DECODE_ERRORS, AttributeError, TypeError):
        value = None
    found: JsonObject | None = None
    if value is not None:
        pairs = value.pairs if isinstance(value, Map) else value.items()
        found = {text_of(typed_json.from_value(key)) or "": typed_json.from_value(item) for key, item in pairs}
    if len(encoded) <= _MAX_CACHED_BYTES:
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        _cache[encoded] = found
    return found


def _json(data: JsonObject | None) -> str | None:
    return to_json(data) if data else None


def _text(value: Value) -> str | None:
    return clean(str(value)) if isinstance(value, str) else None


def _identifier(value: Checked) -> tuple[str | None, str | None]:
    """Return a message identifier as text, and the name of its type."""
    if value is None:
        return None, None
    if isinstance(value, str):
        return clean(str(value)), "string"
    if isinstance(value, UUID):
        return str(value), "uuid"
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii"), "binary"
    return str(int(value)), "ulong"


def with_overlay_annotations(annotations: str | None, changes: FieldTable) -> str | None:
    """Return message annotations (JSON) with the headers of an overlay applied."""
    table: JsonObject = typed_json.parse(annotations) if annotations else {}
    for name, value in sorted(changes.items()):
        if name == DELIVERY_COUNT:
            continue  # it is in the header section
        annotation = _DEATHS if name == DEATHS else clean(name if name.startswith("x-") else f"x-opt-{name}")
        if value is None:
            table.pop(annotation, None)
        else:
            table[annotation] = overlay_to_json(value)
    return _json(table)


def overlay_to_json(value: FieldValue) -> Json:
    """Return a header of an overlay as JSON data, typed as 1.0 consumers receive it."""
    if isinstance(value, datetime):
        return typed_json.from_value(Timestamp((value - _EPOCH) // _MILLISECOND))
    if isinstance(value, RawTimestamp):
        return typed_json.from_value(Timestamp(min(int(value), _LAST_SECOND) * 1000))
    if isinstance(value, str):
        try:
            value.encode("utf-8")
            return value
        except UnicodeEncodeError:
            return typed_json.from_value(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [overlay_to_json(item) for item in value]
    if isinstance(value, dict):
        return {clean(str(key)): overlay_to_json(value[key]) for key in sorted(value)}
    return typed_json.from_value(value)
