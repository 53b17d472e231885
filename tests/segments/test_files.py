"""A segment is written whole, read in part, and refused where it is not the file that was sealed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leveret.broker.message import make_address
from leveret.segments import schema
from leveret.segments.columns import Rows, make_batch
from leveret.segments.errors import SegmentDamaged, SegmentMissing
from leveret.segments.manifest import Segment, decode, encode
from leveret.segments.reader import open_segment
from leveret.segments.writer import SegmentWriter
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp1 import message as amqp1


def rows(first: int, count: int, size: int = 5) -> Rows:
    offsets = list(range(first, first + count))
    header = encode_header(60, size, {"headers": {"a": 1}, "delivery_mode": 2})
    section = amqp1.encode_application_properties({"a": 1})
    formats = [offset % 2 for offset in offsets]
    content = [b"%0*d" % (size, offset) for offset in offsets]
    bodies = [amqp1.encode_data(body) if number else body for body, number in zip(content, formats, strict=True)]
    return Rows(offsets, [1000 + offset for offset in offsets], formats, [make_address("e", "k")] * count,
                [section if number else header for number in formats], bodies)


def write(directory: str, *parts: Rows) -> Segment:
    writer = SegmentWriter(directory, "events")
    for part in parts:
        writer.append(part)
    return writer.finish()


def test_a_segment_reads_as_the_rows_it_was_made_of(tmp_path: Path) -> None:
    both = rows(10, 7)
    segment = write(str(tmp_path), rows(10, 3), rows(13, 4))
    assert (segment.first, segment.last, segment.count, segment.groups) == (10, 16, 7, (7,))
    assert (segment.first_time, segment.last_time, segment.body_octets) == (1010, 1016, 35)
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


@pytest.mark.parametrize(("first", "last", "expected"), [(0, 12, [10, 11, 12]), (12, 13, [12, 13]), (15, None, [15, 16]),
                                                         (17, 20, []), (0, 9, [])])
def test_a_range_of_offsets(tmp_path: Path, first: int, last: int | None, expected: list[int]) -> None:
    segment = write(str(tmp_path), rows(10, 7))
    with open_segment(str(tmp_path / segment.path)) as reader:
        bodies = [body for batch in reader.read(["body"], first, last) for body in batch.column("body").to_pylist()]
        assert bodies == [b"%05d" % offset for offset in expected]
        assert [item.offset for part in reader.messages(first, last) for item in part] == expected


def test_another_file_is_refused(tmp_path: Path) -> None:
    segment = write(str(tmp_path), rows(10, 7))
    other = write(str(tmp_path), rows(10, 8))
    with pytest.raises(SegmentDamaged, match="rows 8, expected 7"):
        open_segment(str(tmp_path / other.path), expected=segment)
    path = tmp_path / segment.path
    octets = bytearray(path.read_bytes())
    octets[200] ^= 1
    path.write_bytes(octets)
    with open_segment(str(path), expected=segment) as reader, pytest.raises(SegmentDamaged, match="checksum"):
        reader.check(segment.crc32)
    path.write_bytes(octets[:-100])
    with pytest.raises(SegmentDamaged):
        open_segment(str(path), expected=segment)
    path.unlink()
    with pytest.raises(SegmentMissing, match="no such file"):
        open_segment(str(path), expected=segment)
