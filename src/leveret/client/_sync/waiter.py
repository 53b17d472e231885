"""A waiter for threads."""

from __future__ import annotations

import _thread

from leveret.client.engine.common.results import Result
from leveret.client.errors import Error, copy_error


class ThreadWaiter:
    """A result that is set once, under the connection's lock.

    Attributes:
        result: The result; None before it is set.
        sleeper: Lock that the waiting thread sleeps on; None if it is awake, as the leader is.
    """

    __slots__ = ("_done", "_error", "result", "sleeper")

    def __init__(self) -> None:
        self._done = False
        self.result: Result = None
        self._error: BaseException | None = None
        self.sleeper: _thread.LockType | None = None

    def done(self) -> bool:
        """Whether the result or an exception is set."""
        return self._done

    def set_result(self, result: Result, /) -> None:
        """Set the result, and wake the waiting thread."""
        self.result = result
        self._done = True
        if self.sleeper is not None:
            wake(self.sleeper)

    def set_exception(self, exception: BaseException, /) -> None:
        """Set an exception, and wake the waiting thread."""
        self._error = exception
        self._done = True
        if self.sleeper is not None:
            wake(self.sleeper)

    def abandon(self) -> None:
        """Mark the waiter as done: its caller has stopped waiting."""
        self._done = True

    def get(self) -> Result:
        """Return the result of a done waiter, or raise a copy of its exception, which several threads may share."""
        if self._error is not None:
            raise copy_error(self._error) if isinstance(self._error, Error) else self._error
        return self.result


def wake(sleeper: _thread.LockType) -> None:
    """Wake the thread that sleeps on this lock, if it has not been woken."""
    if sleeper.locked():
        sleeper.release()
