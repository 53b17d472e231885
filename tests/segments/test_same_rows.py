"""A message is the same row whether it comes from the log, from a sealed file by way of the broker, or from that file."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from leveret import blocking
from leveret.cli.control_client import call
from leveret.segments.columns import make_batch
from leveret.segments.manifest import Segment
from leveret.segments.packed import Packed
from leveret.segments.reader import open_segment
from tests.support.broker import LeveretProcess, leveret_only

TIME = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)
HEADERS: list[dict[str, Any]] = [
    {}, {"a": 1, "b": "ü", "c": True, "d": None, "e": 2.5, "f": b"\x00\xff", "g": TIME, "h": -(1 << 40)},
    {"x-mine": "m", "nested": {"list": [1, {"deep": "x"}]}, "decimal": Decimal("1.50")},
]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LeveretProcess]:
    leveret_only("its files are read")
    process = LeveretProcess(tmp_path)
    process.start()
    yield process
    process.stop()
    process.check_log()


def wait(broker: LeveretProcess, figure: str, count: int) -> None:
    """Until a figure of the stream has come so far."""
    deadline = time.monotonic() + 60
    while (found := call(broker.data_dir, "streams.show", {"name": "s"}))[figure] < count:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def fill(broker: LeveretProcess) -> int:
    count = 0
    with blocking.connect(broker.url()) as connection, connection.channel() as channel:
        channel.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
        channel.declare_exchange("e", "topic")
        channel.bind_queue("s", "e", "#")
        channel.declare_queue("dying", arguments={"x-dead-letter-exchange": "e", "x-message-ttl": 0})
        for number, headers in enumerate(HEADERS * 3):
            channel.publish(b"body %d" % number, f"key.{number}", "e", headers=headers, message_id=f"id {number}",
                            content_type="text/plain", priority=number, expiration="60000", timestamp=TIME, type="t",
                            app_id="a", correlation_id="c", reply_to="r", persistent=True)
            count += 1
        channel.publish(b"dead", "dying", headers={"was": "alive"}, expiration="1")
        count += 1
        wait(broker, "messages", count)
    with blocking.connect(broker.url(), protocol="1.0") as connection, connection.channel() as channel:
        for number, headers in enumerate(HEADERS):
            plain = {name: value for name, value in headers.items() if name not in ("nested", "decimal")}
            channel.publish(b"body %d" % number, f"key.{number}", "e", headers=plain, message_id=str(uuid.UUID(int=number)))
            count += 1
    return count


def packed(broker: LeveretProcess, count: int) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    with blocking.connect(broker.url()) as connection, connection.channel() as channel:
        for message in channel.consume("s", arguments={"x-stream-offset": "first", "x-packed": True}):
            pack = Packed(bytes(message.body))
            batches.append(make_batch(pack.rows, queue="s"))
            message.ack()
            if pack.next >= count:
                break
    return pa.Table.from_batches(batches).combine_chunks()


def test_rows_are_the_same_wherever_they_come_from(broker: LeveretProcess) -> None:
    count = fill(broker)
    from_log = packed(broker, count)
    assert from_log.num_rows == count
    call(broker.data_dir, "streams.seal", {"name": "s"})
    wait(broker, "sealed_until", count)
    by_broker = packed(broker, count)
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
    assert set(from_file.column("protocol").to_pylist()) == {"0-9-1", "1.0"}
