"""Checkpoint offsets of a query that reads streams.

    {"version": 1, "streams": {"orders-0": {"id": "...", "next": 17}}, "began": {"orders-0": 3}, "initial": true}

`next` is the offset of the next message to read, and `id` is unique to the stream. `began` has the offsets at which the
query began, so that the first batch can be planned again identically: Spark asks for the initial offset at each start and
does not store it. Only the initial offset is marked as `initial`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from leveret.segments.typed_json import Document
from leveret.spark.errors import OffsetError

VERSION: Final = 1


@dataclass(slots=True)
class Position:
    """Position in one stream: its id, and the offset of the next message."""

    id: str
    next: int


@dataclass(slots=True)
class Offsets:
    """Positions of a query, by stream, and the offsets at which it began. `initial` if it has not begun."""

    streams: dict[str, Position] = field(default_factory=dict)
    began: dict[str, int] = field(default_factory=dict)
    initial: bool = False

    def to_json(self) -> dict[str, Document]:
        offset: dict[str, Document] = {
            "version": VERSION,
            "streams": {
                name: {"id": position.id, "next": position.next} for name, position in sorted(self.streams.items())
            },
            "began": dict(sorted(self.began.items())),
        }
        if self.initial:
            offset["initial"] = True
        return offset

    @property
    def total(self) -> int:
        """The number of messages from the beginning to here."""
        return sum(position.next - self.began.get(name, position.next) for name, position in self.streams.items())


def from_json(value: Document) -> Offsets:
    """Parse a checkpoint offset. Raises OffsetError for one of another source or version."""
    try:
        if value["version"] != VERSION:
            raise OffsetError(
                f"the checkpoint has offsets of version {value['version']}; expected {VERSION}: another "
                "version of Leveret wrote it"
            )
        streams = {
            str(name): Position(str(position["id"]), int(position["next"])) for name, position in value["streams"].items()
        }
        began = {str(name): int(offset) for name, offset in value["began"].items()}
        return Offsets(streams, began, bool(value.get("initial", False)))
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
