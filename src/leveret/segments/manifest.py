"""Entries of a stream's manifest, as in the log and in replies of the broker."""

from __future__ import annotations

import msgspec

from leveret.broker.segment_names import STORED_NAMES


class Segment(msgspec.Struct, frozen=True, kw_only=True, rename=STORED_NAMES):
    """One sealed file of a stream.

    Attributes:
        id: Unique, never reused.
        path: Relative to the directory of the stream's segments; an absolute URL in replies.
        first, last: Offsets, inclusive; rows in between may be missing after an erasure.
        count: Number of rows.
        bytes: Size of the file in bytes.
        body_bytes: Total size of the bodies in bytes.
        first_time, last_time: Append times of the first and the last message, in milliseconds of Unix time.
        schema_version: Version of the file schema.
        crc32: Checksum of the file.
        groups: Rows of each row group, in order.
        footer_bytes, footer_crc32: Size and checksum of the Parquet footer; 0 for files of earlier versions.
    """

    id: str
    path: str
    first: int
    last: int
    count: int
    bytes: int
    body_bytes: int
    first_time: int
    last_time: int
    schema_version: int
    crc32: int
    groups: tuple[int, ...]
    footer_bytes: int = 0
    footer_crc32: int = 0


def encode(segment: Segment) -> bytes:
    """Encode an entry for the log."""
    return msgspec.json.encode(segment)


def decode(data: bytes) -> Segment:
    """Decode an entry of the log. Raises ValueError if it is invalid."""
    try:
        return msgspec.json.decode(data, type=Segment)
    except msgspec.DecodeError as error:
        raise ValueError(f"invalid entry of a stream's manifest: {error}") from error
