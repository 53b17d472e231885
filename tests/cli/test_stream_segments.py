"""Sealed segments by the command line, against a running broker: what is sealed, erased and in the tables, and what readers
see of it over AMQP and in the files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyiceberg.catalog import load_catalog

from leveret import sync
from leveret.segments import catalog
from tests.cli.runner import Commands
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.polling import wait_until

CONFIG = """
[streams]
iceberg = true
iceberg_delay = "0s"
grace = "0s"
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("commands talk to its control socket")
    process = LeveretProcess(tmp_path_factory.mktemp("broker"), config=CONFIG)
    process.start()
    yield process
    process.stop()
    process.check_log()


def body(number: int) -> bytes:
    return json.dumps({"number": number, "customer": {"id": number % 5, "name": f"name {number}"}}).encode()


def fill(broker: LeveretProcess, stream: str, first: int, last: int) -> None:
    """Messages of both protocols in turn."""
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        channel.declare_queue(stream, durable=True, arguments={"x-queue-type": "stream"})
    for rest, protocol in enumerate(("0-9-1", "1.0")):
        with sync.connect(broker.url(), protocol=protocol) as other, other.open_channel() as publishing:
            for number in range(first + rest, last, 2):
                publishing.publish(
                    body(number), stream, headers={"customer": str(number % 5), "n": number}, user_id="guest"
                )


def read(broker: LeveretProcess, stream: str, last: int) -> dict[int, Any]:
    """Return body, headers and user of the messages by offset, up to and including `last`."""
    found: dict[int, Any] = {}
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        for message in channel.consume(stream, arguments={"x-stream-offset": "first"}):
            headers = dict(message.properties.headers or {})
            offset = headers.pop("x-stream-offset")
            found[offset] = (bytes(message.body), headers, message.properties.user_id)
            message.ack()
            if offset >= last:
                return found
    raise AssertionError("the consumer ended")


def table_rows(broker: LeveretProcess, stream: str) -> list[dict[str, Any]]:
    """Return the contents of the stream's Iceberg table by offset."""
    properties = catalog.default_properties(str(broker.data_dir / "streams"), broker.data_dir)
    table = load_catalog(catalog.CATALOG, **properties).load_table(("default", stream))
    rows: list[dict[str, Any]] = table.scan(selected_fields=("offset", "body", "protocol")).to_arrow().to_pylist()
    return sorted(rows, key=lambda row: int(row["offset"]))


@pytest.mark.slow
def test_sealed_erased_and_read_everywhere(broker: LeveretProcess, commands: Commands) -> None:
    fill(broker, "orders", 0, 40)
    before = read(broker, "orders", 39)
    assert len(before) == 40
    [item] = [item for item in commands.json("streams") if item["name"] == "orders"]
    assert (item["unsealed"], item["segments"]) == (40, 0)
    assert "sealed stream 'orders' up to offset 40, in 1 segments" in commands.ok("streams", "seal", "orders")
    [segment] = commands.json("streams", "segments", "orders")
    assert (segment["first"], segment["last"], segment["count"], segment["held_by"]) == (0, 39, 40, 0)
    assert read(broker, "orders", 39) == before
    rows = pyarrow.parquet.read_table(str(segment["path"])).to_pylist()
    assert [row["body"] for row in rows] == [before[offset][0] for offset in range(40)]
    assert {row["protocol"] for row in rows} == {"0-9-1", "1.0"}
    commands.ok("streams", "iceberg", "sync", "orders")
    assert [row["body"] for row in table_rows(broker, "orders")] == [row["body"] for row in rows]

    erase = ("streams", "erase", "orders", "--where", "routing-key=orders")
    dry = commands.json(*erase, "--where", "body:$.customer.id=3", "--remove", "--dry-run")
    assert isinstance(dry, dict)
    assert (dry["rows"], dry["matched"], dry["removed"], dry["rewritten"]) == (40, 8, 8, 0)
    assert read(broker, "orders", 39) == before
    said = commands.ok(*erase, "--where", "header:customer=3", "--remove")
    assert "checked 1 segments, rewrote 1" in said
    gone = {offset for offset, (_, headers, _) in before.items() if headers["customer"] == "3"}
    assert len(gone) == 8
    left = {offset: found for offset, found in before.items() if offset not in gone}
    assert read(broker, "orders", max(left)) == left
    commands.ok(*erase, "--mask", "$.customer.name", "--mask", "property:user_id", "--mask-with", "?")
    masked = read(broker, "orders", max(left))
    assert masked.keys() == left.keys()
    for offset, (octets, headers, user) in masked.items():
        assert json.loads(octets)["customer"]["name"] == user == "?" and headers == left[offset][1]
    commands.ok("streams", "iceberg", "sync", "orders")
    assert [row["offset"] for row in table_rows(broker, "orders")] == sorted(left)
    assert all(b'"?"' in row["body"] for row in table_rows(broker, "orders"))
    [tables] = [item for item in commands.json("streams", "iceberg") if item["name"] == "orders"]
    assert (tables["table"], tables["files"], tables["pending"], tables["problem"]) == ("default.orders", 1, False, None)

    # New messages are sealed by --seal, and everything survives a restart.
    fill(broker, "orders", 40, 60)
    said = commands.ok(*erase, "--where", "selector=n >= 58", "--drop-body")
    assert "20 messages are unsealed and were not checked" in said
    commands.ok(*erase, "--where", "selector=n >= 58", "--drop-body", "--seal")
    now = read(broker, "orders", 59)
    assert [octets for octets, headers, _ in now.values() if headers["n"] >= 58] == [b"", b""]
    broker.stop()
    broker.start()
    assert read(broker, "orders", 59) == now
    commands.ok("streams", "iceberg", "sync", "orders")
    assert [row["body"] for row in table_rows(broker, "orders")] == [octets for octets, _, _ in now.values()]


def test_refusals(broker: LeveretProcess, commands: Commands, tmp_path: Path) -> None:
    commands.ok("queues", "add", "plain")
    fill(broker, "few", 0, 2)
    assert "stream 'missing' does not exist" in commands.refused("streams", "segments", "missing")
    assert "is not a stream" in commands.refused("streams", "seal", "plain")
    assert "stream 'missing' does not exist" in commands.refused("streams", "iceberg", "sync", "missing")
    rules = tmp_path / "rules.json"
    rules.write_text('[{"action": "remove", "colour": "red"}]')
    for arguments, words in [
        (("--remove",), "expected --where and one of --remove"),
        (("--where", "routing-key=#"), "one of --remove, --drop-body and --mask"),
        (("--where", "colour=red", "--remove"), "expected routing-key=PATTERN"),
        (("--where", "body:a=1", "--remove"), "JSON path 'a': expected '$'"),
        (("--where", "selector=a = = 1", "--remove"), "selector: position 4"),
        (("--rules", str(rules)), "unknown field `colour`"),
        (("--rules", str(rules), "--remove"), "--rules excludes"),
    ]:
        assert words in " ".join(commands.mistaken("streams", "erase", "few", *arguments).split())
    rules.write_text('[{"action": "drop-body", "headers": {"n": "0"}}, {"action": "remove", "routing_key": "#"}]')
    outcome = commands.json("streams", "erase", "few", "--rules", str(rules), "--seal")
    assert isinstance(outcome, dict)
    assert (outcome["emptied"], outcome["removed"], outcome["unsealed"]) == (1, 1, 0)
    assert [octets for octets, _, _ in read(broker, "few", 0).values()] == [b""]


def test_a_missing_file_ends_the_erasure(broker: LeveretProcess, commands: Commands) -> None:
    fill(broker, "damaged", 0, 4)
    commands.ok("streams", "seal", "damaged")
    [segment] = commands.json("streams", "segments", "damaged")
    path = Path(str(segment["path"]))
    path.rename(path.with_suffix(".away"))
    said = commands.refused("streams", "erase", "damaged", "--where", "routing-key=#", "--remove")
    assert "the erasure of stream 'damaged' failed after 0 segments: offsets 0 to 3" in said
    assert "the file does not exist" in said
    path.with_suffix(".away").rename(path)
    assert "rewrote 1" in commands.ok("streams", "erase", "damaged", "--where", "routing-key=#", "--remove")
    assert [item["messages"] for item in commands.json("streams") if item["name"] == "damaged"] == [0]


def test_all_partitions_of_a_stream(broker: LeveretProcess, commands: Commands) -> None:
    commands.ok("streams", "add-super", "parts", "--partitions", "3")
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        for number in range(30):
            channel.publish(body(number), f"key {number}", "parts", headers={"customer": str(number % 5)})
    said = commands.ok("streams", "seal", "parts")
    assert [line.split("'")[1] for line in said.splitlines()] == ["parts-0", "parts-1", "parts-2"]
    outcome = commands.json("streams", "erase", "parts", "--where", "header:customer=3", "--remove")
    assert (outcome["rows"], outcome["removed"], outcome["unsealed"]) == (30, 6, 0)
    items = [item for item in commands.json("streams") if str(item["name"]).startswith("parts-")]
    assert sum(item["messages"] for item in items) == 24
    assert "stream 'missing' does not exist" in commands.refused(
        "streams", "erase", "missing", "--where", "routing-key=#", "--remove"
    )
    assert "no super stream 'amq.topic'" in commands.refused("streams", "seal", "amq.topic")


def test_files_are_for_the_owner_only(broker: LeveretProcess, commands: Commands) -> None:
    fill(broker, "private", 0, 2)
    commands.ok("streams", "seal", "private")
    commands.ok("streams", "iceberg", "sync", "private")
    found = [broker.data_dir / "streams", broker.data_dir / catalog.DATABASE, *(broker.data_dir / "streams").rglob("*")]
    assert {path.suffix for path in found} >= {".parquet", ".avro", ".json", ".db"}
    assert [path for path in found if path.stat().st_mode & 0o077] == []


def test_a_failing_catalog_blocks_nothing_and_a_sync_repairs_the_table(tmp_path: Path) -> None:
    leveret_only("its catalog is taken away")
    place = tmp_path / "catalog"
    place.write_text("not a directory")
    properties = {"type": "sql", "uri": f"sqlite:///{place}/tables.db", "warehouse": (tmp_path / "tables").as_uri()}
    (tmp_path / "catalog.json").write_text(json.dumps(properties))
    config = CONFIG + f'iceberg_properties_file = "{tmp_path}/catalog.json"\n'
    with LeveretProcess(tmp_path / "broker", config=config).start() as broker:
        assert isinstance(broker, LeveretProcess)
        commands = Commands(broker.data_dir)
        fill(broker, "orders", 0, 10)
        commands.ok("streams", "seal", "orders")
        said = commands.refused("streams", "iceberg", "sync")
        assert "cannot update the table of stream 'orders': the catalog cannot be opened" in said
        [item] = commands.json("streams", "iceberg")
        assert item["pending"] and "catalog cannot be opened" in item["problem"]
        fill(broker, "orders", 10, 20)
        assert "in 2 segments" in commands.ok("streams", "seal", "orders")
        assert len(read(broker, "orders", 19)) == 20
        place.unlink()
        commands.ok("streams", "iceberg", "sync")
        [item] = commands.json("streams", "iceberg")
        assert (item["files"], item["pending"], item["problem"]) == (2, False, None)
        table = load_catalog(catalog.CATALOG, **properties).load_table(("default", "orders"))
        assert table.scan(selected_fields=("offset",)).to_arrow().num_rows == 20
        # The table is deleted with its stream.
        commands.ok("queues", "delete", "orders")
        wait_until(lambda: not load_catalog(catalog.CATALOG, **properties).table_exists(("default", "orders")))
    broker.check_log()
