"""The Iceberg table of a stream matches its manifest, even after failures."""

from __future__ import annotations

import os
import stat
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from leveret.segments import catalog, iceberg
from leveret.segments.erasure import Rule, compile_rules
from leveret.segments.iceberg import IcebergError, IcebergTables
from leveret.segments.manifest import Segment
from leveret.segments.reader import open_segment
from leveret.segments.rewriting import merge, rewrite
from leveret.segments.writer import SegmentWriter
from tests.segments.test_files import rows, write

NAME = ("default", "events")


class Site:
    """A stream's directory and its table, read by other tools."""

    def __init__(self, path: Path, kept: timedelta = timedelta(hours=1)) -> None:
        self.directory = str(path / "segments")
        self.properties = catalog.default_properties(self.directory, path / "data")
        self.tables = IcebergTables(self.properties, kept)

    def urls(self, *segments: Segment) -> list[str]:
        return [f"{self.directory}/{segment.path}" for segment in segments]

    def sync(self, *segments: Segment) -> tuple[int, int]:
        done = self.tables.sync(NAME, self.urls(*segments), "stream 1")
        return done.added, done.removed

    @property
    def table(self) -> Table:
        return load_catalog(catalog.CATALOG, **self.properties).load_table(NAME)

    def offsets(self) -> list[int]:
        found: list[int] = self.table.scan(selected_fields=("offset",)).to_arrow().column("offset").to_pylist()
        return sorted(found)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_files_are_added_without_copying(site: Site, tmp_path: Path) -> None:
    first, second = write(site.directory, rows(0, 10)), write(site.directory, rows(10, 10))
    assert site.sync(first) == (1, 0)
    assert site.sync(first, second) == (1, 0)
    assert site.sync(first, second) == (0, 0)
    assert site.offsets() == list(range(20))
    found = site.table.scan(row_filter="offset = 13").to_arrow().to_pylist()
    assert [(row["body"], row["protocol"], row["headers"]) for row in found] == [(b"00013", "1.0", [("a", "1")])]
    assert {task.file.file_path for task in site.table.scan().plan_files()} == {
        f"file://{url}" for url in site.urls(first, second)
    }
    assert len(site.table.snapshots()) == 2
    assert stat.S_IMODE(os.stat(tmp_path / "data" / catalog.DATABASE).st_mode) == 0o600


def test_field_ids_match_those_of_the_files(site: Site) -> None:
    site.sync(write(site.directory, rows(0, 2)))
    fields = site.table.schema()
    assert (fields.find_field("body").field_id, fields.find_field("amqp10.body_type").field_id) == (24, 49)
    assert fields.find_field("x_death.element.routing_keys.element").field_id == 37


def test_retention_merging_and_erasure_are_new_snapshots(site: Site) -> None:
    parts = [write(site.directory, rows(first, 10)) for first in range(0, 40, 10)]
    site.sync(*parts)
    assert site.sync(*parts[1:]) == (0, 1)
    assert site.offsets() == list(range(10, 40))
    readers = [open_segment(url) for url in site.urls(*parts[1:3])]
    merged = merge(readers, SegmentWriter(site.directory, "events"))
    assert site.sync(merged, parts[3]) == (1, 2)
    assert site.offsets() == list(range(10, 40))
    with open_segment(site.urls(merged)[0]) as reader:
        rule = Rule(action="remove", selector="m.[x-routing-key] = 'k' AND h.durable = TRUE")
        rewritten, _ = rewrite(reader, compile_rules([rule]), SegmentWriter(site.directory, "events"))
    assert rewritten is not None
    assert site.sync(rewritten, parts[3]) == (1, 1)
    assert site.offsets() == [*range(11, 30, 2), *range(30, 40)]
    assert site.sync() == (0, 2)
    assert site.offsets() == []


def test_the_next_call_completes_a_failed_one(site: Site) -> None:
    first, second = write(site.directory, rows(0, 10)), write(site.directory, rows(10, 10))
    site.sync(first)
    url = site.urls(second)[0]
    os.rename(url, url + ".away")
    with pytest.raises(IcebergError, match=r"table default\.events"):
        site.sync(second)
    assert site.offsets() == list(range(10))  # neither removed nor added
    os.rename(url + ".away", url)
    assert site.sync(second) == (1, 1)
    assert site.offsets() == list(range(10, 20))


def test_expired_snapshots_are_removed_with_their_metadata(tmp_path: Path) -> None:
    site = Site(tmp_path, timedelta(0))
    parts = [write(site.directory, rows(first, 2)) for first in range(0, 16, 2)]
    for number in range(len(parts)):
        site.sync(*parts[max(number - 1, 0) : number + 1])
    assert site.offsets() == list(range(12, 16))
    assert len(site.table.snapshots()) <= 3
    metadata = os.listdir(tmp_path / "segments" / "iceberg" / "default" / "events" / "metadata")
    assert len([name for name in metadata if name.startswith("snap-")]) <= 3


def test_a_stream_without_segments_has_no_table(site: Site) -> None:
    assert site.sync() == (0, 0)
    assert not site.tables.drop(NAME, "stream 1")
    segment = write(site.directory, rows(0, 2))
    site.sync(segment)
    assert not site.tables.drop(NAME, "stream 2")
    assert site.tables.drop(NAME, "stream 1") and not site.tables.drop(NAME, "stream 1")
    assert os.path.exists(site.urls(segment)[0])


def test_two_streams_do_not_share_a_table(site: Site) -> None:
    site.sync(write(site.directory, rows(0, 2)))
    with pytest.raises(IcebergError, match="belongs to stream 1, not to stream 2"):
        site.tables.sync(NAME, [], "stream 2")
    assert site.offsets() == [0, 1]


def test_a_missing_catalog_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(IcebergError) as raised:
        IcebergTables({"type": "sql", "uri": "nosuch://user:secret@nowhere/db"}).sync(NAME, ["/nowhere"], "stream 1")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("vhost", "stream", "expected"),
    [
        ("/", "events", ("default", "events")),
        ("team/a.b", "orders.new", ("team_a_b", "orders.new")),
        ("", "a/b", ("default", "a_b")),
    ],
)
def test_names(vhost: str, stream: str, expected: tuple[str, str]) -> None:
    assert iceberg.identifier(vhost, stream) == expected


def test_properties_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text('type = "rest"\nuri = "https://catalog"\n"s3.retries" = 3\n"py-io-impl" = true\n')
    assert catalog.read_properties(path) == {
        "type": "rest",
        "uri": "https://catalog",
        "s3.retries": "3",
        "py-io-impl": "true",
    }
    path = tmp_path / "catalog.json"
    path.write_text('{"type": "sql"}')
    assert catalog.read_properties(path) == {"type": "sql"}
    for text in ('["a"]', '{"a": {"b": 1}}', "a = 1"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"catalog\.json"):
            catalog.read_properties(path)
    assert catalog.default_properties("s3://bucket/streams/", Path("/data")) == {
        "type": "sql",
        "uri": "sqlite:////data/iceberg.db",
        "warehouse": "s3://bucket/streams/iceberg",
    }
