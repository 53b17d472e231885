"""Manifest entries as earlier versions stored them."""

from __future__ import annotations

from leveret.broker.segments import Segment
from leveret.segments import manifest

# As Leveret 0.2 wrote them, in the log and in replies.
STORED = (
    b"\xde\x00\x10\xabbody_octets\xcd\x02\x00\xa5count\t\xa5crc32\xce\xde\xad\xbe\xef\xa5first\n\xaafirst_time\xcd\x03\xe8"
    b"\xacfooter_crc32\xcd\x124\xadfooter_octets\xcd\x02\xbc\xa6groups\x91\t\xa2id\xa31-2\xa4last\x13\xa9last_time\xcd\x07\xd0"
    b"\xa6octets\xcd\x10\x00\xa4path\xb9home/orders-7/1-2.parquet\xaeschema_version\x03\xa6starts\x92\n\x0f"
    b"\xa5times\x92\xcd\x03\xe8\xcd\x05\xdc"
)
SENT = (
    b'{"id":"1-2","path":"home/orders-7/1-2.parquet","first":10,"last":19,"count":9,"octets":4096,"body_octets":512,'
    b'"first_time":1000,"last_time":2000,"schema_version":3,"crc32":3735928559,"groups":[9],"footer_octets":700,'
    b'"footer_crc32":4660}'
)


def test_the_log() -> None:
    segment = Segment.unpack(STORED)
    assert (segment.bytes, segment.body_bytes, segment.footer_bytes) == (4096, 512, 700)
    assert (segment.id, segment.count, segment.crc32, list(segment.starts)) == ("1-2", 9, 0xDEADBEEF, [10, 15])
    assert segment.pack() == STORED


def test_replies() -> None:
    segment = manifest.decode(SENT)
    assert (segment.bytes, segment.body_bytes, segment.footer_bytes) == (4096, 512, 700)
    assert manifest.encode(segment) == SENT
    assert manifest.decode(manifest.encode(manifest.decode(SENT.replace(b'"footer_octets":700,', b"")))).footer_bytes == 0
