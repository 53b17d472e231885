"""A set of waiters for the same condition."""

from __future__ import annotations

from leveret.client.engine.common.frontend import FrontEnd, Waiter
from leveret.client.engine.common.results import Result


class ErrorOnlyWaiter:
    """Waiter that passes on the failure of an operation, but not its result, which arrives in another message."""

    __slots__ = ("_waiter",)

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter

    def done(self) -> bool:
        return self._waiter.done()

    def set_result(self, result: Result, /) -> None:
        pass

    def set_exception(self, exception: BaseException, /) -> None:
        self._waiter.set_exception(exception)


class Waiters:
    """Waiters for one condition. Each caller has its own, so that a cancellation does not affect the others.

    Attributes:
        waiting: Waiters that have not been woken.
    """

    __slots__ = ("_frontend", "_prune_at", "waiting")

    def __init__(self, frontend: FrontEnd) -> None:
        self._frontend = frontend
        self.waiting: list[Waiter] = []
        self._prune_at = 16

    def new(self) -> Waiter:
        """Return a new waiter."""
        if len(self.waiting) >= self._prune_at:
            # Drop cancelled waiters; a caller that polls with a short timeout creates many of them.
            self.waiting = [waiter for waiter in self.waiting if not waiter.done()]
            self._prune_at = 16 + 2 * len(self.waiting)
        waiter: Waiter = self._frontend.new_waiter()
        self.waiting.append(waiter)
        return waiter

    def wake(self, error: BaseException | None = None) -> None:
        """Wake all waiters, with None or with an error."""
        # Replace the list last, so that an interrupt loses no waiter and a woken caller can wait again.
        waiting = self.waiting
        for waiter in waiting:
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)
        self.waiting = []
