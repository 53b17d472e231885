"""Return of leased entries to their old places in the queue, once the return is on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.log import CommitWaiter
from leveret.broker.queues.classic.backlog import Chunk

if TYPE_CHECKING:
    from leveret.broker.leases.leases import Leases


class Return(CommitWaiter):
    """Positions that are being returned, in pieces with their priorities."""

    def __init__(self, leases: Leases, pieces: list[tuple[int, Chunk]]) -> None:
        self.leases = leases
        self.pieces = pieces

    def committed(self, batch: int) -> None:
        self.leases.returned(self)
