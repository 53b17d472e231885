"""Payloads of the real serializers of Protobuf and Avro, and the schemas by which they are decoded."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, timestamp_pb2

from leveret.management.decoding.jobs import Row

_FIELD = descriptor_pb2.FieldDescriptorProto
_OPTIONAL, _REPEATED = _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED

# An order with a status, a time, items, attributes, and the order that it replaces.
AVRO: Any = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "paid", "type": "boolean"},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW", "SENT"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "raw", "type": "bytes"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "notes", "type": {"type": "map", "values": ["null", "double"]}},
        {"name": "replaces", "type": ["null", "shop.Order"], "default": None},
    ],
}


def _files() -> descriptor_pb2.FileDescriptorSet:
    file = descriptor_pb2.FileDescriptorProto(
        name="shop/order.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    status = file.enum_type.add(name="Status")
    for number, name in enumerate(("NEW", "SENT")):
        status.value.add(name=name, number=number)
    order = file.message_type.add(name="Order")
    item = order.nested_type.add(name="Item")
    item.field.add(name="sku", number=1, type=_FIELD.TYPE_STRING, label=_OPTIONAL)
    notes = order.nested_type.add(name="NotesEntry")
    notes.field.add(name="key", number=1, type=_FIELD.TYPE_STRING, label=_OPTIONAL)
    notes.field.add(name="value", number=2, type=_FIELD.TYPE_DOUBLE, label=_OPTIONAL)
    notes.options.map_entry = True
    for number, (name, kind, label, type_name) in enumerate(
        (
            ("id", _FIELD.TYPE_INT64, _OPTIONAL, ""),
            ("customer", _FIELD.TYPE_STRING, _OPTIONAL, ""),
            ("paid", _FIELD.TYPE_BOOL, _OPTIONAL, ""),
            ("status", _FIELD.TYPE_ENUM, _OPTIONAL, ".shop.Status"),
            ("at", _FIELD.TYPE_MESSAGE, _OPTIONAL, ".google.protobuf.Timestamp"),
            ("raw", _FIELD.TYPE_BYTES, _OPTIONAL, ""),
            ("items", _FIELD.TYPE_MESSAGE, _REPEATED, ".shop.Order.Item"),
            ("notes", _FIELD.TYPE_MESSAGE, _REPEATED, ".shop.Order.NotesEntry"),
            ("replaces", _FIELD.TYPE_MESSAGE, _OPTIONAL, ".shop.Order"),
            ("sizes", _FIELD.TYPE_SINT32, _REPEATED, ""),
        ),
        start=1,
    ):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    found = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(found.file.add())
    found.file.append(file)
    return found


def descriptor_set(*, with_imports: bool = True) -> str:
    """Return the descriptors of `shop.Order` in base64, with the files that theirs imports or without."""
    files = _files()
    if not with_imports:
        del files.file[0]
    return base64.b64encode(files.SerializeToString()).decode()


def protobuf_order(**fields: Any) -> bytes:
    """Return a `shop.Order` as Protobuf's library encodes it. The fields are those of its form in JSON."""
    pool = descriptor_pool.DescriptorPool()
    for file in _files().file:
        pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    encoded: bytes = json_format.ParseDict(fields, kind()).SerializeToString()
    return encoded


def avro_payload(schema: Any, value: Any) -> bytes:
    """Return a value as fastavro encodes it, without a header."""
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return target.getvalue()


def confluent(schema_id: int, body: bytes, indexes: bytes = b"") -> bytes:
    """Return a payload with the header of a serializer for a schema registry."""
    return b"\x00" + schema_id.to_bytes(4, "big") + indexes + body


def texts(rows: Iterable[Row]) -> list[tuple[int, str, str, str]]:
    """Return the depth, the name, the type and the value of each row."""
    return [(row.depth, row.name, row.type, row.value) for row in rows]
