"""What the broker says of streams: where they begin and end, and which segments they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from leveret.segments.manifest import Segment
from leveret.spark.connection import ControlClient
from leveret.spark.errors import OffsetError, OptionError, RequestRefused


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as it is now.

    id       that no other one ever had
    first    the offset of the oldest message
    next     the offset that the next message will have
    octets   of the bodies of all messages, 0 where the broker does not say
    segments  what is sealed of the range that was asked for, in order; paths are whole URLs
    """

    name: str
    id: str
    first: int
    next: int
    octets: int = 0
    segments: tuple[Segment, ...] = ()


def describe(control: ControlClient, name: str, first: int | None = None, last: int | None = None) -> StreamInfo:
    """A stream; with the segments that have offsets from first to last where these are given. `OptionError` where there is
    no such stream."""
    try:
        reply = control.request("stream.describe", stream=name, segments=True if first is not None else None, first=first,
                                last=last)
    except RequestRefused as error:
        raise OptionError(f"stream {name!r}: {error.message}") from None
    return StreamInfo(name, str(reply["id"]), int(reply["first_offset"]), int(reply["next_offset"]),
                      int(reply.get("octets") or 0), segments_of(reply))


def segments_of(reply: dict[str, Any]) -> tuple[Segment, ...]:
    """The entries of the manifest in a reply, by offset."""
    found = [msgspec.convert(entry, Segment) for entry in reply.get("segments") or ()]
    return tuple(sorted(found, key=lambda segment: segment.first))


def check_same(info: StreamInfo, id: str, reached: int) -> None:
    """`OffsetError` where a checkpoint is of another stream of this name, or of one that went back."""
    if info.id != id:
        raise OffsetError(f"the checkpoint is of another stream {info.name!r}, which was deleted and declared again since "
                          f"(id {id}, now {info.id}); expected a new checkpoint, or the stream that it belongs to")
    if reached > info.next:
        raise OffsetError(f"stream {info.name!r} went back: the checkpoint has read up to offset {reached}, and the stream "
                          f"ends at {info.next}; expected a new checkpoint, or the broker's data from before")
