"""The result of something that takes time, for threads."""

from __future__ import annotations

import _thread
from typing import Any

from leveret.client.errors import Error, copy_error


class BlockingWaiter:
    """Set once, under the connection's lock. `sleeper` is a lock that the thread which waits for it sleeps on, if it
    sleeps; who leads the reading does not."""

    __slots__ = ("_done", "_error", "result", "sleeper")

    def __init__(self) -> None:
        self._done = False
        self.result: Any = None
        self._error: BaseException | None = None
        self.sleeper: _thread.LockType | None = None

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Any, /) -> None:
        self.result = result
        self._done = True
        if self.sleeper is not None:
            wake(self.sleeper)

    def set_exception(self, exception: BaseException, /) -> None:
        self._error = exception
        self._done = True
        if self.sleeper is not None:
            wake(self.sleeper)

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        self._done = True

    def get(self) -> Any:
        """The result, once it is done. Raises a copy of its exception, which others may be raising, too."""
        if self._error is not None:
            raise copy_error(self._error) if isinstance(self._error, Error) else self._error
        return self.result


def wake(sleeper: _thread.LockType) -> None:
    """End the sleep on this lock; somebody may have done so before."""
    if sleeper.locked():
        sleeper.release()
