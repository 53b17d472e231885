"""An HTTP endpoint for Prometheus with the lag of queries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from leveret.spark.errors import SparkError

if TYPE_CHECKING:
    from leveret.spark.lag import QueryLag

logger = logging.getLogger("leveret.spark")

_PREFIX: Final = "leveret_spark_lag_"
_LABELS: Final = ("query_id", "query", "source", "queue")


class Exporter(Collector):
    """Serves `/metrics` in threads of its own.

    Args:
        lag: Returns the lag of all queries.
        host: The address.
        port: The port, 0 for any free one.

    Attributes:
        port: The port.
    """

    def __init__(self, lag: Callable[[], list[QueryLag]], host: str, port: int) -> None:
        self._lag = lag
        registry = CollectorRegistry()
        registry.register(self)
        self._server, self._thread = start_http_server(port, host, registry)
        self.port = int(self._server.server_port)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of a scrape."""
        lags: list[QueryLag] = []
        known = True
        try:
            lags = self._lag()
        except SparkError as error:
            known = False
            logger.warning("a scrape has no lag of queries: %s", error)
        yield GaugeMetricFamily(f"{_PREFIX}known", "Whether the broker has reported the lag for this scrape", float(known))
        messages = GaugeMetricFamily(f"{_PREFIX}messages", "Messages that the query has not processed", labels=_LABELS)
        size = GaugeMetricFamily(f"{_PREFIX}bytes", "Bytes of the bodies of these messages", labels=_LABELS)
        age = GaugeMetricFamily(f"{_PREFIX}seconds", "Age of the oldest of these messages, 0 for none", labels=_LABELS)
        for lag in lags:
            labels = (lag.query_id, lag.query, str(lag.source), lag.queue)
            messages.add_metric(labels, lag.messages)
            size.add_metric(labels, lag.bytes)
            if lag.seconds is not None:
                age.add_metric(labels, lag.seconds)
        yield from (messages, size, age)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
