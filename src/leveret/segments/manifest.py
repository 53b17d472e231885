"""What the manifest says of a segment: an entry of it in the log, and in replies of the broker."""

from __future__ import annotations

import msgspec


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One sealed file of a stream.

    id           never used for another file
    path         relative to the directory of the stream's segments; a whole URL in replies
    first, last  offsets, inclusive; rows in between may be missing where they were erased
    count        rows
    octets       of the file
    body_octets  of all bodies
    first_time, last_time  when the first and the last message were appended, milliseconds of Unix time
    crc32        of the file
    groups       rows of each row group, in order
    footer_octets, footer_crc32  of the end of the file, which says where everything else is; 0 for a file of before
    """

    id: str
    path: str
    first: int
    last: int
    count: int
    octets: int
    body_octets: int
    first_time: int
    last_time: int
    schema_version: int
    crc32: int
    groups: tuple[int, ...]
    footer_octets: int = 0
    footer_crc32: int = 0


def encode(segment: Segment) -> bytes:
    """The entry as it stands in the log."""
    return msgspec.json.encode(segment)


def decode(octets: bytes) -> Segment:
    """The entry that stands in the log. ValueError for what is none."""
    try:
        return msgspec.json.decode(octets, type=Segment)
    except msgspec.DecodeError as error:
        raise ValueError(f"no entry of a stream's manifest: {error}") from error
