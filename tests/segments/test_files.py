"""Segments are written atomically, read in parts, and rejected if they are not the sealed file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from leveret.broker.message import make_address
from leveret.segments import files, reader, schema, writer
from leveret.segments.columns import Rows, make_batch
from leveret.segments.errors import SegmentDamaged, SegmentError, SegmentMissing, SegmentTooNew
from leveret.segments.manifest import Segment, decode, encode
from leveret.segments.reader import open_segment
from leveret.segments.writer import SegmentWriter, is_temporary
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp10 import message as amqp10


def rows(first: int, count: int, size: int = 5) -> Rows:
    offsets = list(range(first, first + count))
    header = encode_header(60, size, {"headers": {"a": 1}, "delivery_mode": 2})
    section = amqp10.encode_application_properties({"a": 1})
    formats = [offset % 2 for offset in offsets]
    content = [b"%0*d" % (size, offset) for offset in offsets]
    bodies = [amqp10.encode_data(body) if number else body for body, number in zip(content, formats, strict=True)]
    return Rows(
        offsets,
        [1000 + offset for offset in offsets],
        formats,
        [make_address("e", "k")] * count,
        [section if number else header for number in formats],
        bodies,
    )


def write(directory: str, *parts: Rows) -> Segment:
    writer = SegmentWriter(directory, "events")
    for part in parts:
        writer.append(part)
    return writer.finish()


def test_a_segment_returns_the_rows_it_was_written_from(tmp_path: Path) -> None:
    both = rows(10, 7)
    segment = write(str(tmp_path), rows(10, 3), rows(13, 4))
    assert (segment.first, segment.last, segment.count, segment.groups) == (10, 16, 7, (7,))
    assert (segment.first_time, segment.last_time, segment.body_bytes) == (1010, 1016, 35)
    assert decode(encode(segment)) == segment
    assert [path.name for path in tmp_path.iterdir()] == [segment.path]
    assert os.stat(tmp_path / segment.path).st_mode & 0o777 == 0o600
    with open_segment(str(tmp_path / segment.path), expected=segment) as reader:
        reader.check(segment.crc32)
        [batch] = reader.read()
        assert batch.equals(make_batch(both, queue="events"))
        assert batch.schema == schema.TABLE_SCHEMA
        [messages] = reader.messages()
        assert [item.header for item in messages] == both.headers
        assert [item.body for item in messages] == both.bodies
        assert [item.address for item in messages] == both.addresses


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(0, 12, [10, 11, 12]), (12, 13, [12, 13]), (15, None, [15, 16]), (17, 20, []), (0, 9, [])],
)
def test_a_range_of_offsets(tmp_path: Path, first: int, last: int | None, expected: list[int]) -> None:
    segment = write(str(tmp_path), rows(10, 7))
    with open_segment(str(tmp_path / segment.path)) as reader:
        bodies = [body for batch in reader.read(["body"], first, last) for body in batch.column("body").to_pylist()]
        assert bodies == [b"%05d" % offset for offset in expected]
        assert [item.offset for part in reader.messages(first, last) for item in part] == expected


def test_a_different_file_is_rejected(tmp_path: Path) -> None:
    segment = write(str(tmp_path), rows(10, 7))
    other = write(str(tmp_path), rows(10, 8))
    with pytest.raises(SegmentDamaged, match=f"size {other.bytes}, expected {segment.bytes}"):
        open_segment(str(tmp_path / other.path), expected=segment)
    with pytest.raises(SegmentDamaged, match="rows 8, expected 7"):
        open_segment(
            str(tmp_path / other.path),
            expected=replace(segment, bytes=other.bytes, crc32=other.crc32, footer_bytes=other.footer_bytes),
        )
    path = tmp_path / segment.path
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with open_segment(str(path)) as reader, pytest.raises(SegmentDamaged, match="checksum"):
        reader.check(segment.crc32)
    with pytest.raises(SegmentDamaged, match="checksum"):
        open_segment(str(path), expected=segment)
    path.write_bytes(content[:-100])
    with pytest.raises(SegmentDamaged):
        open_segment(str(path), expected=segment)
    path.unlink()
    with pytest.raises(SegmentMissing, match="does not exist"):
        open_segment(str(path), expected=segment)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Segment]:
    """A segment larger than _MAX_BUFFERED_BYTES."""
    directory = tmp_path_factory.mktemp("large")
    offsets = list(range(300))
    writer = SegmentWriter(str(directory), "events")
    writer.append(
        Rows(
            offsets,
            [1000] * 300,
            0,
            [make_address("e", "k")] * 300,
            [encode_header(60, 5000, {})] * 300,
            [os.urandom(5000) for _ in offsets],
        )
    )
    segment = writer.finish()
    assert segment.bytes > reader._MAX_BUFFERED_BYTES
    return directory / segment.path, segment


@pytest.mark.parametrize("known", [True, False], ids=["footer in the manifest", "earlier manifest"])
@pytest.mark.parametrize("behind", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_a_changed_footer_never_reaches_arrow(
    large: tuple[Path, Segment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: float, known: bool
) -> None:
    path, segment = large
    content = bytearray(path.read_bytes())
    at = segment.bytes - segment.footer_bytes + min(int(behind * segment.footer_bytes), segment.footer_bytes - 1)
    content[at] ^= 0x55
    changed = tmp_path / "changed.parquet"
    changed.write_bytes(content)
    expected = segment if known else replace(segment, footer_bytes=0, footer_crc32=0)
    monkeypatch.setattr(pq, "ParquetFile", lambda *_, **__: pytest.fail("Arrow may end the process over it"))
    with pytest.raises(SegmentDamaged, match="its checksum is"):
        open_segment(str(changed), expected=expected)
    changed.write_bytes(content[: len(content) // 2])
    with pytest.raises(SegmentDamaged, match="it is not the file that was sealed: size"):
        open_segment(str(changed), expected=expected)


def test_a_large_file_opens_by_its_footer(large: tuple[Path, Segment], monkeypatch: pytest.MonkeyPatch) -> None:
    path, segment = large
    monkeypatch.setattr(files, "checksum", lambda *_: pytest.fail("the whole file was read"))
    with open_segment(str(path), expected=segment) as opened:
        assert opened.count == 300
        assert sum(batch.num_rows for batch in opened.read(["offset"])) == 300


def test_a_file_is_verified_before_it_is_read_completely(large: tuple[Path, Segment], tmp_path: Path) -> None:
    path, segment = large
    content = bytearray(path.read_bytes())
    content[segment.bytes // 2] ^= 1
    changed = tmp_path / "changed.parquet"
    changed.write_bytes(content)
    with pytest.raises(SegmentDamaged, match="its checksum is"):
        reader.open_verified(str(changed), None, segment)
    reader.open_verified(str(path), None, segment).close()


def rewritten(path: Path, version: int, dropped: tuple[str, ...] = ()) -> None:
    """Rewrite the file as a version of Leveret with another schema version would."""
    table = pq.read_table(path)
    metadata = {**pq.read_metadata(path).metadata, schema.VERSION_KEY: str(version).encode()}
    pq.write_table(table.drop_columns(list(dropped)).replace_schema_metadata(metadata), path)


def test_an_older_file_reads_with_nulls_for_newer_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = write(str(tmp_path), rows(10, 3))
    path = tmp_path / segment.path
    rewritten(path, 1, ("app_id", "headers", "amqp10"))
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 2)
    with open_segment(str(path)) as reader:
        assert reader.version == 1
        [batch] = reader.read()
        assert batch.schema == schema.TABLE_SCHEMA
        assert batch.column("amqp10").null_count == batch.column("headers").null_count == 3
        assert batch.column("offset").to_pylist() == [10, 11, 12]
        [only] = reader.read(["app_id"], 11)
        assert only.num_rows == 2 and only.schema.names == ["app_id"]
        assert [item.offset for part in reader.messages() for item in part] == [10, 11, 12]
        [whole] = reader.file_batches()
        assert whole.schema == schema.FILE_SCHEMA


def test_columns_without_a_value_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "GROUP_ROWS", 4)
    plain, late = rows(0, 6), rows(6, 6)
    late.headers[4] = encode_header(60, 5, {"reply_to": "r"})
    segment = write(str(tmp_path), plain, late)
    path = tmp_path / segment.path
    assert segment.groups == (4, 4, 4)
    null = pq.read_metadata(path).metadata[schema.NULL_COLUMNS_KEY].decode().split(",")
    assert {"user_id", "x_death", "raw_overlay"} <= set(null) and not {"reply_to", "amqp10", "body"} & set(null)
    content = bytearray(path.read_bytes())
    for group in range(3):
        for at in range(len(schema.FILE_COLUMNS)):
            column = pq.read_metadata(path).row_group(group).column(at)
            if column.path_in_schema in null:
                begin = min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset)
                content[begin : begin + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(content)
    with pytest.raises(OSError, match=r"(?s)user_id|thrift"):
        pq.read_table(path, columns=["user_id"])
    with open_segment(str(path)) as reader:
        read = pa.Table.from_batches(reader.read())
        assert read.equals(pa.Table.from_batches([make_batch(part, queue="events") for part in (plain, late)]))
        assert sum(batch.num_rows for batch in reader.read(["user_id"])) == 12
        assert sum(batch.num_rows for batch in reader.file_batches()) == 12


def test_a_newer_file_is_rejected(tmp_path: Path) -> None:
    segment = write(str(tmp_path), rows(10, 3))
    rewritten(tmp_path / segment.path, 2)
    with pytest.raises(SegmentTooNew, match="schema version is 2, and this version of Leveret reads up to 1"):
        open_segment(str(tmp_path / segment.path))


def test_a_foreign_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(SegmentDamaged):
        open_segment(str(path))
    path.write_bytes(b"PAR1")
    with pytest.raises(SegmentDamaged):
        open_segment(str(path))


def test_a_damaged_small_file_never_reaches_arrow(tmp_path: Path) -> None:
    """Some damage to the footer crashes Arrow."""
    segment = write(str(tmp_path), rows(0, 3))
    path = tmp_path / segment.path
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes((content[at] ^ 1,)) + content[at + 1 :])
        with pytest.raises(SegmentDamaged, match="its checksum is"):
            open_segment(str(path), expected=segment)


def test_a_file_truncated_during_a_read_is_damaged(tmp_path: Path) -> None:
    many = rows(0, 5000, 300)
    many.formats = 0
    many.headers = many.headers[:1] * len(many.headers)
    many.bodies = [os.urandom(300) for _ in many.bodies]
    segment = write(str(tmp_path), many)
    assert segment.bytes > 1 << 20
    path = tmp_path / segment.path
    with open_segment(str(path), expected=segment) as reader:
        content = path.read_bytes()
        with open(path, "r+b") as file:
            file.write(bytes(len(content)))
        with pytest.raises((SegmentDamaged, SegmentMissing)):
            list(reader.read())


def test_row_groups_are_bounded_by_rows_and_bytes(tmp_path: Path) -> None:
    segment = write(str(tmp_path), *[rows(first, 10_000, 1) for first in range(0, 140_000, 10_000)])
    assert segment.groups == (65_536, 65_536, 8_928)
    large = write(str(tmp_path), rows(0, 100, 1 << 20))
    assert sum(large.groups) == 100 and len(large.groups) >= 3
    with open_segment(str(tmp_path / large.path)) as reader:
        assert [batch.num_rows for batch in reader.read(["body"], 50, 50)] == [1]
    wide = rows(0, 200)
    wide.formats = 0
    wide.headers = [encode_header(60, 5, {"headers": {"wide": "x" * 200_000}})] * 200
    assert len(write(str(tmp_path), wide).groups) >= 3
    huge = write(str(tmp_path), rows(0, 2, 40 << 20))
    assert huge.groups == (1, 1)


@pytest.mark.parametrize(
    ("make", "stored"),
    [
        (lambda size: os.urandom(size), "UNCOMPRESSED"),
        (lambda size: os.urandom(size // 2).hex().encode(), "ZSTD"),
        (lambda size: b"", "ZSTD"),
    ],
)
@pytest.mark.parametrize(("count", "size"), [(2000, 200), (3, 1 << 20)])
def test_bodies_are_compressed_if_they_shrink(
    tmp_path: Path, make: Callable[[int], bytes], stored: str, count: int, size: int
) -> None:
    bodies = [make(size) for _ in range(count)]
    header = encode_header(60, size, {"delivery_mode": 2})
    segment = write(
        str(tmp_path),
        Rows(list(range(count)), [1000] * count, 0, [make_address("e", "k")] * count, [header] * count, bodies),
    )
    group = pq.ParquetFile(tmp_path / segment.path).metadata.row_group(0)
    codecs = {group.column(number).path_in_schema: group.column(number).compression for number in range(group.num_columns)}
    assert codecs.pop("body") == stored
    assert set(codecs.values()) == {"ZSTD"}
    with open_segment(str(tmp_path / segment.path), expected=segment) as reader:
        assert [body for batch in reader.read(["body"]) for body in batch.column("body").to_pylist()] == bodies


@pytest.mark.parametrize("offsets", [[5, 5], [6, 5], [4, 6]], ids=str)
def test_rows_out_of_order_are_rejected(tmp_path: Path, offsets: list[int]) -> None:
    writer = SegmentWriter(str(tmp_path), "events")
    writer.append(rows(4, 1))
    wrong = rows(0, 2)
    wrong.offsets = offsets
    with pytest.raises(ValueError, match="expected ascending offsets"):
        writer.append(wrong)
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_an_aborted_writer_leaves_no_file(tmp_path: Path) -> None:
    writer = SegmentWriter(str(tmp_path), "events")
    writer.append(rows(4, 10))
    [temporary] = tmp_path.iterdir()
    assert is_temporary(temporary.name) and os.stat(temporary).st_mode & 0o777 == 0o600
    writer.abort()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="needs rows or a range"):
        SegmentWriter(str(tmp_path), "events").finish()


def test_any_file_system_that_fsspec_knows(tmp_path: Path) -> None:
    directory = "memory://bucket/events"
    writer = SegmentWriter(directory, "events", {}, spool=str(tmp_path))
    writer.append(rows(10, 7))
    segment = writer.finish()
    assert list(tmp_path.iterdir()) == []
    url = files.join(directory, segment.path)
    with open_segment(url, expected=segment) as reader:
        reader.check(segment.crc32)
        assert [batch.num_rows for batch in reader.read()] == [7]
    assert files.list_names(directory) == [segment.path]
    assert files.remove(url) and not files.remove(url)
    with pytest.raises(SegmentMissing, match="does not exist"):
        open_segment(url, expected=segment)
    assert files.list_names("memory://nowhere") == []


def test_an_unwritable_location_is_named_without_its_password(tmp_path: Path) -> None:
    directory = "ftp://user:secret@127.0.0.1:1/bucket"
    writer = SegmentWriter(directory, "events", {"timeout": 1}, spool=str(tmp_path))
    writer.append(rows(10, 7))
    with pytest.raises(SegmentError, match="cannot be written") as raised:
        writer.finish()
    assert "secret" not in str(raised.value) and "127.0.0.1" in str(raised.value)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SegmentMissing) as missing:
        open_segment(directory + "/file", {"timeout": 1})
    assert "secret" not in str(missing.value)


def test_an_unknown_url_scheme_is_named() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        files.check_directory("nonsense://user:secret@bucket")
    files.check_directory("memory://bucket")
    files.check_directory("/var/lib")
