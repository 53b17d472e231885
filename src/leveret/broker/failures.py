"""Exceptions of repeated work: logged at most once a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

# Seconds between two entries in the log about the same work.
REPORT_INTERVAL: Final = 60.0


class Failures:
    """Logs the exceptions of one piece of work: the first with its traceback, then at most one a minute.

    what   name of the work in log lines
    count  number of exceptions
    clock  seconds of a monotonic clock
    """

    def __init__(self, log: logging.Logger, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.what = what
        self.count = 0
        self._log = log
        self._clock = clock
        self._unreported = 0
        self._report_due = 0.0

    def report(self, error: BaseException) -> None:
        """Count an exception, and log it unless another one was logged within the last minute."""
        self.count += 1
        self._unreported += 1
        now = self._clock()
        if self.count > 1 and now < self._report_due:
            return
        self._report_due = now + REPORT_INTERVAL
        more = f" ({self._unreported} times since the last entry)" if self._unreported > 1 else ""
        self._unreported = 0
        self._log.error(
            "%s failed and will be retried%s: %s: %s", self.what, more, type(error).__name__, error, exc_info=error
        )
