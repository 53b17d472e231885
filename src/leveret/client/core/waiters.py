"""Everybody who waits for the same thing. Each has a waiter of its own: one that gives up must not end the others'."""

from __future__ import annotations

from leveret.client.core.frontend import FrontEnd, Waiter


class Waiters:
    """`waiting` is empty while nobody waits."""

    __slots__ = ("_frontend", "_prune_at", "waiting")

    def __init__(self, frontend: FrontEnd) -> None:
        self._frontend = frontend
        self.waiting: list[Waiter] = []
        self._prune_at = 16

    def new(self) -> Waiter:
        if len(self.waiting) >= self._prune_at:
            # Those who gave up, which may be many where somebody asks again and again for a short time.
            self.waiting = [waiter for waiter in self.waiting if not waiter.done()]
            self._prune_at = 16 + 2 * len(self.waiting)
        waiter: Waiter = self._frontend.new_waiter()
        self.waiting.append(waiter)
        return waiter

    def wake(self, error: BaseException | None = None) -> None:
        """All of them, with None or an error."""
        # Nobody is forgotten whatever interrupts it, and who is woken may wait anew.
        waiting = self.waiting
        for waiter in waiting:
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)
        self.waiting = []
