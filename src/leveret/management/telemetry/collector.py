"""The collector: whether it accepts what is exported, and what is lost if it does not."""

from __future__ import annotations

import logging
import time
from typing import Final

import requests
from requests.adapters import HTTPAdapter

log = logging.getLogger("leveret.telemetry")

# Seconds between two log entries about lost spans.
_REPORT_INTERVAL: Final = 60.0

# Bytes of the body of an answer that are read.
MAX_ANSWER: Final = 64 << 10


class _BoundedAdapter(HTTPAdapter):
    """Reads no more than the start of an answer. The exporters would read all of it."""

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: float | tuple[float | None, float | None] | None = None,
        verify: bool | str = True,
        cert: str | tuple[str, str] | None = None,
        proxies: dict[str, str] | None = None,
    ) -> requests.Response:
        response = super().send(request, True, timeout, verify, cert, proxies)
        content = response.raw.read(MAX_ANSWER, decode_content=False)
        if len(content) == MAX_ANSWER:
            response.close()
        response._content = content
        return response


def make_session() -> requests.Session:
    """Return a session of an exporter."""
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, _BoundedAdapter())
    return session


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
