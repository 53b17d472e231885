"""Checkpoint offsets of a query that reads streams.

    {"version": 1, "streams": {"orders-0": {"id": "...", "next": 17}}, "began": {"orders-0": 3}, "initial": true,
     "lost": {"orders-0": 2}, "holder": "..."}

`next` is the offset of the next message to read, and `id` is unique to the stream. `began` has the offsets at which the
query began, so that the first batch can be planned again identically: Spark asks for the initial offset at each start and
does not store it. Only the initial offset is marked as `initial`. `lost` has the numbers of messages that the query skipped
so far; those that tasks of the batch skipped are at the broker under the name `holder`, for the next offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from leveret.segments.typed_json import Document
from leveret.spark.errors import OffsetError

VERSION: Final = 1


@dataclass(slots=True)
class Position:
    """Position in one stream: its id, and the offset of the next message.

    Attributes:
        first: Where the batch that ends here begins, if messages before that are lost; `lost` counts them.
    """

    id: str
    next: int
    first: int | None = None

    def to_json(self) -> dict[str, Document]:
        position: dict[str, Document] = {"id": self.id, "next": self.next}
        if self.first is not None:
            position["first"] = self.first
        return position


@dataclass(slots=True)
class Offsets:
    """Positions of a query, by stream, and the offsets at which it began. `initial` if it has not begun.

    Attributes:
        lost: Numbers of messages that were removed before they were read, by stream, known when this was made.
        holder: Name under which tasks of the batch that ends here report other losses, None if they fail instead.
    """

    streams: dict[str, Position] = field(default_factory=dict)
    began: dict[str, int] = field(default_factory=dict)
    initial: bool = False
    lost: dict[str, int] = field(default_factory=dict)
    holder: str | None = None

    def to_json(self) -> dict[str, Document]:
        offset: dict[str, Document] = {
            "version": VERSION,
            "streams": {name: position.to_json() for name, position in sorted(self.streams.items())},
            "began": dict(sorted(self.began.items())),
        }
        if self.initial:
            offset["initial"] = True
        if self.lost:
            offset["lost"] = dict(sorted(self.lost.items()))
        if self.holder is not None:
            offset["holder"] = self.holder
        return offset

    def follows(self, other: Offsets) -> bool:
        """Return whether there are messages to read, lost messages or other streams since another offset."""
        return self.lost != other.lost or {name: (place.id, place.next) for name, place in self.streams.items()} != {
            name: (place.id, place.next) for name, place in other.streams.items()
        }


def from_json(value: Document) -> Offsets:
    """Parse a checkpoint offset. Raises OffsetError for one of another source or version."""
    try:
        if value["version"] != VERSION:
            raise OffsetError(
                f"the checkpoint has offsets of version {value['version']}; expected {VERSION}: another "
                "version of Leveret wrote it"
            )
        streams = {
            str(name): Position(str(position["id"]), int(position["next"]), position.get("first"))
            for name, position in value["streams"].items()
        }
        began = {str(name): int(offset) for name, offset in value["began"].items()}
        lost = {str(name): int(count) for name, count in value.get("lost", {}).items()}
        return Offsets(streams, began, bool(value.get("initial", False)), lost, value.get("holder"))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise OffsetError(
            f"the checkpoint's offsets are not those of streams: {str(value)[:200]}; expected the "
            "checkpoint of the same query"
        ) from None


def start_of(name: str, start: Offsets, end: Offsets) -> int:
    """Return where a batch begins in a stream.

    That is where the previous batch ended or, in the first batch, where the query began when the batch was planned. A
    stream that was found later begins where it was found.
    """
    position = start.streams.get(name)
    if position is None or start.initial:
        return end.began.get(name, position.next if position is not None else 0)
    return position.next
