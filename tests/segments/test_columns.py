"""Any message of either protocol converts to columns, which restore it byte for byte."""

from __future__ import annotations

import io
import json
import struct
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leveret.broker.message import FORMAT_AMQP0, FORMAT_AMQP1, Overlay, make_address
from leveret.segments import schema
from leveret.segments.amqp0_records import headers_at, strip_offset
from leveret.segments.columns import Rows, make_batch, make_columns
from leveret.segments.folding import fold, footer_start, unfold
from leveret.segments.reader import rebuild
from leveret.storage.records import encode_overlay
from leveret.wire.amqp0.commands import Publish
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.offsets import with_stream_offset
from leveret.wire.amqp0.properties import encode_header, scan
from leveret.wire.amqp10 import message as amqp10
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.messaging import Header, Properties
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.specs import TYPES
from leveret.wire.amqp10.values import Symbol, Timestamp, ULong
from tests.storage.test_records import VALUES as STORED_VALUES
from tests.support.examples import examples
from tests.wire.amqp0.strategies import tables
from tests.wire.amqp10.strategies import composites, scalars, values

ADDRESS = make_address("exchange", "key")
# Short strings of any bytes, including invalid UTF-8.
TEXTS = st.binary(max_size=20) | st.just(b"x" * 255) | st.text(max_size=9).map(lambda text: text.encode("utf-8", "replace"))
PROPERTIES0 = st.fixed_dictionaries(
    {},
    optional={
        "content_type": TEXTS,
        "content_encoding": TEXTS,
        "headers": tables,
        "delivery_mode": st.integers(0, 255),
        "priority": st.integers(0, 255),
        "correlation_id": TEXTS,
        "reply_to": TEXTS,
        "expiration": st.sampled_from([b"0", b"1000", b"-1", b"9" * 30, b"soon", "١".encode()]) | TEXTS,
        "message_id": TEXTS,
        "timestamp": st.sampled_from([0, 1_700_000_000, 253402300799, 253402300800, 2**63, 2**64 - 1]),
        "type": TEXTS,
        "user_id": TEXTS,
        "app_id": TEXTS,
        "cluster_id": TEXTS,
    },
)
HEADERS0 = PROPERTIES0.map(lambda properties: encode_header(60, 5, properties))
FIELDS = st.binary(max_size=60).map(
    lambda encoded: struct.pack(">HHQH", 60, 0, 5, 0x2000) + struct.pack(">I", len(encoded)) + encoded
)


def annotated(descriptor: int) -> st.SearchStrategy[bytes]:
    keys = st.text(st.characters(max_codepoint=127), max_size=9).map(Symbol) | st.integers(0, 2**64 - 1).map(ULong)
    known = ("x-opt-deaths", "x-delivery-count", "x-exchange", "x-stream-offset")
    keys |= st.sampled_from([Symbol(name) for name in known])
    return st.lists(st.tuples(keys, values), max_size=3, unique_by=lambda pair: repr(pair[0])).map(
        lambda pairs: bytes((0, 0x53, descriptor)) + encode_pairs([*pairs])
    )


def applied(pairs: list[tuple[str, Any]]) -> bytes:
    return b"\x00\x53\x74" + encode_pairs([*pairs])


BODIES1 = st.one_of(
    st.just(b""),
    st.lists(st.binary(max_size=9) | st.just(b"y" * 300), min_size=1, max_size=3).map(
        lambda parts: b"".join(amqp10.encode_data(part) for part in parts)
    ),
    values.map(amqp10.encode_body_value),
    st.lists(st.lists(values, max_size=3), min_size=1, max_size=2).map(
        lambda parts: b"".join(amqp10.encode_sequence(part) for part in parts)
    ),
    # Longer encodings than necessary, and symbolic descriptors.
    st.sampled_from(
        [
            b"\x00\x53\x75\xb0\x00\x00\x00\x02ab",
            b"\x00\xa3\x10amqp:data:binary\xa0\x02ab",
            b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x00",
            b"\x00\x53\x77\xb1\x00\x00\x00\x02ab",
            b"\x00\x53\x77\xa1\x00",
            b"\x00\x53\x77\x00\xa3\x01t\xa1\x02ab",
        ]
    ),
)
OPTIONAL = [
    annotated(0x71),
    annotated(0x72),
    composites(TYPES.composites["properties"]).map(encode_composite),
    st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), scalars),
        max_size=4,
        unique_by=lambda pair: pair[0],
    ).map(applied),
]
HEADERS1 = st.tuples(
    st.just(b"")
    | st.builds(
        lambda ttl, durable: encode_composite(Header(durable=durable, ttl=ttl)), st.integers(0, 2**32 - 1), st.booleans()
    ),
    *(st.just(b"") | section for section in OPTIONAL),
    st.just(b"") | annotated(0x78),
).map(b"".join)


def encoded_overlay(headers: dict[str, Any]) -> bytes:
    return encode_overlay(Overlay(ADDRESS, headers, True))


OVERLAYS = st.just(b"") | st.dictionaries(
    st.sampled_from(["x-death", "x-delivery-count", "x-first-death-queue", "CC", "odd \udcff"]),
    STORED_VALUES
    | st.lists(
        st.dictionaries(st.sampled_from(["queue", "count", "time", "routing-keys", "reason"]), STORED_VALUES), max_size=2
    ),
    max_size=3,
).map(encoded_overlay)
MESSAGES = st.one_of(
    st.tuples(st.just(FORMAT_AMQP0), HEADERS0 | FIELDS, st.binary(max_size=9), OVERLAYS),
    st.tuples(st.just(FORMAT_AMQP1), HEADERS1, BODIES1, OVERLAYS),
)
GARBAGE = st.tuples(
    st.sampled_from([FORMAT_AMQP0, FORMAT_AMQP1]), st.binary(min_size=14, max_size=60), st.binary(max_size=20), st.just(b"")
)


def rows_of(messages: list[tuple[int, bytes, bytes, bytes]], address: bytes = ADDRESS) -> Rows:
    count = len(messages)
    return Rows(
        list(range(count)),
        [1000] * count,
        [item[0] for item in messages],
        [address] * count,
        [item[1] for item in messages],
        [item[2] for item in messages],
        [item[3] for item in messages],
    )


def through_parquet(rows: Rows) -> pa.RecordBatch:
    made = make_columns(rows)
    table = pa.Table.from_arrays([made[name] for name in schema.FILE_COLUMNS], schema=schema.FILE_SCHEMA)
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    return pq.read_table(file).combine_chunks().to_batches()[0]


def check(messages: list[tuple[int, bytes, bytes, bytes]]) -> pa.RecordBatch:
    rows = rows_of(messages)
    found = rebuild(through_parquet(rows))
    assert [(item.format, item.address, item.header, item.body, item.overlay or b"") for item in found] == [
        (number, ADDRESS, header, body, overlay) for number, header, body, overlay in messages
    ]
    batch = make_batch(rows)
    batch.validate(full=True)
    assert batch.schema == schema.TABLE_SCHEMA
    return batch


@examples(100)
@given(st.lists(MESSAGES, min_size=1, max_size=6))
@example(
    [(FORMAT_AMQP1, b"", b"", encode_overlay(Overlay(None, {"x-delivery-count": True, "x-death": [{"count": True}]})))]
)
def test_messages_are_restored_byte_for_byte(messages: list[tuple[int, bytes, bytes, bytes]]) -> None:
    check(messages)


@examples(100)
@given(st.lists(GARBAGE, min_size=1, max_size=6))
@example([(FORMAT_AMQP0, struct.pack(">HHQH", 60, 0, 5, 0xFFFF) + b"\xff" * 40, b"", b"")])
@example([(FORMAT_AMQP1, b"\x00\x53\x75\xa0\x01a" + b"\x00" * 9, b"\x00\x53\x75\xa0\x05", b"")])
def test_malformed_messages_are_restored_too(messages: list[tuple[int, bytes, bytes, bytes]]) -> None:
    check(messages)


def test_columns_of_a_malformed_header_are_null() -> None:
    bad = encode_header(60, 5, {"content_type": "a/b", "headers": {"a": 1}, "message_id": "m"})[:-1]
    [row] = check([(FORMAT_AMQP0, bad, b"hello", b"")]).to_pylist()
    assert row["body"] == b"hello" and row["content_type"] is None and row["headers"] is None and row["durable"] is None
    table = struct.pack(">HHQH", 60, 0, 5, 0x2080) + b"\x00\x00\x00\x03\x01aX" + b"\x02id"
    [row] = check([(FORMAT_AMQP0, table, b"", b"")]).to_pylist()
    assert row["headers"] is None and row["headers_json"] is None and row["message_id"] == "id"
    [row] = check([(FORMAT_AMQP1, b"\x00\x53\x73\xc0\x03\x01\xa1\x05", b"", b"")]).to_pylist()
    assert row["protocol"] == "1.0" and row["message_id"] is None and row["amqp10"]["to"] is None


@given(HEADERS1, BODIES1)
def test_folding(header: bytes, body: bytes) -> None:
    raw, content, kind = fold(header, footer_start(header), body)
    at = footer_start(header)
    assert unfold(raw, content) == (header, at if at < len(header) else -1, body)
    if kind == "data":
        assert content == b"".join(amqp10.body(split(body)))


def test_damaged_raw_headers_are_value_errors() -> None:
    for raw, body in [
        (b"\x00\x53\x75\xa0\x05", b"four"),
        (b"\x00\x53\x75\xa0\x03", b"four"),
        (b"\x00\x53", b""),
        (b"\x00\x53\x76\x45", b""),
        (b"abc", b""),
    ]:
        with pytest.raises(ValueError, match="raw header"):
            unfold(raw, body)


# Every type, by name: its encoding, and the text and JSON it becomes.
TYPES0: dict[str, tuple[bytes, str | None, Any]] = {
    "boolean": (b"t\x01", "true", True),
    "byte": (b"b\xff", "-1", {"$byte": -1}),
    "ubyte": (b"B\xff", "255", {"$ubyte": 255}),
    "short": (b"s\xff\xfe", "-2", {"$short": -2}),
    "ushort": (b"u\xff\xfe", "65534", {"$ushort": 65534}),
    "int": (b"I\xff\xff\xff\xfe", "-2", -2),
    "uint": (b"i\xff\xff\xff\xfe", "4294967294", {"$uint": 4294967294}),
    "long": (b"l\x7f" + b"\xff" * 7, "9223372036854775807", 9223372036854775807),
    "float": (b"f\x3f\xc0\x00\x00", "1.5", {"$float": 1.5}),
    "double": (b"d" + struct.pack(">d", 0.1), "0.1", 0.1),
    "nan": (b"d" + struct.pack(">d", float("nan")), "nan", {"$double": "nan"}),
    "decimal": (b"D\x02" + struct.pack(">i", -12345), "-123.45", {"$decimal": "-123.45"}),
    "timestamp": (b"T" + struct.pack(">Q", 1_700_000_000), "2023-11-14T22:13:20Z", {"$timestamp": "2023-11-14T22:13:20Z"}),
    "far timestamp": (b"T" + b"\xff" * 8, "18446744073709551615000", {"$timestamp": 18446744073709551615000}),
    "void": (b"V", None, None),
    "string": (b"S\x00\x00\x00\x02\xc3\xbc", "ü", "ü"),
    "bytes as string": (b"S\x00\x00\x00\x02a\xff", "a�", {"$string": "Yf8="}),
    "byte array": (b"x\x00\x00\x00\x02\x00\xff", "AP8=", {"$binary": "AP8="}),
    "array": (b"A\x00\x00\x00\x04t\x01b\x05", '[true,{"$byte":5}]', [True, {"$byte": 5}]),
    "table": (b"F\x00\x00\x00\x04\x01at\x01", '{"a":true}', {"a": True}),
    "table of a mark": (b"F\x00\x00\x00\x05\x02$at\x01", '{"$table":{"$a":true}}', {"$table": {"$a": True}}),
}


@pytest.mark.parametrize("name", list(TYPES0))
def test_types_of_0_9_1(name: str) -> None:
    encoded, text, data = TYPES0[name]
    table = b"\x01h" + encoded
    header = struct.pack(">HHQH", 60, 0, 0, 0x2000) + struct.pack(">I", len(table)) + table
    [row] = check([(FORMAT_AMQP0, header, b"", b"")]).to_pylist()
    assert row["headers"] == [("h", text)]
    assert json.loads(row["headers_json"]) == {"h": data}


def test_properties_of_0_9_1() -> None:
    header = encode_header(
        60,
        3,
        {
            "content_type": "a/b",
            "content_encoding": "gzip",
            "delivery_mode": 2,
            "priority": 7,
            "correlation_id": "c",
            "reply_to": "r",
            "expiration": "500",
            "message_id": b"m\xff",
            "timestamp": 1_700_000_000,
            "type": "t",
            "user_id": "u",
            "app_id": "a",
        },
    )
    [row] = make_batch(rows_of([(FORMAT_AMQP0, header, b"abc", b"")]), queue="q", partition=3).to_pylist()
    assert {name: row[name] for name in row if name not in ("append_time", "timestamp")} == {
        "queue": "q",
        "partition": 3,
        "offset": 0,
        "protocol": "0-9-1",
        "exchange": "exchange",
        "routing_key": "key",
        "redelivered": False,
        "delivery_count": 0,
        "content_type": "a/b",
        "content_encoding": "gzip",
        "durable": True,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "ttl_ms": 500,
        "message_id": "m�",
        "type": "t",
        "user_id": "u",
        "app_id": "a",
        "headers": None,
        "headers_json": None,
        "x_death": None,
        "amqp10": None,
        "body": b"abc",
    }
    assert row["timestamp"].isoformat() == "2023-11-14T22:13:20+00:00"
    assert row["append_time"].isoformat() == "1970-01-01T00:00:01+00:00"


MILLISECONDS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("message", "headers"),
    [
        (
            (FORMAT_AMQP0, encode_header(60, 0, {"timestamp": MILLISECONDS}), b"", b""),
            {"x-raw-timestamp": MILLISECONDS},
        ),
        (
            (FORMAT_AMQP0, encode_header(60, 0, {"timestamp": 2**64 - 1, "headers": {"a": 1}}), b"", b""),
            {"x-raw-timestamp": 2**64 - 1, "a": 1},
        ),
        (
            (
                FORMAT_AMQP0,
                encode_header(60, 0, {"timestamp": MILLISECONDS, "headers": {"a": 1, "x-first-death-queue": "p"}}),
                b"",
                encode_overlay(Overlay(None, {"x-first-death-queue": "q"})),
            ),
            {"x-raw-timestamp": MILLISECONDS, "a": 1, "x-first-death-queue": "q"},
        ),
        # Of the publisher.
        (
            (FORMAT_AMQP0, encode_header(60, 0, {"timestamp": MILLISECONDS, "headers": {"x-raw-timestamp": 1}}), b"", b""),
            {"x-raw-timestamp": 1},
        ),
        (
            (
                FORMAT_AMQP1,
                amqp10.encode_properties(Properties(creation_time=Timestamp(MILLISECONDS * 1000))) + applied([("a", "b")]),
                b"",
                b"",
            ),
            {"x-raw-timestamp": MILLISECONDS * 1000, "a": "b"},
        ),
    ],
)
def test_a_timestamp_out_of_range_is_kept_as_a_header(
    message: tuple[int, bytes, bytes, bytes], headers: dict[str, Any]
) -> None:
    """Such as milliseconds over 0-9-1, whose timestamps are in seconds."""
    [row] = check([message]).to_pylist()
    assert row["timestamp"] is None
    assert json.loads(row["headers_json"]) == headers
    assert dict(row["headers"]) == {name: str(value) for name, value in headers.items()}
    assert "x-raw-timestamp" not in ((row["amqp10"] or {}).get("application_properties") or "")


def test_properties_of_1_0() -> None:
    properties = amqp10.encode_properties(
        Properties(
            message_id=UUID(int=5),
            user_id=b"u",
            to="there",
            subject="s",
            reply_to="back",
            correlation_id=b"\x00\xff",
            content_type="a/b",
            content_encoding="gzip",
            absolute_expiry_time=Timestamp(2**62),
            creation_time=Timestamp(1500),
            group_id="g",
            group_sequence=2**32 - 1,
            reply_to_group_id="rg",
        )
    )
    header = (
        amqp10.encode_header(True, 7, 500, False, 2)
        + amqp10.encode_delivery_annotations({"x-d": 1})
        + amqp10.encode_message_annotations({"x-opt-m": ULong(2)})
        + properties
        + amqp10.encode_application_properties({"k": "v"})
        + amqp10.encode_footer({"x-f": None})
    )
    [row] = check([(FORMAT_AMQP1, header, amqp10.encode_body_value("text"), b"")]).to_pylist()
    assert row["amqp10"] == {
        "message_id_type": "uuid",
        "correlation_id_type": "binary",
        "to": "there",
        "group_id": "g",
        "group_sequence": 2**32 - 1,
        "reply_to_group_id": "rg",
        "absolute_expiry_time": None,
        "delivery_annotations": '{"x-d":1}',
        "message_annotations": '{"x-opt-m":{"$ulong":2}}',
        "application_properties": '{"k":"v"}',
        "footer": '{"x-f":null}',
        "body_type": "string",
    }
    assert (row["message_id"], row["correlation_id"]) == ("00000000-0000-0000-0000-000000000005", "AP8=")
    assert (row["user_id"], row["type"], row["reply_to"], row["content_type"]) == ("u", "s", "back", "a/b")
    assert (row["durable"], row["priority"], row["ttl_ms"], row["delivery_count"]) == (True, 7, 500, 2)
    assert row["timestamp"].isoformat() == "1970-01-01T00:00:01.500000+00:00"
    assert row["headers"] == [("k", "v")] and row["headers_json"] == '{"k":"v"}'
    assert row["body"] == b"text"


@pytest.mark.parametrize(
    ("body", "content", "kind"),
    [
        (b"", b"", None),
        (amqp10.encode_data(b"ab") + amqp10.encode_data(b"c" * 300), b"ab" + b"c" * 300, "data"),
        (amqp10.encode_body_value({"a": 1}), amqp10.encode_body_value({"a": 1}), "value"),
        (amqp10.encode_body_value(b"ab"), b"ab", "binary"),
        (amqp10.encode_body_value("ab"), b"ab", "string"),
        (amqp10.encode_body_value("a" * 300), b"a" * 300, "string"),
        (amqp10.encode_body_value(bytes(0xA1A1)), bytes(0xA1A1), "binary"),
        (
            amqp10.encode_sequence([1]) + amqp10.encode_sequence([2]),
            amqp10.encode_sequence([1]) + amqp10.encode_sequence([2]),
            "sequence",
        ),
    ],
)
def test_bodies_of_1_0(body: bytes, content: bytes, kind: str | None) -> None:
    [row] = check([(FORMAT_AMQP1, b"", body, b"")]).to_pylist()
    assert row["body"] == content and row["amqp10"]["body_type"] == kind


def test_a_huge_table() -> None:
    headers = {f"name {number}": "x" * 100 for number in range(20_000)}
    section = amqp10.encode_application_properties(headers)
    first, second, third = check(
        [
            (FORMAT_AMQP0, encode_header(60, 0, {"headers": headers}), b"", b""),
            (FORMAT_AMQP1, section, b"", b""),
            (FORMAT_AMQP0, encode_header(60, 0, {"headers": {}}), b"", b""),
        ]
    ).to_pylist()
    assert dict(first["headers"]) == dict(second["headers"]) == headers
    assert json.loads(first["headers_json"]) == headers
    assert third["headers"] is None and third["headers_json"] is None


def test_deaths_are_rows() -> None:
    death: dict[str, Any] = {
        "queue": "q",
        "reason": "expired",
        "count": 3,
        "exchange": "",
        "routing-keys": ["a", "b"],
        "time": datetime(2026, 1, 1, tzinfo=UTC),
        "original-expiration": "500",
    }
    row = {
        "queue": "q",
        "reason": "expired",
        "count": 3,
        "exchange": "",
        "routing_keys": ["a", "b"],
        "time": datetime(2026, 1, 1, tzinfo=UTC),
        "original_expiration": "500",
    }
    overlay = encode_overlay(Overlay(make_address("dlx", "dead"), {"x-death": [death], "CC": None}, True))
    header = encode_header(60, 0, {"headers": {"CC": ["x"], "a": "b"}, "expiration": "500"})
    inside = encode_header(60, 0, {"headers": {"x-death": [death]}})
    rows = rows_of(
        [(FORMAT_AMQP0, header, b"", overlay), (FORMAT_AMQP1, b"", b"", overlay), (FORMAT_AMQP0, inside, b"", b"")]
    )
    first, second, third = make_batch(rows).to_pylist()
    assert first["x_death"] == second["x_death"] == third["x_death"] == [row]
    assert (first["exchange"], first["routing_key"], first["ttl_ms"]) == ("dlx", "dead", None)
    assert [name for name, _ in first["headers"]] == ["a", "x-death"]
    assert '"x-opt-deaths"' in second["amqp10"]["message_annotations"]
    assert third["exchange"] == "exchange"


def test_an_address_with_invalid_utf8_is_restored() -> None:
    address = b"\x02e\xff\x02k\xfe"
    rows = rows_of([(FORMAT_AMQP0, encode_header(60, 0, {}), b"", b"")], address)
    assert make_batch(rows).column("exchange").to_pylist() == ["e�"]
    assert rebuild(through_parquet(rows))[0].address == address
    rows = rows_of([(FORMAT_AMQP0, encode_header(60, 0, {}), b"", b"")], make_address("ü" * 100, "ß"))
    assert rebuild(through_parquet(rows))[0].address == make_address("ü" * 100, "ß")
    assert rebuild(through_parquet(rows))[0].overlay is None


@given(PROPERTIES0, st.integers(0, 2**63 - 1))
@example({"headers": {"x-stream-offset": 5, "a": "\x0fx-stream-offsetl12345678"}}, 7)
def test_the_offset_of_a_delivery_is_removed(properties: dict[str, Any], offset: int) -> None:
    header = encode_header(60, 5, properties)
    delivered = with_stream_offset(header, offset)
    assert strip_offset(delivered)[0] == offset
    rows, plain = (rows_of([(FORMAT_AMQP0, encoded, b"", b"")]) for encoded in (strip_offset(delivered)[1], header))
    assert make_batch(rows).equals(make_batch(plain))
    assert make_batch(rows_of([(FORMAT_AMQP0, delivered, b"", b"")])).equals(make_batch(plain))


@given(HEADERS0)
def test_where_the_headers_begin(header: bytes) -> None:
    publish = Publish(1, ADDRESS, 0, header, 0, b"", 0, -1, None, None, -1)
    assert scan(publish, header, RABBITMQ)
    assert headers_at(header) == publish.headers_at


@examples(100)
@given(st.lists(MESSAGES, min_size=1, max_size=5), st.sets(st.sampled_from(schema.COLUMNS), min_size=1))
def test_only_requested_columns_are_built(messages: list[tuple[int, bytes, bytes, bytes]], names: set[str]) -> None:
    rows = rows_of(messages)
    batch = make_batch(rows, names, "q", 2)
    assert batch.schema.names == [name for name in schema.COLUMNS if name in names]
    whole = make_batch(rows, schema.COLUMNS, "q", 2)
    assert batch.equals(whole.select(batch.schema.names))


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(ValueError, match="column 'colour' does not exist"):
        make_batch(rows_of([]), ["colour"])
    assert make_batch(rows_of([])).num_rows == 0


def test_field_ids_never_change() -> None:
    """Readers of the files and Iceberg tables identify columns by these numbers."""
    numbers = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in schema.FILE_SCHEMA}
    assert list(numbers.values()) == list(range(1, 27))
    assert (numbers["offset"], numbers["headers"], numbers["body"], numbers["raw_overlay"]) == (1, 20, 24, 26)
    struct_type = schema.FILE_SCHEMA.field("amqp10").type
    assert {
        struct_type.field(at).name: int(struct_type.field(at).metadata[b"PARQUET:field_id"])
        for at in range(struct_type.num_fields)
    }["body_type"] == 49
    assert [field.name for field in schema.TABLE_SCHEMA if not field.nullable] == ["offset", "body"]
