"""The collector: whether it accepts what is exported, and what is lost if it does not."""

from __future__ import annotations

import logging
import time
from typing import Final

log = logging.getLogger("leveret.telemetry")

# Seconds between two log entries about lost spans.
_REPORT_INTERVAL: Final = 60.0


class _LastError(logging.Handler):
    """The last message of the exporters, which log each failure."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class Collector:
    """The state of the collector at a URL. Only changes are logged.

    Attributes:
        lost: Spans that were not exported since the start of the process.
    """

    def __init__(self, endpoint: str) -> None:
        self.lost = 0
        self._endpoint = endpoint
        self._accepts = True
        self._lost_before = 0
        self._reported_at = -_REPORT_INTERVAL
        self._error = _LastError()
        exporters = logging.getLogger("opentelemetry")
        exporters.handlers = [self._error]
        exporters.propagate = False

    def note(self, accepted: bool) -> None:
        """Note whether the collector accepted an export."""
        if accepted == self._accepts:
            return
        self._accepts = accepted
        if accepted:
            log.info("the collector at %s answers again; %d spans were lost", self._endpoint, self.lost - self._lost_before)
            return
        self._lost_before = self.lost
        log.warning(
            "cannot export to the collector at %s, spans are lost until it answers: %s; the setting is"
            " telemetry.otlp_endpoint",
            self._endpoint,
            self._error.text or "no reason given",
        )

    def lose(self, count: int) -> None:
        """Count lost spans."""
        self.lost += count
        now = time.monotonic()
        if self._accepts and now - self._reported_at >= _REPORT_INTERVAL:
            self._reported_at = now
            log.warning("%d spans are lost: there are more than can be exported; reduce telemetry.sample", count)
