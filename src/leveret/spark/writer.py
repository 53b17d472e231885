"""The sinks: `write` and `writeStream` of the data source."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from leveret.spark.connection import ControlClient
from leveret.spark.errors import RequestRefused, SparkError
from leveret.spark.options import Settings
from leveret.spark.sink_plan import DEAD_LETTER, EXACTLY_ONCE, SinkPlan, plan_sink
from leveret.spark.sink_schema import check_schema
from leveret.spark.sink_task import Counts, Written, decide, write_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log: Final = logging.getLogger("leveret.spark.sink")

# Seconds for a promotion: for the broker to come back while it goes on, and for all messages to be moved.
PROMOTING: Final = 120.0
LONGEST: Final = 600.0


def stream_writer(settings: Settings, schema: StructType, overwrite: bool) -> AmqpStreamWriter:
    """`OptionError` or `SchemaError` for what cannot be written. Made anew for every micro-batch."""
    check_schema(schema, settings)
    return AmqpStreamWriter(plan_sink(settings, True, overwrite))


def batch_writer(settings: Settings, schema: StructType, overwrite: bool) -> AmqpBatchWriter:
    """As `stream_writer`. Asks the broker whether the write was done before, and refuses one that is behind that."""
    check_schema(schema, settings)
    plan = plan_sink(settings, False, overwrite)
    if plan.app is None:
        return AmqpBatchWriter(plan)
    control = ControlClient(plan.endpoint)
    try:
        guarantee = decide(plan, plan.app, control)
        plan = replace(plan, guarantee=guarantee)
        if guarantee != EXACTLY_ONCE:
            return AmqpBatchWriter(plan)
        last = control.request("stage.last", app=plan.app).get("batch")
        version = plan.version
        assert version is not None
        if last is not None and version < last:
            raise SparkError(f"option txnVersion: {version} of txnAppId {plan.app!r} is behind {last}, which was written "
                             "before; expected a greater one, or the same to repeat it")
        if last is not None and version == last:
            log.warning("txnVersion %d of txnAppId %r was written before; nothing is published", version, plan.app)
            plan = replace(plan, written=True)
        return AmqpBatchWriter(plan)
    finally:
        control.close()


class AmqpBatchWriter(DataSourceArrowWriter):
    """A batch write, or one of `foreachBatch`."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return write_task(self.plan, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver, when all tasks have succeeded."""
        commit(self.plan, messages, self.plan.version)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver, when a task has failed."""
        abort(self.plan, messages)


class AmqpStreamWriter(DataSourceStreamArrowWriter):
    """The micro-batches of a `writeStream`."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return write_task(self.plan, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver, when all tasks have succeeded; again for a batch that is replayed."""
        commit(self.plan, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver, when a task has failed."""
        abort(self.plan, messages)


def commit(plan: SinkPlan, messages: Sequence[Any], batch: int | None) -> Counts:
    """Make what the tasks have staged visible, as one. The counts of the write, which are logged, too."""
    written = _written(messages)
    if len(written) != len(messages):
        raise SparkError("a task of a write that is committed has left no message; nothing was promoted")
    counts = Counts()
    for one in written:
        counts.add(one.counts)
    stages = [one.stage for one in sorted(written, key=lambda one: one.partition) if one.stage is not None]
    if stages:
        app = next(one.app for one in written if one.stage is not None)
        assert app is not None and batch is not None
        unroutable = _promote(plan, app, batch, stages)
        counts.published -= unroutable
        if plan.on_unroutable == DEAD_LETTER:
            counts.unroutable_dead_lettered += unroutable
        else:
            counts.unroutable_dropped += unroutable
    level = logging.WARNING if counts.lost else logging.INFO
    log.log(level, "sink %s, batch %s: %s", plan.sink_name or plan.endpoint, batch,
            ", ".join(f"{getattr(counts, one.name)} {one.name}" for one in fields(counts) if getattr(counts, one.name))
            or "no rows")
    return counts


def abort(plan: SinkPlan, messages: Sequence[Any]) -> None:
    """Drop what the tasks have staged. Where this fails, the broker does it in time."""
    stages = [one.stage for one in _written(messages) if one.stage is not None]
    if stages:
        _discard(ControlClient(plan.endpoint, patience=0.0), stages)


def _written(messages: Sequence[Any]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


def _promote(plan: SinkPlan, app: str, batch: int, stages: list[str]) -> int:
    """How many messages no queue has taken."""
    control = ControlClient(plan.endpoint, patience=PROMOTING)
    dead_letter = plan.on_unroutable == DEAD_LETTER
    try:
        reply = control.request(
            "stage.promote", within=LONGEST, app=app, batch=batch, stages=stages, on_unroutable=plan.on_unroutable,
            dead_letter_exchange=(plan.dead_letter_exchange or "") if dead_letter else None,
            dead_letter_routing_key=plan.dead_letter_routing_key if dead_letter else None)
        if reply.get("already"):
            # A batch that is replayed has staged its rows once more.
            _discard(control, stages)
            return 0
        return int(reply.get("unroutable", 0))
    except RequestRefused as error:
        _discard(control, stages)
        raise SparkError(f"batch {batch} of {app!r} was not promoted, and nothing of it is visible: {error} (option "
                         "onUnroutable, where no queue takes a row; where the batch is behind the last one, the checkpoint "
                         "went back, or two queries write under one name: options sinkName, txnAppId)") from None
    finally:
        control.close()


def _discard(control: ControlClient, stages: list[str]) -> None:
    try:
        control.request("stage.discard", within=10.0, stages=stages)
    except SparkError as error:
        log.info("stages were not discarded: %s", error)
