"""A message has the same row from the log, from a sealed file via the broker, and from the file itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from leveret import sync
from leveret.broker.message import make_address
from leveret.management.control_client import call
from leveret.segments.columns import make_batch
from leveret.segments.manifest import Segment
from leveret.segments.reader import open_segment
from leveret.segments.record_batches import DeliveredBatch
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.specs import V0_9
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.peers.engine_amqp09 import Client
from tests.support.polling import wait_until

TIME = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)
HEADERS: list[dict[str, Any]] = [
    {},
    {"a": 1, "b": "ü", "c": True, "d": None, "e": 2.5, "f": b"\x00\xff", "g": TIME, "h": -(1 << 40)},
    {"x-mine": "m", "nested": {"list": [1, {"deep": "x"}]}, "decimal": Decimal("1.50")},
]


FILE = {
    "filename": "orders.csv",
    "message_id": "m",
    "reply_to": "r",
    "priority": 3,
    "timestamp": 5,
    "cluster_id": "c",
    "content_type": "text/csv",
    "content_encoding": "gzip",
    "headers": {"n": 3},
}
MESSAGE: dict[str, Any] = {
    "message_id": "m",
    "correlation_id": "c",
    "reply_to": "r",
    "priority": 4,
    "content_type": "text/plain",
    "app_id": "a",
    "content_encoding": "gzip",
    "user_id": "guest",
    "transaction_id": "t",
    "security_token": "secret",
    "delivery_mode": 2,
    "ttl": 3_600_000,
    "application_headers": {"n": 4},
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LeveretProcess]:
    leveret_only("its files are read")
    process = LeveretProcess(tmp_path)
    process.start()
    yield process
    process.stop()
    process.check_log()


def wait(broker: LeveretProcess, figure: str, count: int) -> None:
    """Wait until a figure of the stream reaches a value."""
    wait_until(lambda: call(broker.data_dir, "streams.show", {"name": "s"})[figure] >= count, f"{figure} of {count}")


def fill(broker: LeveretProcess) -> int:
    count = 0
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        channel.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
        channel.declare_exchange("e", "topic")
        channel.bind_queue("s", "e", "#")
        channel.declare_queue("dying", arguments={"x-dead-letter-exchange": "e", "x-message-ttl": 0})
        for number, headers in enumerate(HEADERS * 3):
            channel.publish(
                b"body %d" % number,
                f"key.{number}",
                "e",
                headers=headers,
                message_id=f"id {number}",
                content_type="text/plain",
                priority=number,
                expiration="60000",
                timestamp=TIME,
                type="t",
                app_id="a",
                correlation_id="c",
                reply_to="r",
                persistent=True,
            )
            count += 1
        channel.publish(b"dead", "dying", headers={"was": "alive"}, expiration="1")
        count += 1
        wait(broker, "messages", count)
    count += fill_over_0_9(broker)
    with sync.connect(broker.url(), protocol="1.0") as amqp10, amqp10.session() as session:
        for number, headers in enumerate(HEADERS):
            plain = {name: value for name, value in headers.items() if name not in ("nested", "decimal")}
            session.publish(b"body %d" % number, f"key.{number}", "e", headers=plain, message_id=str(uuid.UUID(int=number)))
            count += 1
    return count


def fill_over_0_9(broker: LeveretProcess) -> int:
    """Publish one message of each class."""
    client = Client(broker)
    client.engine.send_publish(
        1,
        make_address("e", "key.basic"),
        0,
        encode_header(60, 5, {"content_type": "text/plain", "delivery_mode": 2, "headers": {"n": 1}}),
        b"basic",
        5,
    )
    client.engine.send_content(
        1,
        "stream.publish",
        {"exchange": "e", "routing_key": "key.stream"},
        encode_header(80, 6, {"content_type": "text/plain", "priority": 2, "headers": {"n": 2}}, QPID, V0_9),
        b"stream",
    )
    client.flush()
    client.open_file("one", 4)
    client.engine.send_content(1, "file.stage", {}, encode_header(70, 4, FILE, QPID, V0_9), b"file")
    client.send("file.publish", exchange="e", routing_key="key.file", identifier="one")
    client.call(
        "message.transfer", "message.ok", destination="e", routing_key="key.message", body=(0, b"message"), **MESSAGE
    )
    client.close()
    return 4


def record_batches(broker: LeveretProcess, count: int) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        for message in channel.consume("s", arguments={"x-stream-offset": "first", "x-packed": True}):
            delivered = DeliveredBatch(bytes(message.body))
            batches.append(make_batch(delivered.rows, queue="s"))
            message.ack()
            if delivered.next >= count:
                break
    return pa.Table.from_batches(batches).combine_chunks()


@pytest.mark.embedded("seals a stream")
def test_rows_are_the_same_from_every_source(broker: LeveretProcess) -> None:
    count = fill(broker)
    from_log = record_batches(broker, count)
    assert from_log.num_rows == count
    call(broker.data_dir, "streams.seal", {"name": "s"})
    wait(broker, "sealed_until", count)
    by_broker = record_batches(broker, count)
    entries = call(broker.data_dir, "streams.segments", {"name": "s"})
    assert sum(entry["count"] for entry in entries) == count
    batches: list[pa.RecordBatch] = []
    for entry in entries:
        entry.pop("held_by")
        with open_segment(entry["path"], expected=msgspec.convert(entry, Segment)) as reader:
            batches += reader.read(queue="s")
    from_file = pa.Table.from_batches(batches).combine_chunks()
    for name in from_log.schema.names:
        log, broker_, file = (table.column(name).to_pylist() for table in (from_log, by_broker, from_file))
        assert log == file, name
        assert log == broker_, name
    deaths = [row for row in from_file.column("x_death").to_pylist() if row]
    assert [death[0]["queue"] for death in deaths] == ["dying"]
    assert set(from_file.column("protocol").to_pylist()) == {"0-9", "0-9-1", "1.0"}
    check_rows({row["routing_key"].removeprefix("key."): row for row in from_file.to_pylist() if row["protocol"] == "0-9"})
    check_served_again(broker)


def check_rows(rows: dict[str, dict[str, Any]]) -> None:
    """Check the columns of the 0-9 messages."""
    for kind, body, durable, priority in (
        ("basic", b"basic", True, None),
        ("stream", b"stream", False, 2),
        ("file", b"file", True, 3),
        ("message", b"message", True, 4),
    ):
        row = rows[kind]
        assert (row["body"], row["durable"], row["priority"]) == (body, durable, priority)
        assert row["exchange"] == "e" and row["amqp10"] is None and row["x_death"] is None
    file, message = rows["file"], rows["message"]
    assert dict(file["headers"]) == {"n": "3", "x-filename": "orders.csv"}
    assert dict(message["headers"]) == {"n": "4", "x-transaction-id": "t"}
    assert dict(rows["basic"]["headers"]) == {"n": "1"} and dict(rows["stream"]["headers"]) == {"n": "2"}
    assert (file["message_id"], file["reply_to"], file["content_type"], file["content_encoding"]) == (
        "m",
        "r",
        "text/csv",
        "gzip",
    )
    assert file["timestamp"] == datetime.fromtimestamp(5, UTC) and file["ttl_ms"] is None
    assert (
        message["message_id"],
        message["correlation_id"],
        message["reply_to"],
        message["content_type"],
        message["content_encoding"],
        message["user_id"],
        message["app_id"],
        message["ttl_ms"],
    ) == ("m", "c", "r", "text/plain", "gzip", "guest", "a", 3_600_000)


def check_served_again(broker: LeveretProcess) -> None:
    """Check that messages from sealed segments, delivered over 0-9, have all fields that only 0-9 has."""
    client = Client(broker)
    client.call("basic.qos", "basic.qos-ok", prefetch_count=100)
    client.call("message.consume", "message.ok", queue="s", destination="m", filter={"x-stream-offset": "first"})
    while (transfer := client.expect("message.transfer").arguments)["body"] != (0, b"message"):
        pass  # published over 0-9-1
    table = dict(transfer["application_headers"])
    assert isinstance(table.pop("x-stream-offset"), int)
    assert {**{name: transfer[name] for name in MESSAGE}, "application_headers": table} == MESSAGE
    client.close()
