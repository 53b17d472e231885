"""Conversion of message properties to sections of AMQP 1.0 and back (docs/conversion.md)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

from leveret.client.engine.amqp10.addresses import Addresses
from leveret.client.errors import InvalidMessage
from leveret.client.properties import Properties, PropertyValue
from leveret.wire.amqp0.values import Arguments, FieldTable, FieldValue
from leveret.wire.amqp10 import message
from leveret.wire.amqp10.encode import encode_value
from leveret.wire.amqp10.errors import DecodeError, EncodeError
from leveret.wire.amqp10.messaging import Properties as Fields
from leveret.wire.amqp10.sections import Sections
from leveret.wire.amqp10.values import (
    Array,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Map,
    Pairs,
    Symbol,
    Table,
    Timestamp,
    ULong,
)
from leveret.wire.amqp10.values import Value as WireValue

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_TIMESTAMP_END: Final = 253402300800000
_TYPE: Final = "x-basic-type"
_CLUSTER: Final = "x-opt-cluster-id"
_DEATHS: Final = "x-opt-deaths"
_NESTED: Final = "x-opt-header-"
# Annotations that deliveries expose as attributes.
_ATTRIBUTES: Final = ("x-exchange", "x-routing-key")


class Additions(NamedTuple):
    """Values that replace those of the same name: message annotations, application properties, and properties."""

    annotations: Mapping[str, WireValue]
    application: Mapping[str, WireValue]
    fields: Mapping[str, Any]


NO_ADDITIONS: Final = Additions({}, {}, {})


def encode_sections(properties: Properties, addresses: Addresses, additions: Additions = NO_ADDITIONS) -> bytes:
    """Return header, annotations, properties and application properties. Raises `InvalidMessage`."""
    try:
        return _encode(properties, addresses, additions)
    except (EncodeError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InvalidMessage(f"properties: {error}") from error


def _encode(properties: Properties, addresses: Addresses, additions: Additions) -> bytes:
    priority = properties.priority
    if priority is not None and not (isinstance(priority, int) and 0 <= priority <= 255):
        raise EncodeError(f"priority: {priority!r}; expected an integer from 0 to 255")
    encoded = message.encode_header(
        properties.delivery_mode == 2, -1 if priority is None else priority, _ttl(properties.expiration), False, 0
    )
    annotations: dict[str, WireValue] = {}
    application: Arguments = {}
    if properties.type is not None:
        annotations[_TYPE] = _text("type", properties.type)
    if properties.cluster_id is not None:
        annotations[_CLUSTER] = _text("cluster_id", properties.cluster_id)
    for name, value in (properties.headers or {}).items():
        _text("header name", name)
        if name.startswith("x-"):
            annotations[_DEATHS if name == "x-death" else name] = typed(value)
        elif isinstance(value, (list, tuple, dict)):
            annotations[_NESTED + name] = typed(list(value) if isinstance(value, tuple) else value)
        else:
            application[name] = typed(value)
    annotations.update(additions.annotations)
    application.update(additions.application)
    if annotations:
        encoded += message.encode_message_annotations(annotations)
    fields = {**_fields(properties, addresses), **additions.fields}
    if fields:
        encoded += message.encode_properties(Fields(**fields))
    if application:
        encoded += message.encode_application_properties(application)
    return encoded


def _fields(properties: Properties, addresses: Addresses) -> Arguments:
    fields: Arguments = {}
    for name in ("message_id", "correlation_id", "content_type", "content_encoding"):
        value = getattr(properties, name)
        if value is not None:
            fields[name] = _text(name, value)
    if properties.app_id is not None:
        fields["group_id"] = _text("app_id", properties.app_id)
    if properties.user_id is not None:
        fields["user_id"] = _text("user_id", properties.user_id).encode("utf-8", "surrogateescape")
    if properties.reply_to is not None:
        reply_to = properties.reply_to
        fields["reply_to"] = reply_to if "/" in reply_to else addresses.of_queue(_text("reply_to", reply_to))
    timestamp = properties.timestamp
    if timestamp is not None:
        fields["creation_time"] = typed(timestamp) if isinstance(timestamp, datetime) else int(timestamp) * 1000
    return fields


def _text(name: str, value: PropertyValue) -> str:
    if not isinstance(value, str):
        raise EncodeError(f"{name}: {value!r:.100}; expected a str")
    return value


def _ttl(expiration: PropertyValue) -> int:
    """Return milliseconds, -1 for none."""
    if expiration is None:
        return -1
    if isinstance(expiration, timedelta):
        expiration = expiration / _MILLISECOND
    ttl = round(float(expiration)) if isinstance(expiration, str) else round(expiration)
    if not 0 <= ttl < 1 << 32:
        raise EncodeError(f"expiration: {expiration!r}; expected milliseconds from 0 to 2^32 - 1")
    return ttl


def typed(value: FieldValue) -> WireValue:
    """Convert a header value to AMQP 1.0."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return Timestamp((moment - _EPOCH) // _MILLISECOND)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    encode_value(value)
    return value


def decode_sections(sections: Sections) -> Properties:
    """Return the properties of a received message. Raises `InvalidMessage` if it is malformed."""
    try:
        fields = message.properties(sections) or Fields()
        annotations = _pairs(message.message_annotations(sections))
        application = _pairs(message.application_properties(sections))
    except DecodeError as error:
        raise InvalidMessage(f"received malformed properties: {error}") from error
    properties = Properties(delivery_mode=2 if sections.durable else 1)
    headers: FieldTable = {}
    for key, value in annotations:
        name = str(key)
        if name == _TYPE and isinstance(value, str):
            properties.type = str(value)
        elif name == _CLUSTER and isinstance(value, str):
            properties.cluster_id = str(value)
        elif name == _DEATHS:
            headers["x-death"] = plain(value)
        elif name.startswith(_NESTED):
            headers[name[len(_NESTED) :]] = plain(value)
        elif name.startswith("x-") and name not in _ATTRIBUTES:
            headers[name] = plain(value)
    headers.update((str(key), plain(value)) for key, value in application)
    if sections.delivery_count:
        headers["x-delivery-count"] = sections.delivery_count
    properties.headers = headers or None
    if sections.priority >= 0:
        properties.priority = sections.priority
    if sections.ttl >= 0:
        properties.expiration = sections.ttl
    properties.message_id = id_text(fields.message_id)
    properties.correlation_id = id_text(fields.correlation_id)
    properties.content_type = fields.content_type
    properties.content_encoding = fields.content_encoding
    properties.app_id = fields.group_id
    if fields.user_id is not None:
        properties.user_id = fields.user_id.decode("utf-8", "surrogateescape")
    if fields.reply_to is not None:
        properties.reply_to = str(Addresses("v2").queue_at(str(fields.reply_to)))
    if fields.creation_time is not None:
        moment = plain(Timestamp(fields.creation_time))
        if isinstance(moment, datetime):
            properties.timestamp = moment.replace(microsecond=0)
        elif isinstance(moment, int):
            properties.timestamp = moment // 1000
    return properties


def id_text(value: WireValue) -> str | None:
    """Convert a message id to text."""
    if value is None:
        return None
    return value.hex() if isinstance(value, bytes) else str(int(value)) if isinstance(value, ULong) else str(value)


def _pairs(value: Table | None) -> Pairs:
    if value is None:
        return []
    return value.pairs if isinstance(value, Map) else list(value.items())


def plain(value: WireValue) -> FieldValue:
    """Convert a value of AMQP 1.0 to a header value."""
    if isinstance(value, Timestamp):
        return _EPOCH + timedelta(milliseconds=int(value)) if 0 <= value < _TIMESTAMP_END else int(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (str, Symbol)):
        return str(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Map):
        return {str(key): plain(item) for key, item in value.pairs}
    if isinstance(value, Array):
        return [plain(item) for item in value.items]
    if isinstance(value, Described):
        return plain(value.value)
    if isinstance(value, (Decimal32, Decimal64, Decimal128)):
        return value.decimal()
    return value if isinstance(value, bytes) else str(value)
