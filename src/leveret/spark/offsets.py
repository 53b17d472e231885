"""Offsets as Spark keeps them in a checkpoint.

    {"version": 1, "streams": {"orders-0": {"id": "...", "next": 17}}, "began": {"orders-0": 3}, "initial": true}

`next` is the offset of the next message to read, `id` that of the stream itself, which no other one ever had. `began` says
where the query began, so that the first batch can be planned again as it was: Spark asks for the initial offset anew each
time, and does not keep it. Only that one is marked as `initial`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from leveret.spark.errors import OffsetError

VERSION: Final = 1


@dataclass(slots=True)
class Place:
    """In one stream: its id, and the offset of the next message."""

    id: str
    next: int


@dataclass(slots=True)
class Offsets:
    """Where a query is in its streams, by their names; where it began in each; whether it has not begun."""

    streams: dict[str, Place] = field(default_factory=dict)
    began: dict[str, int] = field(default_factory=dict)
    initial: bool = False

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "version": VERSION,
            "streams": {name: {"id": place.id, "next": place.next} for name, place in sorted(self.streams.items())},
            "began": dict(sorted(self.began.items())),
        }
        if self.initial:
            made["initial"] = True
        return made

    @property
    def total(self) -> int:
        """Messages from the beginning to here."""
        return sum(place.next - self.began.get(name, place.next) for name, place in self.streams.items())


def from_json(value: Any) -> Offsets:
    """The offsets of a checkpoint. `OffsetError` for those of another source or version."""
    try:
        if value["version"] != VERSION:
            raise OffsetError(f"the checkpoint has offsets of version {value['version']}; expected {VERSION}: it was "
                              "written by another release of Leveret")
        streams = {str(name): Place(str(place["id"]), int(place["next"])) for name, place in value["streams"].items()}
        began = {str(name): int(offset) for name, offset in value["began"].items()}
        return Offsets(streams, began, bool(value.get("initial", False)))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise OffsetError(f"the checkpoint has offsets of something else than streams: {str(value)[:200]}; expected the "
                          "checkpoint of the same query") from None


def start_of(name: str, start: Offsets, end: Offsets) -> int:
    """Where a batch begins in a stream: where the one before ended, or, in the first batch, where the query began when
    this batch was planned. A stream that was found later begins where it was found to."""
    place = start.streams.get(name)
    if place is None or start.initial:
        return end.began.get(name, place.next if place is not None else 0)
    return place.next
