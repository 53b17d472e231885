"""What broker and sealer process say to each other: frames of four octets of length and a MessagePack object, over pipes.

The broker asks, the process answers; both name the question by its number `n`. `op` is one of SEAL, PART, FINISH, ABANDON
(of one segment after the other, `n` that of SEAL), READ, MERGE, TASK, REMOVE and FIND. An answer has `error`, a kind and a
text, or what was asked for.
"""

from __future__ import annotations

import struct
from typing import Any, BinaryIO, Final

import msgspec

from leveret.storage.located import Packed

SEAL: Final = "seal"
PART: Final = "part"
FINISH: Final = "finish"
ABANDON: Final = "abandon"
READ: Final = "read"
MERGE: Final = "merge"
TASK: Final = "task"
REMOVE: Final = "remove"
FIND: Final = "find"

_LENGTH: Final = struct.Struct("<I")
_MOST: Final = (1 << 32) - 1


class Setup(msgspec.Struct, kw_only=True):
    """The first frame: where segments are, where the log is, where unfinished files go that are put elsewhere, the
    properties of the Iceberg catalog, None for none, and the mode of segment files."""

    directory: str
    database: str
    spool: str
    options_file: str | None
    catalog: dict[str, str] | None
    mode: int


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`written` is an entry of the manifest, its path relative to the directory of all segments."""

    n: int
    error: tuple[str, str] | None = None
    written: dict[str, Any] | None = None
    rows: list[Packed] | None = None
    paths: list[str] | None = None
    result: bytes = b""


def encode(frame: object) -> bytes:
    """A frame. ValueError where it is too large."""
    octets = msgspec.msgpack.encode(frame)
    if len(octets) > _MOST:
        raise ValueError(f"{len(octets)} octets are too many for a frame")
    return _LENGTH.pack(len(octets)) + octets


def read(file: BinaryIO) -> bytes | None:
    """The octets of the next frame, None at the end."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    length: int = _LENGTH.unpack(head)[0]
    octets = file.read(length)
    return octets if len(octets) == length else None
