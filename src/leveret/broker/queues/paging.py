"""Paging of the entries of a queue between memory and the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer
    from leveret.broker.queues.loading import Waiting


class Paging:
    """The paging of a queue that keeps its entries in memory. A queue type with paging overrides the methods."""

    def memory(self) -> int:
        """Return the bytes of the entries in memory, if the queue counts them."""
        return 0

    def paged(self) -> tuple[int, int]:
        """Return the number of entries of which only the positions are in memory, and the bytes of their bodies."""
        return 0, 0

    # Page out

    def paged_memory(self) -> int:
        """Return the bytes that the paged-out entries would use in memory."""
        return 0

    def page_down(self, share: int) -> Iterator[int]:
        """If the queue has more than `share` bytes in memory, page out entries, in steps."""
        return iter(())

    def page_more(self) -> Iterator[int]:
        """Page out entries that were committed meanwhile, in steps."""
        return iter(())

    def is_active(self) -> bool:
        """Return whether entries of the queue are still to be paged out."""
        return False

    # Page in

    def must_load(self, audience: int = 0, scope: object | None = None) -> bool:
        """Return whether the next entry, as in `Queue.get`, exists but is not in memory.

        The caller calls `wait_loaded`, and `Queue.get` again when it is notified.
        """
        return False

    def is_loading_for(self, consumer: Consumer) -> bool:
        """Return whether entries that a consumer may want are being loaded."""
        return False

    def wait_loaded(self, waiting: Waiting) -> None:
        """Notify the caller when more entries are in memory, after `must_load` or `is_loading_for` returned True."""


# Also that of a deleted queue.
NO_PAGING: Final = Paging()
