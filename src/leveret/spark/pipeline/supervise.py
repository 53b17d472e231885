"""Runs all flows of a pipeline as one application: restarts flows that fail, and stops flows gracefully.

A failed flow is restarted from its checkpoint after a delay that doubles; after too many consecutive failures the
application ends with an error, and with it the other flows. When stopped, each flow completes its current batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from leveret.spark.errors import ConnectionRefused, DataLoss, OffsetError, OptionError
from leveret.spark.finish import finish
from leveret.spark.pipeline import state as states
from leveret.spark.pipeline.definition import Flow
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.flow import start_flow
from leveret.spark.pipeline.model import Pipeline, Supervision
from leveret.spark.pipeline.state import FlowState, StateFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Seconds between polls of the queries, and between writes of the status file.
POLL_INTERVAL = 0.2
STATE_INTERVAL = 1.0


class Supervisor:
    """Runs flows in a session until they are done or `stop` is called.

    Args:
        spark: The session.
        pipeline: The pipeline.
        flows: Its flows by name.
        once: Process what is available now, then stop.
        echo: Called with lines of progress.
    """

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, flows: dict[str, Flow], once: bool, echo: Callable[[str], None]
    ) -> None:
        self._pipeline = pipeline
        self._echo = echo
        self._stopping = threading.Event()
        self._running = [_RunningFlow(spark.newSession(), name, flow, pipeline, once, echo) for name, flow in flows.items()]
        self._file = StateFile(pipeline.directory, pipeline.name, spark.sparkContext.master or "")

    def stop(self) -> None:
        """Stop gracefully. May be called from a signal handler or another thread."""
        self._stopping.set()

    def run(self) -> bool:
        """Run until all flows have ended. Returns whether they succeeded."""
        written = shown = 0.0
        state = states.RUNNING
        for running in self._running:
            running.start()
        while not self._stopping.is_set():
            for running in self._running:
                running.poll()
            now = time.monotonic()
            if now - written >= STATE_INTERVAL:
                written = now
                self._write(states.RUNNING)
            if now - shown >= self._pipeline.supervision.progress:
                shown = now
                for running in self._running:
                    self._echo(running.line())
            if any(running.state.state == states.FAILED for running in self._running):
                state = states.FAILED
                break
            if all(running.state.state == states.FINISHED for running in self._running):
                state = states.FINISHED
                break
            self._stopping.wait(POLL_INTERVAL)
        self._end()
        if state == states.RUNNING:
            state = states.STOPPED
        self._write(state)
        return state != states.FAILED

    def _end(self) -> None:
        deadline = time.monotonic() + self._pipeline.supervision.stop_timeout
        threads = [threading.Thread(target=running.stop, args=(deadline,)) for running in self._running]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for running in self._running:
            self._echo(running.line())

    def _write(self, state: str) -> None:
        self._file.write(state, {running.name: running.state for running in self._running})


# Prefixes of `failure_reason` for errors that a restart repeats until the options or the broker's objects are changed.
_PERMANENT_ERRORS = tuple(
    f"{error.__module__}.{error.__name__}:" for error in (OptionError, OffsetError, DataLoss, ConnectionRefused)
)


class _RunningFlow:
    """One flow: its queries and failures."""

    def __init__(
        self, spark: SparkSession, name: str, flow: Flow, pipeline: Pipeline, once: bool, echo: Callable[[str], None]
    ) -> None:
        self.name = name
        self.state = FlowState()
        self._spark = spark
        self._flow = flow
        self._pipeline = pipeline
        self._supervision: Supervision = pipeline.supervision
        self._once = once
        self._echo = echo
        self._queries: list[StreamingQuery] = []
        self._failures = 0
        self._failed_at = 0.0
        self._restart_at = 0.0

    def start(self) -> None:
        try:
            self._queries = start_flow(
                self._spark, self._flow, self._pipeline.broker, f"{self._pipeline.directory}/{self.name}", self._once
            )
            self.state.state = states.RUNNING
        except Exception as error:
            self._record_failure(error)

    def poll(self) -> None:
        """Update the status from the queries, and restart a failed flow after its delay."""
        if self.state.state == states.WAITING:
            if time.monotonic() >= self._restart_at:
                self.start()
            return
        if self.state.state != states.RUNNING:
            return
        self._take_progress()
        if self._failures and time.monotonic() - self._failed_at > self._supervision.healthy:
            self._failures = 0
        # One look at each, because a query may fail between two.
        ended = [query for query in self._queries if not query.isActive]
        for query in ended:
            if (error := query.exception()) is not None:
                self._stop_queries()
                self._record_failure(error)
                return
        if len(ended) == len(self._queries):
            self._take_progress()
            self._finish()
            self.state.state = states.FINISHED if self._once else states.STOPPED

    def stop(self, deadline: float) -> None:
        """Wait for running batches until the deadline, and stop the queries."""
        if self.state.state not in (states.RUNNING, states.WAITING):
            return
        batches = [_batch(query) for query in self._queries]
        while time.monotonic() < deadline and any(
            query.isActive and query.status["isTriggerActive"] and _batch(query) == batch
            for query, batch in zip(self._queries, batches, strict=True)
        ):
            time.sleep(0.02)
        self._stop_queries()
        self._take_progress()
        self._finish()
        self.state.state = states.STOPPED

    def line(self) -> str:
        state = self.state
        parts = [
            f"{self.name}: {state.state}",
            f"batch {state.batch}" if state.batch >= 0 else "no batch yet",
            f"{state.rows:,} rows",
            f"{state.rows_per_second:,.0f} rows/s",
            f"{state.batch_ms} ms",
        ]
        if state.lag is not None:
            parts.append(f"lag {state.lag:,}")
        if state.restarts:
            parts.append(f"{state.restarts} restarts")
        return ", ".join(parts)

    def _take_progress(self) -> None:
        # Spark keeps enough progress reports that polls miss only some of very short batches.
        for progress in self._queries[0].recentProgress if self._queries else ():
            if int(progress["batchId"]) >= self.state.batch:
                self.state.update(progress)

    def _stop_queries(self) -> None:
        for query in self._queries:
            try:
                query.stop()
            except Exception as error:
                self._echo(f"{self.name}: a query could not be stopped: {_first_line(error)}")

    def _finish(self) -> None:
        """Commit the last batches to the sources, which Spark would only do at the next start."""
        for query in self._queries:
            try:
                finish(query)
            except Exception as error:
                self._echo(f"{self.name}: the last batch is only committed at the next start: {_first_line(error)}")

    def _record_failure(self, error: Exception) -> None:
        self._failures += 1
        self._failed_at = time.monotonic()
        self.state.error = failure_reason(error)
        self.state.updated = time.time()
        # With `once`, a flow does not wait until a missing queue or user is created.
        permanent = self._once and self.state.error.startswith(_PERMANENT_ERRORS)
        if self._failures > self._supervision.restarts or permanent or isinstance(error, PipelineError):
            self.state.state = states.FAILED
            self._echo(f"{self.name}: failed: {self.state.error}")
            return
        delay = min(self._supervision.backoff * 2 ** (self._failures - 1), self._supervision.max_backoff)
        self._restart_at = time.monotonic() + delay
        self.state.restarts += 1
        self.state.state = states.WAITING
        self._echo(
            f"{self.name}: failed, restarting in {delay:g} s "
            f"({self._failures} of {self._supervision.restarts}): {self.state.error}"
        )


def _batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else error.__class__.__name__


def failure_reason(error: BaseException) -> str:
    """Return the useful line of a Spark failure: the last line of the Python exception in it, if any."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling "):
        # Py4J's name of the call, then ": " and the exception of the JVM.
        lines[:2] = [lines[1].removeprefix(": ")]
    for start in ("leveret.", "pyspark.errors.", "Caused by:"):
        for line in lines:
            if line.startswith(start):
                return line[:1000]
    return (lines[0] if lines else error.__class__.__name__)[:1000]
