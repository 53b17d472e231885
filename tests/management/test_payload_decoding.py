"""Payloads of real serializers, and hostile ones, in the process that decodes them."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("fastavro", reason="the extra leveret[payloads] is not installed")
pytest.importorskip("google.protobuf", reason="the extra leveret[payloads] is not installed")

from leveret.management.decoding.jobs import Decoded, Job
from leveret.management.decoding.rows import MAX_ROWS
from leveret.management.http.payload_decoder import PayloadDecoder
from tests.support.payloads import AVRO, avro_payload, confluent, descriptor_set, protobuf_order, texts

AT = "2026-11-25T12:00:00Z"
LIST = json.dumps({"type": "record", "name": "List", "fields": [{"name": "next", "type": ["null", "List"]}]})


def execute(*jobs: Job) -> list[Decoded]:
    async def run() -> list[Decoded]:
        decoder = PayloadDecoder()
        return await asyncio.gather(*[decoder.execute(job) for job in jobs])

    return asyncio.run(run())


def protobuf(payload: bytes, type: str = "shop.Order") -> Job:
    return Job(format="protobuf", schema=descriptor_set(), type=type, payload=payload)


def avro(schema: Any, payload: bytes) -> Job:
    return Job(format="avro", schema=schema if isinstance(schema, str) else json.dumps(schema), payload=payload)


def test_values_of_protobuf_messages() -> None:
    fields = {
        "id": str(2**62),
        "customer": "Zoë",
        "paid": True,
        "status": "SENT",
        "at": AT,
        "raw": base64.b64encode(b"\x00\xff").decode(),
        "items": [{"sku": "a"}, {}],
        "notes": {"weight": 1.5},
        "replaces": {"id": 3},
        "sizes": [-1, 7],
    }
    unknown = b"\xa2\x06\x03abc\xa8\x06\x07"  # fields 100 and 101
    plain, framed = execute(
        protobuf(protobuf_order(**fields) + unknown), protobuf(confluent(7, protobuf_order(id=1), b"\x04\x00\x02"))
    )
    assert plain.error is None and plain.framing.name == ""
    assert texts(plain.rows) == [
        (0, "", "shop.Order", "12 values"),
        (1, "id", "int64", str(2**62)),
        (1, "customer", "string", "Zoë"),
        (1, "paid", "bool", "true"),
        (1, "status", "shop.Status", "SENT (1)"),
        (1, "at", "google.protobuf.Timestamp", AT),
        (2, "seconds", "int64", "1795608000"),
        (1, "raw", "bytes", "00 ff"),
        (1, "items", "repeated shop.Order.Item", "2 values"),
        (2, "0", "shop.Order.Item", "1 value"),
        (3, "sku", "string", "a"),
        (2, "1", "shop.Order.Item", "0 values"),
        (1, "notes", "map of double", "1 value"),
        (2, "weight", "double", "1.5"),
        (1, "replaces", "shop.Order", "1 value"),
        (2, "id", "int64", "3"),
        (1, "sizes", "repeated sint32", "2 values"),
        (2, "0", "sint32", "-1"),
        (2, "1", "sint32", "7"),
        (1, "100", "unknown bytes", "61 62 63"),
        (1, "101", "unknown varint", "7"),
    ]
    assert [row.end for row in plain.rows][:9] == [21, 2, 3, 4, 5, 7, 7, 8, 12]
    assert (framed.framing.name, framed.framing.schema_id, framed.framing.detail) == ("confluent", 7, "0, 1")
    assert texts(framed.rows)[1:] == [(1, "id", "int64", "1")]
    assert plain.types == ["google.protobuf.Timestamp", "shop.Order", "shop.Order.Item"]


def test_values_of_avro_records() -> None:
    order = {
        "id": 7,
        "customer": "Zoë",
        "paid": False,
        "status": "SENT",
        "at": datetime(2026, 11, 25, 12, tzinfo=UTC),
        "total": Decimal("19.99"),
        "raw": b"\x00\xff",
        "tags": ["a"],
        "notes": {"weight": 1.5, "none": None},
        "replaces": None,
    }
    body = avro_payload(AVRO, order)
    plain, framed, single = execute(
        avro(AVRO, body), avro(AVRO, confluent(9, body)), avro(AVRO, b"\xc3\x01" + bytes(range(8)) + body)
    )
    assert texts(plain.rows) == [
        (0, "", "shop.Order", "10 values"),
        (1, "id", "integer", "7"),
        (1, "customer", "string", "Zoë"),
        (1, "paid", "boolean", "false"),
        (1, "status", "string", "SENT"),
        (1, "at", "timestamp", "2026-11-25T12:00:00+00:00"),
        (1, "total", "decimal", "19.99"),
        (1, "raw", "binary", "00 ff"),
        (1, "tags", "array", "1 value"),
        (2, "0", "string", "a"),
        (1, "notes", "object", "2 values"),
        (2, "weight", "number", "1.5"),
        (2, "none", "null", ""),
        (1, "replaces", "null", ""),
    ]
    assert plain.framing.name == "" and framed.rows == single.rows == plain.rows
    assert (framed.framing.schema_id, single.framing.detail) == (9, "0001020304050607")


def test_an_avro_payload_that_begins_like_a_header() -> None:
    numbers = {"type": "array", "items": "long"}
    record = {"type": "record", "name": "R", "fields": [{"name": name, "type": "long"} for name in "abcdef"]}
    empty, zeros = execute(avro(numbers, b"\x00"), avro(record, b"\x00" * 6))
    assert texts(empty.rows) == [(0, "", "array", "0 values")]
    assert (zeros.framing.name, len(zeros.rows)) == ("", 7)


def test_hostile_payloads_end() -> None:
    """A payload that is damaged, nested deeply, or that expands ends in an error or in a limited number of rows."""
    nested = b""
    for _ in range(2000):
        size = len(nested)
        nested = b"\x4a" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + nested
    nulls = b"\xfe\xff\xff\xff\xff\xff\xff\x7f\x00"  # 2^62 items of no bytes
    jobs = {
        "a message that is nested deeply": protobuf(nested),
        "a length behind the end": protobuf(b"\x12\xff\xff\xff\xff\x07a"),
        "groups that are not closed": protobuf(b"\x0b" * 100_000),
        "many empty messages": protobuf(b"\x3a\x00" * 500_000),
        "indexes without an end": protobuf(confluent(1, b"", b"\xff" * 20)),
        "many indexes": protobuf(confluent(1, b"", b"\xfe\x01")),
        "a record that is nested deeply": avro(LIST, b"\x02" * 1_000_000 + b"\x00"),
        "items without bytes": avro({"type": "array", "items": "null"}, nulls),
        "a string behind the end": avro('"string"', nulls),
        "bytes behind the value": avro('"int"', b"\x02\x02"),
        "no bytes": avro('"int"', b""),
        "not UTF-8": avro('"string"', b"\x02\xff"),
        "many items": avro({"type": "array", "items": "int"}, b"\x80\xb5\x18" + b"\x02" * 200_000 + b"\x00"),
    }
    results = dict(zip(jobs, execute(*jobs.values()), strict=True))
    for name in ("many empty messages", "many items"):
        found = results.pop(name)
        assert found.error is None and len(found.rows) == MAX_ROWS + 1, name
    for name, found in results.items():
        assert found.error and found.rows == [], name
    assert "nested too deeply" in str(results["a record that is nested deeply"].error)


def test_deep_values_are_not_shown() -> None:
    [found] = execute(avro(LIST, b"\x02" * 200 + b"\x00"))
    assert found.error is None
    assert texts(found.rows)[-1] == (65, "", "…", "deeper values are not shown")


def test_schemas_that_are_not_valid() -> None:
    def check(format: Any, schema: str, type: str = "") -> Job:
        return Job(format=format, schema=schema, type=type)

    cases = (
        (check("protobuf", "!"), "not a FileDescriptorSet"),
        (check("protobuf", base64.b64encode(b"\xff\xff").decode()), "not a FileDescriptorSet"),
        (check("protobuf", descriptor_set(), "shop.Bill"), "no message type 'shop.Bill'; expected one of"),
        (check("protobuf", descriptor_set(with_imports=False), "shop.Order"), "--include_imports"),
        (check("avro", "{"), "not a valid Avro schema"),
        (check("avro", '{"type": "record"}'), "not a valid Avro schema"),
        (check("avro", '"unknown"'), "not a valid Avro schema"),
        (check("avro", "[" * 50_000), "not a valid Avro schema"),
    )
    for (job, expected), found in zip(cases, execute(*[job for job, _ in cases]), strict=True):
        assert expected in str(found.error), job
    assert execute(check("protobuf", descriptor_set(), "shop.Order"), check("avro", json.dumps(AVRO)))[1].types == [
        "shop.Order"
    ]


def test_payloads_beyond_a_limit_wait_while_others_are_decoded() -> None:
    async def run() -> list[Decoded]:
        decoder = PayloadDecoder()
        job = avro('"int"', b"\x02")
        return await asyncio.gather(*[decoder.execute(job) for _ in range(20)])

    assert [found.error for found in asyncio.run(run())] == [None] * 20
