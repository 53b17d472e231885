"""Offsets of a query that reads a queue by a lease, as Spark keeps them in a checkpoint.

    {"version": 1, "lease": "name", "queue": "orders", "batch": 17, "count": 1000}

`batch` is the number of the last batch of the broker that is read, `count` how many messages it had.
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
    """`OffsetError` for offsets of something else."""
    try:
        if value["version"] != VERSION:
            raise OffsetError(f"the checkpoint has offsets of version {value['version']}; expected {VERSION}: it was "
                              "written "
                              "by another release of Leveret")
        return LeaseOffset(str(value["lease"]), str(value["queue"]), int(value["batch"]), int(value["count"]))
    except (KeyError, TypeError, ValueError):
        raise OffsetError(f"the checkpoint has offsets of something else than a lease: {str(value)[:200]}; expected "
                          "the "
                          "checkpoint of the same query") from None
