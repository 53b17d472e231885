"""The sinks: `write` and `writeStream` of the data source."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from leveret.spark.connection import ControlClient
from leveret.spark.errors import RequestRefused, SparkError
from leveret.spark.options import Settings
from leveret.spark.sink.plan import DEAD_LETTER, EXACTLY_ONCE, SinkPlan, plan_sink
from leveret.spark.sink.schema import check_schema
from leveret.spark.sink.task import Counts, Written, resolve_guarantee, write_task
from leveret.spark.task_input import InTask

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log: Final = logging.getLogger("leveret.spark.sink")

# Seconds for a commit: to wait for an unreachable broker, and for the request.
COMMIT_RECONNECT_TIMEOUT: Final = 120.0
COMMIT_TIMEOUT: Final = 600.0


def stream_writer(settings: Settings, schema: StructType, overwrite: bool) -> AmqpStreamWriter:
    """Create the writer of a micro-batch. Raises OptionError or SchemaError for a write that is not possible."""
    check_schema(schema, settings)
    return AmqpStreamWriter(plan_sink(settings, True, overwrite))


def batch_writer(settings: Settings, schema: StructType, overwrite: bool) -> AmqpBatchWriter:
    """Like `stream_writer`, for a batch write. Asks the broker for the last write and refuses older versions."""
    check_schema(schema, settings)
    plan = plan_sink(settings, False, overwrite)
    if plan.app is None:
        return AmqpBatchWriter(plan)
    control = ControlClient(plan.endpoint)
    try:
        guarantee = resolve_guarantee(plan, plan.app, control)
        plan = replace(plan, guarantee=guarantee)
        if guarantee != EXACTLY_ONCE:
            return AmqpBatchWriter(plan)
        last = control.request("stage.last", app=plan.app).get("batch")
        version = plan.version
        assert version is not None
        if last is not None and version < last:
            raise SparkError(
                f"option txnVersion: {version} of txnAppId {plan.app!r} is lower than {last}, which was "
                f"already written; expected a higher version, or {last} to repeat that write"
            )
        if last is not None and version == last:
            log.warning("txnVersion %d of txnAppId %r was already written; publishing nothing", version, plan.app)
            plan = replace(plan, written=True)
        return AmqpBatchWriter(plan)
    finally:
        control.close()


class AmqpBatchWriter(InTask, DataSourceArrowWriter):
    """A batch write, possibly inside `foreachBatch`."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Run in each task."""
        return write_task(self.plan, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Run in the driver when all tasks have succeeded."""
        commit(self.plan, messages, self.plan.version)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Run in the driver when a task has failed."""
        abort(self.plan, messages)


class AmqpStreamWriter(InTask, DataSourceStreamArrowWriter):
    """The micro-batches of a `writeStream`."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Run in each task."""
        return write_task(self.plan, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Run in the driver when all tasks have succeeded; again for a replayed batch."""
        commit(self.plan, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Run in the driver when a task has failed."""
        abort(self.plan, messages)


def commit(plan: SinkPlan, messages: Sequence[WriterCommitMessage | None], batch: int | None) -> Counts:
    """Commit the sink transactions of all tasks atomically. Returns the counts of the write, which are also logged."""
    written = _written(messages)
    if len(written) != len(messages):
        raise SparkError("a task of the write returned no commit message; nothing was committed")
    counts = Counts()
    for one in written:
        counts.add(one.counts)
    transactions = [
        one.transaction for one in sorted(written, key=lambda one: one.partition) if one.transaction is not None
    ]
    if transactions:
        app = next(one.app for one in written if one.transaction is not None)
        assert app is not None and batch is not None
        unroutable = _commit_transactions(plan, app, batch, transactions)
        counts.published -= unroutable
        if plan.on_unroutable == DEAD_LETTER:
            counts.unroutable_dead_lettered += unroutable
        else:
            counts.unroutable_dropped += unroutable
    level = logging.WARNING if counts.lost else logging.INFO
    log.log(
        level,
        "sink %s, batch %s: %s",
        plan.sink_name or plan.endpoint,
        batch,
        ", ".join(f"{getattr(counts, one.name)} {one.name}" for one in fields(counts) if getattr(counts, one.name))
        or "no rows",
    )
    return counts


def abort(plan: SinkPlan, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Abort the sink transactions of the tasks. If the request fails, the broker aborts them later."""
    transactions = [one.transaction for one in _written(messages) if one.transaction is not None]
    if transactions:
        _abort_transactions(ControlClient(plan.endpoint, reconnect_timeout=0.0), transactions)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


def _commit_transactions(plan: SinkPlan, app: str, batch: int, transactions: list[str]) -> int:
    """Commit sink transactions. Returns the number of unroutable messages."""
    control = ControlClient(plan.endpoint, reconnect_timeout=COMMIT_RECONNECT_TIMEOUT)
    dead_letter = plan.on_unroutable == DEAD_LETTER
    try:
        reply = control.request(
            "stage.promote",
            within=COMMIT_TIMEOUT,
            app=app,
            batch=batch,
            stages=transactions,
            on_unroutable=plan.on_unroutable,
            dead_letter_exchange=(plan.dead_letter_exchange or "") if dead_letter else None,
            dead_letter_routing_key=plan.dead_letter_routing_key if dead_letter else None,
        )
        if reply.get("already"):
            # The tasks of a replayed batch opened new sink transactions.
            _abort_transactions(control, transactions)
            return 0
        return int(reply.get("unroutable", 0))
    except RequestRefused as error:
        _abort_transactions(control, transactions)
        raise SparkError(
            f"batch {batch} of {app!r} was not committed, and none of it is visible: {error} (if a row is "
            "unroutable, see option onUnroutable; if the batch is older than the last one, the checkpoint is "
            "outdated, or two queries write under one name: see options sinkName, txnAppId)"
        ) from None
    finally:
        control.close()


def _abort_transactions(control: ControlClient, transactions: list[str]) -> None:
    try:
        control.request("stage.discard", within=10.0, stages=transactions)
    except SparkError as error:
        log.info("sink transactions could not be aborted: %s", error)
