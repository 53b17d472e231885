"""Decodes Protobuf bodies into Arrow columns, a batch at a time, with a descriptor set (protoc --include_imports -o)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from leveret.segments.typed_json import Document
from leveret.spark.pipeline.decoding.arrow_functions import ArrowFunction, arrow_function
from leveret.spark.pipeline.decoding.body_format import BodyFormat, read_schema_file, with_decoded
from leveret.spark.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message
    from pyspark.sql import DataFrame

    from leveret.spark.pipeline.model import Decode

# Arrow types by the field types of google.protobuf.descriptor.FieldDescriptor.
_ARROW_TYPES = {
    1: "float64",
    2: "float32",
    3: "int64",
    4: "decimal",
    5: "int32",
    6: "decimal",
    7: "int64",
    8: "bool_",
    9: "string",
    12: "binary",
    13: "int64",
    14: "string",
    15: "int32",
    16: "int64",
    17: "int32",
    18: "int64",
}
_MESSAGES = (10, 11)
_ENUM = 14
_UINT64 = (4, 6)


def protobuf_decoder(descriptor_set: bytes, message: str) -> ArrowFunction:
    """Return a UDF of a body column that yields struct<value, error>. PipelineError if the type does not exist."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_type

    try:
        descriptor = _message_class(descriptor_set, message).DESCRIPTOR
        value = _struct(descriptor, ())
    except KeyError:
        raise PipelineError(
            f'decode.message {message!r} is not in the descriptor set; expected a full name, as in "shop.Order"'
        ) from None
    except (ValueError, TypeError) as error:
        raise PipelineError(
            f"decode.schema_file is not a descriptor set: {error}; create one with "
            "protoc --include_imports --descriptor_set_out"
        ) from None
    result = pa.struct([("value", value), ("error", pa.string())])

    def decode(bodies: pa.Array) -> pa.StructArray:
        from leveret.spark.pipeline.decoding.rows import decode_rows

        return decode_rows(bodies, reader(descriptor_set, message), result)

    return arrow_function(decode, from_arrow_type(result))


@lru_cache(16)
def reader(descriptor_set: bytes, message: str) -> Callable[[bytes], Document]:
    """Return a decoder from a body to a dict, which raises protobuf's exceptions."""
    kind = _message_class(descriptor_set, message)
    convert = _converter(kind.DESCRIPTOR)

    def read(body: bytes) -> Document:
        return convert(kind.FromString(body))

    return read


def _message_class(descriptor_set: bytes, message: str) -> type[Message]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    found: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    return found


def _struct(descriptor: Descriptor, above: tuple[str, ...]) -> pa.DataType:
    import pyarrow as pa

    if descriptor.full_name in above:
        raise PipelineError(f"decode.message: {descriptor.full_name} is recursive, which no column type supports")
    above = (*above, descriptor.full_name)
    return pa.struct([pa.field(field.name, _type(field, above)) for field in descriptor.fields])


def _type(field: FieldDescriptor, above: tuple[str, ...]) -> pa.DataType:
    import pyarrow as pa

    if _is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return pa.map_(_single(key, above), _single(value, above))
    single = _single(field, above)
    return pa.list_(single) if field.is_repeated else single


def _single(field: FieldDescriptor, above: tuple[str, ...]) -> pa.DataType:
    import pyarrow as pa

    if field.type in _MESSAGES:
        if field.message_type.full_name == "google.protobuf.Timestamp":
            return pa.timestamp("us", "UTC")
        return _struct(field.message_type, above)
    if field.type in _UINT64:
        return pa.decimal128(20, 0)
    return getattr(pa, _ARROW_TYPES[field.type])()


def _is_map(field: FieldDescriptor) -> bool:
    return field.type == 11 and bool(field.message_type.GetOptions().map_entry)


def _converter(descriptor: Descriptor) -> Callable[[Message], dict[str, Document]]:
    fields = [(field.name, field.has_presence, _value(field)) for field in descriptor.fields]

    def convert(message: Message) -> dict[str, Document]:
        return {
            name: None if presence and not message.HasField(name) else value(getattr(message, name))
            for name, presence, value in fields
        }

    return convert


def _value(field: FieldDescriptor) -> Callable[[Document], Document]:
    if _is_map(field):
        value = _element(field.message_type.fields_by_name["value"])
        return lambda entries: [(key, value(entries[key])) for key in entries]
    one = _element(field)
    if field.is_repeated:
        return lambda items: [one(item) for item in items]
    return one


def _element(field: FieldDescriptor) -> Callable[[Document], Document]:
    if field.type in _MESSAGES:
        if field.message_type.full_name == "google.protobuf.Timestamp":
            from datetime import UTC

            return lambda stamp: stamp.ToDatetime(UTC)
        return _converter(field.message_type)
    if field.type == _ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if field.type in _UINT64:
        from decimal import Decimal

        return Decimal
    return lambda value: value


def _decoded(df: DataFrame, decode: Decode) -> DataFrame:
    return with_decoded(df, decode, protobuf_decoder(read_schema_file(decode), decode.message or ""))


def _check(decode: Decode) -> Iterator[tuple[str, str]]:
    if decode.schema is not None:
        yield "schema", "is only for JSON and Avro; Protobuf needs schema_file, a descriptor set"
    if decode.message is None:
        yield "message", 'is not set; expected the full name of the message type, as in "shop.Order"'


FORMAT = BodyFormat("protobuf", _decoded, check=_check, module="google.protobuf", requirement="protobuf>=5")
