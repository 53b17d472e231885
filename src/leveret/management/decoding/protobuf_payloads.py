"""Protobuf payloads, decoded by descriptors without generated code."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.unknown_fields import UnknownFieldSet

from leveret.management.decoding import framing
from leveret.management.decoding.jobs import MAX_TYPES, Decoded, Framing, Job
from leveret.management.decoding.rows import Rows, count, shorten, text_of

# A value of a field. The library has no types for them.
Value: TypeAlias = Any

_TYPES: Final = {
    number: name.removeprefix("TYPE_").lower() for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}
_WIRE_TYPES: Final = ("varint", "fixed64", "bytes", "group", "end of group", "fixed32")
# Messages whose value has a common text.
_WITH_TEXT: Final = (Timestamp.DESCRIPTOR.full_name, Duration.DESCRIPTOR.full_name)


def decode(job: Job) -> Decoded:
    """Execute a job. Raises `ValueError`, and further exceptions of the library."""
    pool, types = _read_schema(job.schema)
    if job.type not in types:
        raise ValueError(f"the descriptors have no message type '{job.type}'; expected one of {', '.join(types[:20])}")
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(job.type))
    if job.payload is None:
        return Decoded(types=types)
    header, body = framing.split(job.payload)
    try:
        # No field has the number 0, so that a message never begins with the byte 0.
        if header.name == "confluent":
            indexes, body = framing.split_indexes(body)
            header.detail = ", ".join(map(str, indexes))
        else:
            header, body = Framing(), job.payload
        message = kind.FromString(body)
    except (DecodeError, ValueError) as error:
        return Decoded(error=str(error), types=types, framing=header)
    rows = Rows()
    _add_message(rows, "", message)
    return Decoded(types=types, rows=rows.end(), framing=header)


def _read_schema(text: str) -> tuple[descriptor_pool.DescriptorPool, list[str]]:
    """Return the descriptors and the names of their message types. Raises `ValueError`."""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError):
        raise ValueError("the schema is not a FileDescriptorSet in base64") from None
    pool = descriptor_pool.DescriptorPool()
    types: list[str] = []
    for file in files.file:
        try:
            added = pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            reason = shorten(str(error))
            raise ValueError(
                f"cannot use the descriptors of '{shorten(file.name)}': {reason}; expected all imported files before"
                " it, as `protoc --include_imports` writes them"
            ) from None
        types += _names(added.message_types_by_name.values())
        if len(types) > MAX_TYPES:
            raise ValueError(f"the descriptors have more than {MAX_TYPES} message types, the maximum")
    return pool, types


def _names(messages: Iterable[Descriptor]) -> Iterator[str]:
    for message in messages:
        if not message.GetOptions().map_entry:
            yield message.full_name
            yield from _names(message.nested_types)


def _add_message(rows: Rows, name: str, message: Message) -> None:
    fields = message.ListFields()
    unknown = UnknownFieldSet(message)
    value = count(len(fields) + len(unknown))
    if message.DESCRIPTOR.full_name in _WITH_TEXT:
        with suppress(ValueError, AttributeError):  # out of range, or another message of that name
            value = message.ToJsonString()
    row = rows.add(name, message.DESCRIPTOR.full_name, value)
    if not fields and not len(unknown):
        return
    with rows.inside(row) as shows:
        if shows:
            for field, inner in fields:
                if rows.is_full:
                    return
                _add_field(rows, field, inner)
            _add_unknown(rows, unknown)


def _add_field(rows: Rows, field: FieldDescriptor, value: Value) -> None:
    name = f"[{field.full_name}]" if field.is_extension else field.name
    if not field.is_repeated:
        _add_value(rows, name, field, value)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        of_values = field.message_type.fields_by_name["value"]
        _add_all(rows, name, f"map of {_type_of(of_values)}", of_values, [(text_of(key), value[key]) for key in value])
    else:
        items = [(str(at), item) for at, item in enumerate(value)]
        _add_all(rows, name, f"repeated {_type_of(field)}", field, items)


def _add_all(rows: Rows, name: str, type: str, field: FieldDescriptor, items: list[tuple[str, Value]]) -> None:
    with rows.inside(rows.add(name, type, count(len(items)))) as shows:
        for key, item in items if shows else ():
            if rows.is_full:
                return
            _add_value(rows, key, field, item)


def _add_value(rows: Rows, name: str, field: FieldDescriptor, value: Value) -> None:
    if field.message_type is not None:
        _add_message(rows, name, value)
    elif field.enum_type is not None:
        found = field.enum_type.values_by_number.get(value)
        rows.add(name, _type_of(field), text_of(value) if found is None else f"{found.name} ({value})")
    else:
        rows.add(name, _type_of(field), text_of(value))


def _type_of(field: FieldDescriptor) -> str:
    described = field.message_type or field.enum_type
    return str(_TYPES[field.type] if described is None else described.full_name)


def _add_unknown(rows: Rows, fields: UnknownFieldSet) -> None:
    for field in fields:
        if rows.is_full:
            return
        type = f"unknown {_WIRE_TYPES[field.wire_type]}"
        if isinstance(field.data, UnknownFieldSet):
            with rows.inside(rows.add(str(field.field_number), type, count(len(field.data)))) as shows:
                if shows:
                    _add_unknown(rows, field.data)
        else:
            rows.add(str(field.field_number), type, text_of(field.data))
