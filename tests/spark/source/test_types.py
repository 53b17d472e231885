"""Every AMQP type of both protocols reaches Spark, from the tail of a stream as well as from its segment files."""

from __future__ import annotations

import base64
import json
import struct
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from leveret import sync
from leveret.client import amqp10
from leveret.segments.typed_json import to_table
from leveret.wire.amqp0.fieldtable import encode_short_string
from tests.spark.source.test_history import seal
from tests.spark.support import declare_stream, read
from tests.support.broker import LeveretProcess
from tests.support.peers.rude import RudePeer
from tests.support.polling import wait_until
from tests.support.requests import ask

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

MOMENT = datetime(2026, 5, 1, 12, 30, 15, tzinfo=UTC)
# Encoded fields and their typed JSON, for all types of RabbitMQ's dialect.
FIELDS: list[tuple[str, bytes, Any]] = [
    ("bool", b"t\x01", True),
    ("byte", b"b\xff", {"$byte": -1}),
    ("ubyte", b"B\xff", {"$ubyte": 255}),
    ("short", b"s\xff\xfe", {"$short": -2}),
    ("ushort", b"u\xff\xfe", {"$ushort": 65534}),
    ("int", b"I\xff\xff\xff\xfe", -2),
    ("uint", b"i\xff\xff\xff\xfe", {"$uint": 4294967294}),
    ("long", b"l" + struct.pack(">q", 1 << 40), 1 << 40),
    ("small_long", b"l" + struct.pack(">q", 5), {"$long": 5}),
    ("float", b"f" + struct.pack(">f", 0.5), {"$float": 0.5}),
    ("double", b"d" + struct.pack(">d", 0.1), 0.1),
    ("nan", b"d" + struct.pack(">d", float("nan")), {"$double": "nan"}),
    ("decimal", b"D\x02\x00\x00\x00\x7b", {"$decimal": "1.23"}),
    ("text", b"S\0\0\0\x03\xc3\xa4x", "äx"),
    ("no_text", b"S\0\0\0\x01\xff", {"$string": "/w=="}),
    ("bytes", b"x\0\0\0\x02\0\xff", {"$binary": "AP8="}),
    ("time", b"T" + struct.pack(">Q", int(MOMENT.timestamp())), {"$timestamp": "2026-05-01T12:30:15Z"}),
    ("void", b"V", None),
    ("array", b"A\0\0\0\x03t\x01V", [True, None]),
    ("table", b"F\0\0\0\x04\x01at\x01", {"a": True}),
]


def publish_raw(broker: LeveretProcess, key: str) -> None:
    """Publish a 0-9-1 message with all properties and header types, from raw bytes."""
    table = b"".join(encode_short_string(name) + encoded for name, encoded, _ in FIELDS)

    def frame(kind: int, payload: bytes) -> bytes:
        return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"

    def short(text: str) -> bytes:
        return encode_short_string(text)

    properties = b"".join(
        (
            short("text/plain"),
            short("gzip"),
            struct.pack(">I", len(table)) + table,
            b"\x02",
            b"\x07",
            short("corr"),
            short("reply"),
            short("60000"),
            short("mid"),
            struct.pack(">Q", int(MOMENT.timestamp())),
            short("kind"),
            short("guest"),
            short("app"),
            short(""),
        )
    )
    with RudePeer(broker) as peer:
        peer.reach("channel")
        peer.send_bytes(
            frame(1, struct.pack(">HHH", 60, 40, 0) + short("") + short(key) + b"\0")
            + frame(2, struct.pack(">HHQH", 60, 0, 4, 0xFFFC) + properties)
            + frame(3, b"\0\xffab")
        )
        peer.send_bytes(b"\x08\0\0\0\0\0\0\xce")
        with sync.connect(broker.url()) as connection, connection.channel() as channel:
            wait_until(lambda: ask(channel, "stream.describe", stream=key)["next_offset"] == 1)


APPLICATION: dict[str, tuple[Any, Any]] = {
    "null": (None, None),
    "bool": (True, True),
    "ubyte": (amqp10.UByte(5), {"$ubyte": 5}),
    "ushort": (amqp10.UShort(5), {"$ushort": 5}),
    "uint": (amqp10.UInt(5), {"$uint": 5}),
    "ulong": (amqp10.ULong(2**63), {"$ulong": 2**63}),
    "byte": (amqp10.Byte(-5), {"$byte": -5}),
    "short": (amqp10.Short(-5), {"$short": -5}),
    "int": (amqp10.Int(-5), {"$int": -5}),
    "long": (-5, -5),
    "float": (amqp10.Float(0.5), {"$float": 0.5}),
    "double": (0.1, 0.1),
    "decimal32": (amqp10.Decimal32.of("1.5"), {"$decimal32": "1.5"}),
    "decimal64": (amqp10.Decimal64.of("1.5"), {"$decimal64": "1.5"}),
    "decimal128": (amqp10.Decimal128.of("1.5"), {"$decimal128": "1.5"}),
    "char": (amqp10.Char("ä"), {"$char": "ä"}),
    "timestamp": (amqp10.Timestamp(int(MOMENT.timestamp() * 1000)), {"$timestamp": "2026-05-01T12:30:15Z"}),
    "uuid": (UUID(int=7), {"$uuid": str(UUID(int=7))}),
    "binary": (b"\0\xff", {"$binary": "AP8="}),
    "string": ("äx", "äx"),
    "symbol": (amqp10.Symbol("s"), {"$symbol": "s"}),
}
ANNOTATIONS: dict[str, tuple[Any, Any]] = {
    "x-list": ([1, "a"], [1, "a"]),
    "x-map": (amqp10.Map([(amqp10.Int(1), "b")]), {"$map": [[{"$int": 1}, "b"]]}),
}


def collect(spark: SparkSession, broker: LeveretProcess, name: str, protocol: str = "0-9-1") -> Row:
    (row,) = read(spark, broker.url(), stream=name, protocol=protocol).collect()
    return row


@pytest.mark.parametrize("sealed", [False, True], ids=["tail", "sealed"])
def test_types_of_0_9_1(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, sealed: bool
) -> None:
    declare_stream(connection, name)
    publish_raw(broker, name)
    if sealed:
        seal(broker, connection, name, 1)
    row = collect(spark, broker, name, "0-9-1" if sealed else "1.0")
    assert (row.queue, row.partition, row.offset, row.protocol) == (name, 0, 0, "0-9-1")
    assert (row.exchange, row.routing_key, row.redelivered, row.delivery_count) == ("", name, False, 0)
    assert (row.content_type, row.content_encoding, row.durable, row.priority) == ("text/plain", "gzip", True, 7)
    assert (row.correlation_id, row.reply_to, row.ttl_ms, row.message_id) == ("corr", "reply", 60000, "mid")
    assert (row.type, row.user_id, row.app_id) == ("kind", "guest", "app")
    assert row.timestamp.astimezone(UTC) == MOMENT
    assert abs((datetime.now(UTC) - row.append_time.astimezone(UTC)).total_seconds()) < 3600
    assert json.loads(row.headers_json) == {field: typed for field, _, typed in FIELDS}
    assert row.headers["text"] == "äx"
    assert row.headers["long"] == str(1 << 40)
    assert json.loads(row.headers["table"]) == {"a": True}
    assert (row.x_death, row.amqp10, bytes(row.body)) == (None, None, b"\0\xffab")
    # The columns suffice to encode the same table again.
    assert to_table(json.loads(row.headers_json))[4:] == b"".join(
        encode_short_string(field) + encoded for field, encoded, _ in FIELDS
    )


@pytest.mark.parametrize("sealed", [False, True], ids=["tail", "sealed"])
def test_types_of_1_0(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, sealed: bool
) -> None:
    declare_stream(connection, name)
    with sync.connect(broker.url(), protocol="1.0") as other, other.sender(name) as sender:
        sender.send(
            amqp10.Value({"a": [1, 2]}),
            durable=True,
            priority=3,
            ttl=5000,
            message_id=UUID(int=9),
            correlation_id=b"\0\1",
            user_id=b"guest",
            subject="subj",
            reply_to="/queues/r",
            content_type="t/t",
            group_id="g",
            group_sequence=4,
            reply_to_group_id="rg",
            creation_time=int(MOMENT.timestamp() * 1000),
            absolute_expiry_time=int(MOMENT.timestamp() * 1000),
            application_properties={key: value for key, (value, _) in APPLICATION.items()},
            annotations={key: value for key, (value, _) in ANNOTATIONS.items()},
            footer={"x-foot": 1},
        )
    if sealed:
        seal(broker, connection, name, 1)
    row = collect(spark, broker, name)
    assert (row.protocol, row.routing_key, row.durable, row.priority, row.ttl_ms) == ("1.0", name, True, 3, 5000)
    assert (row.message_id, row.correlation_id) == (str(UUID(int=9)), base64.b64encode(b"\0\1").decode())
    assert (row.type, row.user_id, row.content_type) == ("subj", "guest", "t/t")
    assert row.timestamp.astimezone(UTC) == MOMENT
    typed = {key: value for key, (_, value) in APPLICATION.items()}
    assert json.loads(row.headers_json) == typed
    assert json.loads(row.amqp10.application_properties) == typed
    only = row.amqp10
    assert (only.message_id_type, only.correlation_id_type, only.body_type) == ("uuid", "binary", "value")
    assert (only.group_id, only.group_sequence, only.reply_to_group_id) == ("g", 4, "rg")
    assert only.absolute_expiry_time.astimezone(UTC) == MOMENT
    annotations = json.loads(only.message_annotations)
    assert {key: annotations[key] for key in ANNOTATIONS} == {key: value for key, (_, value) in ANNOTATIONS.items()}
    assert json.loads(only.footer) == {"x-foot": 1}


def test_a_dead_letter(spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    declare_stream(connection, name)
    with connection.channel() as channel:
        channel.declare_queue(f"{name}-q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name})
        channel.publish(b"late", f"{name}-q")
        message = channel.queue(f"{name}-q").get()
        assert message is not None
        message.reject()
        wait_until(lambda: ask(channel, "stream.describe", stream=name)["next_offset"] == 1)
    row = collect(spark, broker, name)
    assert (row.exchange, row.routing_key) == ("", name)
    (death,) = row.x_death
    assert (death.queue, death.reason, death["count"], death.exchange, death.routing_keys) == (
        f"{name}-q",
        "rejected",
        1,
        "",
        [f"{name}-q"],
    )
    assert abs((datetime.now(UTC) - death.time.astimezone(UTC)).total_seconds()) < 3600
