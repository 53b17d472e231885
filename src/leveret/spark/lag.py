"""The lag of queries: how far they are behind the ends of the streams and queues that they read.

A listener keeps the end offsets in the progress reports of queries, and asks the broker for the lag when it is wanted. So
the lag of a query that hangs, and reports no progress, increases.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from leveret.segments.typed_json import Document
from leveret.spark.connection import ControlClient, endpoint_of
from leveret.spark.data_source import INITIAL_CONNECT_TIMEOUT
from leveret.spark.errors import OffsetError, OptionError, RequestRefused, SparkError
from leveret.spark.lease import reader as lease_reader
from leveret.spark.options import option_texts, read_options
from leveret.spark.source import offsets as stream_offsets

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from leveret.spark.lag_exporter import Exporter

logger = logging.getLogger("leveret.spark")

DEFAULT_INTERVAL: Final = 60.0
_NOT_FOUND: Final = "not-found"


@dataclass(frozen=True, slots=True)
class QueryLag:
    """The lag of a query on one stream or queue.

    Attributes:
        query_id: Id of the query, the same after a restart.
        query: Name of the query, or an empty string.
        source: Number of the source in the query, from 0.
        queue: Name of the stream or queue.
        messages: Messages that the query has not processed.
        bytes: Bytes of their bodies; inside a sealed segment in proportion to the messages.
        seconds: Time since the oldest of these messages was appended to the stream, 0 if there is none. For a queue, the
            minimum age that the broker knows, None if it knows none.
    """

    query_id: str
    query: str
    source: int
    queue: str
    messages: int
    bytes: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class _Query:
    """A running query: its id and name, and the offsets that its sources have processed, by number."""

    id: str
    name: str
    offsets: dict[int, Document]


class LagListener(StreamingQueryListener):
    """Measures how far the queries of a session are behind the streams and queues of a broker.

    Add it with `spark.streams.addListener(...)` before the queries start. It covers the queries that have processed a batch
    since, until they end.

    Args:
        callback: Called with the lags at each interval, in a thread of the listener.
        interval: Seconds between reports: log records of the logger `leveret.spark`, and calls of `callback`.
        port: Port of an HTTP endpoint for Prometheus, 0 for any free one; None for no endpoint. Needs `prometheus-client`.
        host: Address of the endpoint.
        **options: Options of the data source that select and log in to the broker, such as `url`.

    Attributes:
        port: Port of the endpoint, None without one.

    Raises:
        OptionError: An option is invalid, or `prometheus-client` is not installed.
        OSError: The port is in use.
    """

    def __init__(
        self,
        *,
        callback: Callable[[list[QueryLag]], None] | None = None,
        interval: float = DEFAULT_INTERVAL,
        port: int | None = None,
        host: str = "127.0.0.1",
        **options: object,
    ) -> None:
        if interval <= 0:
            raise OptionError(f"interval: {interval} is not positive; expected seconds")
        endpoint = endpoint_of(read_options(option_texts(options)))
        self._control = ControlClient(endpoint, "leveret-spark lag", INITIAL_CONNECT_TIMEOUT)
        self._callback = callback
        self._interval = interval
        self._queries: dict[str, _Query] = {}
        # Guards the queries, and separately the connection, whose requests take longer.
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._closed = threading.Event()
        self._exporter: Exporter | None = None
        self.port: int | None = None
        if port is not None:
            self._exporter = _export(self.lag, host, port)
            self.port = self._exporter.port
        threading.Thread(target=self._report_repeatedly, name="leveret-spark-lag", daemon=True).start()

    def lag(self) -> list[QueryLag]:
        """Ask the broker for the lag of all queries now, by query, source and stream. May be called from any thread.

        Streams and queues that do not exist at this broker are omitted.

        Raises:
            BrokerUnreachable, RequestRefused: The broker does not answer, or refuses the user.
            OptionError: A file cannot be read, such as that with the password.
        """
        with self._lock:
            queries = [_Query(query.id, query.name, dict(query.offsets)) for query in self._queries.values()]
        with self._asking:
            found = [lag for query in queries for lag in self._lag_of(query)]
        return sorted(found, key=lambda lag: (lag.query, lag.query_id, lag.source, lag.queue))

    def close(self) -> None:
        """Stop the reports and the endpoint, and close the connection."""
        self._closed.set()
        if self._exporter is not None:
            self._exporter.close()
        with self._asking:
            self._control.close()

    def _lag_of(self, query: _Query) -> Iterator[QueryLag]:
        for number, offset in sorted(query.offsets.items()):
            for queue, reply in self._ask(offset):
                yield QueryLag(
                    query.id, query.name, number, queue, int(reply["lag"]), int(reply["bytes"]), reply["seconds"]
                )

    def _ask(self, offset: Document) -> Iterator[tuple[str, Mapping[str, Document]]]:
        """Yield the streams, or the queue, of an offset with the lag of a reader there."""
        if "lease" in offset:
            leased = lease_reader.from_json(offset)
            reply = self._request("lease.lag", queue=leased.queue, lease=leased.lease, after=leased.batch)
            if reply is not None:
                yield leased.queue, reply
            return
        for name, position in stream_offsets.from_json(offset).streams.items():
            reply = self._request("stream.lag", stream=name, offset=position.next)
            if reply is not None and reply["id"] == position.id:
                yield name, reply

    def _request(self, operation: str, **arguments: Document) -> dict[str, Document] | None:
        try:
            return self._control.request(operation, **arguments)
        except RequestRefused as error:
            if error.condition == _NOT_FOUND:
                return None
            raise

    def _report_repeatedly(self) -> None:
        while not self._closed.wait(self._interval):
            try:
                self._report(self.lag())
            except SparkError as error:
                logger.warning("the lag of queries is unknown: %s", error)
            except Exception:
                logger.exception("the lag of queries cannot be reported")

    def _report(self, lags: list[QueryLag]) -> None:
        for lag in lags:
            logger.info(
                "query %s: queue '%s' has %d messages (%d bytes) that it has not processed, the oldest one %s old",
                lag.query or lag.query_id,
                lag.queue,
                lag.messages,
                lag.bytes,
                "an unknown time" if lag.seconds is None else f"{lag.seconds:.1f} s",
            )
        if self._callback is not None:
            self._callback(lags)

    # Events of queries

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        with self._lock:
            self._queries[str(event.runId)] = _Query(str(event.id), event.name or "", {})

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        with self._lock:
            query = self._queries.setdefault(str(progress.runId), _Query(str(progress.id), progress.name or "", {}))
            for number, source in enumerate(progress.sources):
                offset = _offset_of(source.endOffset)
                if offset is not None:
                    query.offsets[number] = offset

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._lock:
            self._queries.pop(str(event.runId), None)


def _offset_of(text: str | None) -> Document:
    """Return an end offset of this data source; None for that of another one, and without an offset."""
    with suppress(ValueError, TypeError):
        offset = json.loads(text or "null")
        parse = lease_reader.from_json if isinstance(offset, dict) and "lease" in offset else stream_offsets.from_json
        with suppress(OffsetError):
            parse(offset)
            return offset
    return None


def _export(lag: Callable[[], list[QueryLag]], host: str, port: int) -> Exporter:
    try:
        from leveret.spark.lag_exporter import Exporter
    except ImportError as error:
        raise OptionError(f"port: the endpoint needs prometheus-client (pip install prometheus-client): {error}") from None
    return Exporter(lag, host, port)
