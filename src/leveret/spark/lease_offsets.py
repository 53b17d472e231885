"""Checkpoint offsets of a query that reads a queue with a lease.

    {"version": 1, "lease": "name", "queue": "orders", "batch": 17, "count": 1000}

`batch` is the broker's number of the last lease batch that was read, `count` the number of its messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from leveret.spark.errors import OffsetError

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class LeaseOffset:
    lease: str
    queue: str
    batch: int
    count: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, "lease": self.lease, "queue": self.queue, "batch": self.batch, "count": self.count}


def from_json(value: Any) -> LeaseOffset:
    """Parse an offset. Raises OffsetError if it is not one of a lease."""
    try:
        if value["version"] != VERSION:
            raise OffsetError(f"the checkpoint has offsets of version {value['version']}; expected {VERSION}: another "
                              "version of Leveret has written it")
        return LeaseOffset(str(value["lease"]), str(value["queue"]), int(value["batch"]), int(value["count"]))
    except (KeyError, TypeError, ValueError):
        raise OffsetError(f"the checkpoint's offsets are not those of a lease: {str(value)[:200]}; expected the "
                          "checkpoint of the same query") from None
