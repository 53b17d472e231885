"""Paging of a classic queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leveret.broker.queues.classic.ready_list import PAGE_WORK
from leveret.broker.queues.paging import Paging

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer
    from leveret.broker.queues.classic.queue import ClassicQueue
    from leveret.broker.queues.loading import Waiting


class ClassicPaging(Paging):
    """The paging of one classic queue."""

    def __init__(self, queue: ClassicQueue) -> None:
        self.queue = queue

    def memory(self) -> int:
        return self.queue.ready.memory

    def paged(self) -> tuple[int, int]:
        count, size = self.queue.ready.paged_figures()
        delays, leases = self.queue.delays, self.queue.leases
        if delays is not None:
            count += delays.paged_count
            size += delays.paged_bytes
        if leases is not None:
            count += leases.count
            size += leases.bytes
        return count, size

    def paged_memory(self) -> int:
        return self.queue.ready.paged_memory

    def page_down(self, share: int) -> Iterator[int]:
        if self.queue.pageable:
            yield from self._page_delayed()
            yield from self.queue.ready.page_down(self.queue, share)

    def page_more(self) -> Iterator[int]:
        yield from self.queue.ready.page_more()
        yield from self._page_delayed()

    def _page_delayed(self) -> Iterator[int]:
        delays = self.queue.delays
        if delays is not None:
            yield 1 + PAGE_WORK * delays.page()

    def is_active(self) -> bool:
        delays = self.queue.delays
        return self.queue.ready.is_paging() or (delays is not None and bool(delays.recent))

    def must_load(self, audience: int = 0, scope: object | None = None) -> bool:
        return not self.queue.paused and self.queue.dispatcher.must_load(self.queue, audience, scope)

    def is_loading_for(self, consumer: Consumer) -> bool:
        queue = self.queue
        if queue.ready.unindexed:
            return True
        if consumer.seen is not None:
            return queue.browsing.is_reading(consumer)
        if consumer.apart:
            return queue.leases is not None and queue.leases.is_reading(consumer)
        if consumer.selective and queue.ready.is_loading():
            return True
        return self.must_load()

    def wait_loaded(self, waiting: Waiting) -> None:
        self.queue.dispatcher.wait_loaded(waiting)
