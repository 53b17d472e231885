"""Bodies are decoded to typed columns, or rejected with a reason, row by row."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import DataFrame, SparkSession

from leveret.spark.pipeline.decoding.avro import reader
from leveret.spark.pipeline.decoding.body_format import ERROR
from leveret.spark.pipeline.decoding.decode import decoded, decoded_rows, rejected_rows
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.model import Decode
from tests.spark.pipeline.support import messages

AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "PAID"]}},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Item",
                    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
                },
            },
        },
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}
ORDER = {
    "id": 7,
    "note": None,
    "at": datetime(2026, 11, 22, 10, tzinfo=UTC),
    "price": Decimal("12.50"),
    "kind": "PAID",
    "items": [{"sku": "a", "count": 2}],
    "tags": {"x": "y"},
}


def datum(value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), value)
    return stream.getvalue()


def reasons(df: DataFrame, decode: Decode, columns: list[str]) -> list[str]:
    return [row[ERROR] for row in rejected_rows(df, decode, columns).orderBy("offset").collect()]


def container() -> bytes:
    stream = io.BytesIO()
    fastavro.writer(stream, fastavro.parse_schema(AVRO), [ORDER])
    return stream.getvalue()


def fingerprint() -> bytes:
    return bytes.fromhex(fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(AVRO), "CRC-64-AVRO"))


@pytest.mark.parametrize("framing", ["datum", "container", "single-object", "confluent"])
def test_avro_framings(framing: str) -> None:
    bodies = {
        "datum": datum(ORDER),
        "container": container(),
        "single-object": b"\xc3\x01" + fingerprint() + datum(ORDER),
        "confluent": b"\x00\x00\x00\x00\x2a" + datum(ORDER),
    }
    for other, body in bodies.items():
        if other == framing:
            assert reader(json.dumps(AVRO), framing)(body) == ORDER
        elif framing != "datum":
            with pytest.raises(ValueError):
                reader(json.dumps(AVRO), framing)(body)


def test_avro(spark: SparkSession, tmp_path: Path) -> None:
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(AVRO))
    decode = Decode(format="avro", schema_file=str(schema), on_error="drop")
    body = datum(ORDER)
    source = messages(spark, [body, b"", body[:-3], body, body + b"\x00"])
    df = decoded(source, decode)
    rows = decoded_rows(df).orderBy("offset").collect()
    assert [row["offset"] for row in rows] == [0, 3]
    data = rows[0]["data"].asDict(recursive=True)
    assert data.pop("at") == datetime(2026, 11, 22, 10)
    assert data == {name: value for name, value in ORDER.items() if name != "at"}
    found = reasons(df, decode, source.columns)
    assert len(found) == 3
    assert found[-1] == "ValueError: 1 bytes follow the datum"


def descriptors() -> bytes:
    """Return a descriptor set like protoc's."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NEW", number=0)
    kind.value.add(name="PAID", number=1)
    item = file.message_type.add(name="Item")
    item.field.add(name="sku", number=1, type=9, label=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="big", number=2, type=4, label=1)
    order.field.add(name="kind", number=3, type=14, type_name=".shop.Kind", label=1)
    order.field.add(name="items", number=4, type=11, type_name=".shop.Item", label=3)
    order.field.add(name="first", number=5, type=11, type_name=".shop.Item", label=1)
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=5, label=1)
    order.field.add(name="tags", number=6, type=11, type_name=".shop.Order.TagsEntry", label=3)
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="child", number=1, type=11, type_name=".shop.Tree", label=1)
    return bytes(files.SerializeToString())


def test_protobuf(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "shop.desc"
    path.write_bytes(descriptors())
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(
        id=-5, big=2**64 - 1, kind=1, items=[{"sku": "a"}, {"sku": "b"}], tags={"x": 3}
    )
    decode = Decode(format="protobuf", schema_file=str(path), message="shop.Order", on_error="drop")
    source = messages(spark, [order.SerializeToString(), b"\xff\xff"])
    df = decoded(source, decode)
    (row,) = decoded_rows(df).collect()
    assert row["data"].asDict(recursive=True) == {
        "id": -5,
        "big": Decimal(2**64 - 1),
        "kind": "PAID",
        "items": [{"sku": "a"}, {"sku": "b"}],
        "first": None,
        "tags": {"x": 3},
    }
    assert reasons(df, decode, source.columns)[0].startswith("DecodeError")


@pytest.mark.parametrize(
    ("decode", "expected"),
    [
        (Decode(format="json", schema="id BIGNT", on_error="drop"), r"decode.schema is not a list of columns: .*BIGNT"),
        (Decode(format="json", schema="id BIGINT", column="body", on_error="drop"), "decode.column is 'body'"),
        (Decode(format="avro", schema='{"type": "reco"}', on_error="drop"), "decode.schema is not an Avro schema"),
        (Decode(format="avro", schema='"long"', on_error="drop"), "not an Avro record"),
        (
            Decode(format="avro", schema_file="/nowhere/x.avsc", on_error="drop"),
            "/nowhere/x.avsc cannot be read: No such file",
        ),
    ],
    ids=["ddl", "column", "avro", "no-record", "no-file"],
)
def test_invalid_schemas(spark: SparkSession, decode: Decode, expected: str) -> None:
    with pytest.raises(PipelineError, match=expected):
        decoded(messages(spark, []), decode)


@pytest.mark.parametrize(
    ("message", "expected"),
    [("shop.Nothing", "'shop.Nothing' is not in the descriptor set"), ("shop.Tree", "shop.Tree is recursive")],
)
def test_invalid_message_types(spark: SparkSession, tmp_path: Path, message: str, expected: str) -> None:
    path = tmp_path / "shop.desc"
    path.write_bytes(descriptors())
    with pytest.raises(PipelineError, match=expected):
        decoded(messages(spark, []), Decode(format="protobuf", schema_file=str(path), message=message, on_error="drop"))


def test_a_compressed_body_is_not_decoded_as_json(spark: SparkSession) -> None:
    decode = Decode(format="json", schema="id BIGINT", on_error="drop")
    source = messages(spark, [b'{"id": 1}'], content_encoding="gzip")
    assert reasons(decoded(source, decode), decode, source.columns) == ["content-encoding gzip is not supported"]
