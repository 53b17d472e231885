"""Encoding and decoding of `amqp10.Message`."""

from __future__ import annotations

from leveret.client.amqp10 import Message, Sequence, Value
from leveret.client.errors import InvalidMessage
from leveret.wire.amqp10 import message as sections_of
from leveret.wire.amqp10.descriptors import AMQP_SEQUENCE, AMQP_VALUE
from leveret.wire.amqp10.errors import DecodeError, EncodeError
from leveret.wire.amqp10.message import PROPERTY_FIELDS
from leveret.wire.amqp10.messaging import Properties
from leveret.wire.amqp10.sections import Sections
from leveret.wire.amqp10.values import Checked, ULong
from leveret.wire.amqp10.values import Value as WireValue


def encode_message(message: Message) -> bytes:
    """Return the encoded sections. Raises `InvalidMessage` if the message cannot be encoded."""
    try:
        return _encode(message)
    except (EncodeError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InvalidMessage(str(error)) from error


def _encode(message: Message) -> bytes:
    priority, ttl = message.priority, message.ttl
    if priority is not None and not 0 <= priority <= 255:
        raise EncodeError(f"priority: {priority}; expected 0 to 255")
    if ttl is not None and not 0 <= ttl < 1 << 32:
        raise EncodeError(f"ttl: {ttl}; expected milliseconds from 0 to 2^32 - 1")
    encoded = sections_of.encode_header(
        message.durable,
        -1 if priority is None else priority,
        -1 if ttl is None else ttl,
        message.first_acquirer,
        message.delivery_count,
    )
    if message.delivery_annotations:
        encoded += sections_of.encode_delivery_annotations(dict(message.delivery_annotations))
    if message.annotations:
        encoded += sections_of.encode_message_annotations(dict(message.annotations))
    fields = {name: getattr(message, name) for name in PROPERTY_FIELDS}
    if any(value is not None for value in fields.values()):
        for name in ("message_id", "correlation_id"):
            if type(fields[name]) is int:
                fields[name] = ULong(fields[name])
        encoded += sections_of.encode_properties(Properties(**fields))
    if message.application_properties:
        encoded += sections_of.encode_application_properties(dict(message.application_properties))
    encoded += encode_body(message.body)
    if message.footer:
        encoded += sections_of.encode_footer(dict(message.footer))
    return encoded


def encode_body(body: Checked) -> bytes:
    """Return the encoded body sections."""
    if isinstance(body, list) and body:
        if all(isinstance(part, Sequence) for part in body):
            return b"".join(sections_of.encode_sequence(list(part.values)) for part in body)
        return b"".join(sections_of.encode_data(_to_bytes(part)) for part in body)
    if isinstance(body, Value):
        return sections_of.encode_body_value(body.value)
    if isinstance(body, Sequence):
        return sections_of.encode_sequence(list(body.values))
    return sections_of.encode_data(_to_bytes(body))


def _to_bytes(part: WireValue) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, (bytes, bytearray, memoryview)):
        return bytes(part)
    raise EncodeError(f"body: expected bytes, text, amqp10.Value or amqp10.Sequence, not {type(part).__name__}")


def decode_message(sections: Sections) -> Message:
    """Return the decoded message. Raises `InvalidMessage` if it is malformed."""
    try:
        fields = sections_of.properties(sections)
        found = Message(
            body=decode_body(sections),
            durable=sections.durable,
            priority=sections.priority if sections.priority >= 0 else None,
            ttl=sections.ttl if sections.ttl >= 0 else None,
            first_acquirer=sections.first_acquirer,
            delivery_count=sections.delivery_count,
            delivery_annotations=sections_of.delivery_annotations(sections),
            annotations=sections_of.message_annotations(sections),
            application_properties=sections_of.application_properties(sections),
            footer=sections_of.footer(sections),
        )
    except DecodeError as error:
        raise InvalidMessage(f"received a malformed message: {error}") from error
    if fields is not None:
        for name in PROPERTY_FIELDS:
            setattr(found, name, getattr(fields, name))
    return found


def decode_body(sections: Sections) -> Checked:
    """Return a body as in `Message.body`: bytes, a `Value`, a `Sequence`, or a list of several. Raises DecodeError."""
    values = sections_of.body(sections)
    if sections.body_kind == AMQP_VALUE:
        return Value(values[0])
    if sections.body_kind == AMQP_SEQUENCE:
        values = [Sequence(value) for value in values]
    return values[0] if len(values) == 1 else values or b""
