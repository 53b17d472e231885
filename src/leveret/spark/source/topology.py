"""State of streams at the broker: their offsets and segments."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from leveret.segments.manifest import Segment
from leveret.segments.typed_json import Document
from leveret.spark.connection import ControlClient
from leveret.spark.errors import OffsetError, OptionError, RequestRefused


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream's current state.

    Attributes:
        id: Unique to the stream, also among those declared with the same name.
        first: Offset of the oldest message.
        next: Offset that the next message will have.
        body_bytes: Total size of all bodies, 0 if the broker does not report it.
        segments: Segments in the requested range, in order; their paths are absolute URLs.
    """

    name: str
    id: str
    first: int
    next: int
    body_bytes: int = 0
    segments: tuple[Segment, ...] = ()


def describe(control: ControlClient, name: str, first: int | None = None, last: int | None = None) -> StreamInfo:
    """Describe a stream, including its segments with offsets from `first` to `last` if these are set.

    Raises:
        OptionError: The stream does not exist.
    """
    try:
        reply = control.request(
            "stream.describe", stream=name, segments=True if first is not None else None, first=first, last=last
        )
    except RequestRefused as error:
        raise OptionError(f"stream {name!r}: {error.message}") from None
    return StreamInfo(
        name,
        str(reply["id"]),
        int(reply["first_offset"]),
        int(reply["next_offset"]),
        int(reply.get("octets") or 0),
        segments_of(reply),
    )


def segments_of(reply: dict[str, Document]) -> tuple[Segment, ...]:
    """Return the manifest entries in a reply, sorted by offset."""
    found = [msgspec.convert(entry, Segment) for entry in reply.get("segments") or ()]
    return tuple(sorted(found, key=lambda segment: segment.first))


def check_same(info: StreamInfo, id: str, reached: int) -> None:
    """Raise OffsetError if a checkpoint belongs to another stream of this name, or has offsets beyond its end."""
    if info.id != id:
        raise OffsetError(
            f"the checkpoint is of another stream {info.name!r}: it was deleted and declared again (id {id}, "
            f"now {info.id}); use a new checkpoint, or restore the stream"
        )
    if reached > info.next:
        raise OffsetError(
            f"stream {info.name!r} lost messages at its end: the checkpoint has read up to offset {reached}, "
            f"and the stream ends at {info.next}; use a new checkpoint, or restore the broker's data"
        )
