"""Protocol between broker and sealer process: over pipes, frames of a 4-byte length and a MessagePack object.

The broker sends requests and the process replies; both carry the number `n` of the request. `op` is SEAL, PART, FINISH or
ABANDON (which write one segment; all carry the `n` of its SEAL), READ, MERGE, TASK, REMOVE or FIND. A reply has either
`error`, a kind and a text, or the result.
"""

from __future__ import annotations

import struct
from typing import Any, BinaryIO, Final, TypeAlias

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
_MAX_FRAME_BYTES: Final = (1 << 32) - 1

# The fields of a request, which depend on `op`, or of a segment in a request.
Request: TypeAlias = dict[str, Any]


class Setup(msgspec.Struct, kw_only=True):
    """The first frame.

    Attributes:
        directory: Directory of the segments.
        engine: The storage engine of the log.
        rows: The address of the log's rows; see `RowsAddress.fields`.
        spool: Local directory for files that are uploaded when they are complete.
        options_file: File with options for fsspec, None for none.
        catalog: Properties of the Iceberg catalog, None for none.
        mode: Mode of segment files.
    """

    directory: str
    engine: str
    rows: dict[str, Any]
    spool: str
    options_file: str | None
    catalog: dict[str, str] | None
    mode: int


class Reply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A reply. `written` is a manifest entry with a path relative to the directory of all segments."""

    n: int
    error: tuple[str, str] | None = None
    written: Request | None = None
    rows: list[Packed] | None = None
    paths: list[str] | None = None
    result: bytes = b""


def encode(frame: object) -> bytes:
    """Encode a frame. Raises ValueError if it is too large."""
    payload = msgspec.msgpack.encode(frame)
    if len(payload) > _MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(payload)} bytes is too large; expected at most {_MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(payload)) + payload


def read(file: BinaryIO) -> bytes | None:
    """Return the payload of the next frame, None at the end of the file."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    length: int = _LENGTH.unpack(head)[0]
    payload = file.read(length)
    return payload if len(payload) == length else None
