"""All flows of a pipeline as one application: started again when they fail, and stopped in order.

A flow that fails is started again from its checkpoint after a pause that doubles; after too many failures in a row the
application ends with an error, and with it the other flows. Told to stop, each flow finishes the batch that it is at.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leveret.spark.errors import OptionError
from leveret.spark.finish import finish
from leveret.spark.pipeline import state as told
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.flow import Flow, start_flow
from leveret.spark.pipeline.model import Pipeline, Supervision
from leveret.spark.pipeline.state import FlowState, StateFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Seconds between two looks at the queries, and between two writes of the state.
LOOK = 0.2
WRITE = 1.0


class Supervisor:
    """Runs flows in a session until they are done or `stop` is called.

    echo  is called with each line of progress
    """

    def __init__(self, spark: SparkSession, pipeline: Pipeline, flows: dict[str, Flow], once: bool,
                 echo: Callable[[str], None]) -> None:
        self._pipeline = pipeline
        self._echo = echo
        self._stopping = threading.Event()
        self._running = [
            _Running(spark.newSession(), name, flow, pipeline, once, echo) for name, flow in flows.items()]
        self._file = StateFile(pipeline.directory, pipeline.name, spark.sparkContext.master or "")

    def stop(self) -> None:
        """End in order. From a handler of a signal or another thread."""
        self._stopping.set()

    def run(self) -> bool:
        """Until the end; whether it was a good one."""
        written = shown = 0.0
        state = told.RUNNING
        for running in self._running:
            running.start()
        while not self._stopping.is_set():
            for running in self._running:
                running.look()
            now = time.monotonic()
            if now - written >= WRITE:
                written = now
                self._write(told.RUNNING)
            if now - shown >= self._pipeline.supervision.progress:
                shown = now
                for running in self._running:
                    self._echo(running.line())
            if any(running.state.state == told.FAILED for running in self._running):
                state = told.FAILED
                break
            if all(running.state.state == told.FINISHED for running in self._running):
                state = told.FINISHED
                break
            self._stopping.wait(LOOK)
        self._end()
        if state == told.RUNNING:
            state = told.STOPPED
        self._write(state)
        return state != told.FAILED

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


# How `_reason` begins of what is wrong with options, and with names in them.
_REFUSED = f"{OptionError.__module__}.{OptionError.__name__}:"


class _Running:
    """One flow: its queries, and how often they have failed."""

    def __init__(self, spark: SparkSession, name: str, flow: Flow, pipeline: Pipeline, once: bool,
                 echo: Callable[[str], None]) -> None:
        self.name = name
        self.state = FlowState()
        self._spark = spark
        self._flow = flow
        self._pipeline = pipeline
        self._rules: Supervision = pipeline.supervision
        self._once = once
        self._echo = echo
        self._queries: list[StreamingQuery] = []
        self._failures = 0
        self._failed_at = 0.0
        self._again_at = 0.0

    def start(self) -> None:
        try:
            self._queries = start_flow(self._spark, self._flow, self._pipeline.broker,
                                       f"{self._pipeline.directory}/{self.name}", self._once)
            self.state.state = told.RUNNING
        except Exception as error:
            self._has_failed(error)

    def look(self) -> None:
        """Take the progress of the queries, and start again what has failed when it is time."""
        if self.state.state == told.WAITING:
            if time.monotonic() >= self._again_at:
                self.start()
            return
        if self.state.state != told.RUNNING:
            return
        self._take_progress()
        if self._failures and time.monotonic() - self._failed_at > self._rules.healthy:
            self._failures = 0
        for query in self._queries:
            if not query.isActive and (error := query.exception()) is not None:
                self._halt()
                self._has_failed(error)
                return
        if all(not query.isActive for query in self._queries):
            self._take_progress()
            self._finish()
            self.state.state = told.FINISHED if self._once else told.STOPPED

    def stop(self, deadline: float) -> None:
        """Let the batches that run come to their end, and stop the queries."""
        if self.state.state not in (told.RUNNING, told.WAITING):
            return
        batches = [_batch(query) for query in self._queries]
        while time.monotonic() < deadline and any(
                query.isActive and query.status["isTriggerActive"] and _batch(query) == batch
                for query, batch in zip(self._queries, batches, strict=True)):
            time.sleep(0.02)
        self._halt()
        self._take_progress()
        self._finish()
        self.state.state = told.STOPPED

    def line(self) -> str:
        state = self.state
        parts = [f"{self.name}: {state.state}", f"batch {state.batch}" if state.batch >= 0 else "no batch yet",
                 f"{state.rows:,} rows", f"{state.rows_per_second:,.0f} rows/s", f"{state.batch_ms} ms"]
        if state.lag is not None:
            parts.append(f"lag {state.lag:,}")
        if state.restarts:
            parts.append(f"{state.restarts} restarts")
        return ", ".join(parts)

    def _take_progress(self) -> None:
        # Progress is kept of so many batches that none is missed between two looks, but for very short ones.
        for progress in self._queries[0].recentProgress if self._queries else ():
            if int(progress["batchId"]) >= self.state.batch:
                self.state.take(progress)

    def _halt(self) -> None:
        for query in self._queries:
            try:
                query.stop()
            except Exception as error:
                self._echo(f"{self.name}: a query does not stop in order: {_first_line(error)}")

    def _finish(self) -> None:
        """Tell the broker of the last batches, which Spark itself would do at the next start."""
        for query in self._queries:
            try:
                finish(query)
            except Exception as error:
                self._echo(f"{self.name}: what was read last is not settled before the next start: {_first_line(error)}")

    def _has_failed(self, error: Exception) -> None:
        self._failures += 1
        self._failed_at = time.monotonic()
        self.state.error = _reason(error)
        self.state.updated = time.time()
        # Who takes what there is now, and has named something that is not, does not wait for it to come.
        refused = self._once and self.state.error.startswith(_REFUSED)
        if self._failures > self._rules.restarts or refused or isinstance(error, PipelineError):
            self.state.state = told.FAILED
            self._echo(f"{self.name}: failed: {self.state.error}")
            return
        pause = min(self._rules.backoff * 2 ** (self._failures - 1), self._rules.max_backoff)
        self._again_at = time.monotonic() + pause
        self.state.restarts += 1
        self.state.state = told.WAITING
        self._echo(f"{self.name}: failed, and starts again in {pause:g} s "
                   f"({self._failures} of {self._rules.restarts}): {self.state.error}")


def _batch(query: Any) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else error.__class__.__name__


def _reason(error: BaseException) -> str:
    """The part of a failure of Spark's that people can use: the last line of the Python exception within, if any."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for start in ("leveret.", "pyspark.errors.", "Caused by:"):
        for line in lines:
            if line.startswith(start):
                return line[:1000]
    return (lines[0] if lines else error.__class__.__name__)[:1000]
