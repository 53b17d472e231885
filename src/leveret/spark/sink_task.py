"""One task of a write: Arrow batches in, a message for the driver out."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import WriterCommitMessage

from leveret.client.core.amqp1.addresses import choose
from leveret.client.errors import ChannelClosed, Error, NotFound
from leveret.spark.connection import ControlClient
from leveret.spark.encode0 import Encoder0
from leveret.spark.encode1 import Encoder1
from leveret.spark.errors import OptionError, RequestRefused, SparkError
from leveret.spark.publisher0 import Publisher0, Rate, Refused
from leveret.spark.publisher1 import Publisher1
from leveret.spark.sink_plan import AT_LEAST_ONCE, DROP, EXACTLY_ONCE, FAIL, SinkPlan
from leveret.spark.sink_rows import LONGEST, BadRow, Limits, Rows, Target

if TYPE_CHECKING:
    import pyarrow as pa

STAGE: Final = "leveret.stage:"
# Stages that the broker promotes as one: a partition has one each.
MOST_PARTITIONS: Final = 10_000
_QUERY: Final = "sql.streaming.queryId"


class PublishError(SparkError):
    """A row that could not be published, or that no queue takes."""


@dataclass(slots=True)
class Counts:
    """Rows of a task or of a write.

    published      taken by the broker (or staged), dead letters not counted
    octets         of their bodies
    failed_dropped, failed_dead_lettered    could not be published (onError)
    unroutable_dropped, unroutable_dead_lettered   no queue takes them (onUnroutable)
    """

    published: int = 0
    octets: int = 0
    failed_dropped: int = 0
    failed_dead_lettered: int = 0
    unroutable_dropped: int = 0
    unroutable_dead_lettered: int = 0

    def add(self, other: Counts) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    @property
    def lost(self) -> int:
        """Rows that did not go where they should."""
        return (self.failed_dropped + self.failed_dead_lettered + self.unroutable_dropped
                + self.unroutable_dead_lettered)


@dataclass(slots=True)
class Written(WriterCommitMessage):
    """What a task has done.

    stage  with its rows, where the write is exactly once; None where it had none
    app    of the stage
    """

    partition: int
    guarantee: str
    app: str | None = None
    stage: str | None = None
    counts: Counts = field(default_factory=Counts)


def write_task(plan: SinkPlan, batches: Iterator[pa.RecordBatch]) -> Written:
    """Publish all rows. Raises `PublishError`, and what is wrong with the broker."""
    from pyspark.taskcontext import TaskContext

    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    query = context.getLocalProperty(_QUERY) if context is not None else None
    if plan.written:
        for _ in batches:
            pass
        return Written(partition, EXACTLY_ONCE)
    control = ControlClient(plan.endpoint, f"leveret-spark sink {plan.sink_name or ''}".strip())
    try:
        # Tasks of batch writes in foreachBatch have the property, too, and are no less repeated for that.
        app = _app_of_query(query, plan.sink_name) if plan.streaming else plan.app
        guarantee = decide(plan, app, control)
        if guarantee == EXACTLY_ONCE and partition >= MOST_PARTITIONS:
            raise OptionError(f"option guarantee: exactly-once takes a write of {MOST_PARTITIONS} partitions at most, and "
                              f"this one has a partition {partition}; expected fewer (df.coalesce, "
                              "spark.sql.shuffle.partitions), or guarantee at-least-once")
        return _Task(plan, control, partition, app if guarantee == EXACTLY_ONCE else None).run(batches)
    finally:
        control.close()


def _app_of_query(query: str | None, sink_name: str | None) -> str | None:
    if query is None:
        return None
    return f"{query}/{sink_name}" if sink_name else query


def decide(plan: SinkPlan, app: str | None, control: ControlClient) -> str:
    """Which guarantee a write has. `OptionError` where it cannot have what was asked for."""
    asked = plan.guarantee
    if asked == EXACTLY_ONCE and app is None:
        raise SparkError("the task does not know of which query it is, and cannot write exactly once")
    if asked == AT_LEAST_ONCE or (asked is None and app is None):
        return AT_LEAST_ONCE
    if control.is_leveret():
        return EXACTLY_ONCE
    if asked == EXACTLY_ONCE or plan.app is not None:
        which = "guarantee: exactly-once" if asked else "txnAppId: it"
        raise OptionError(f"option {which} needs Leveret, and {control.endpoint} is another broker; expected "
                          "guarantee at-least-once")
    return AT_LEAST_ONCE


def _no_exchange(option: str, told: str) -> OptionError:
    return OptionError(f"option {option}: {told}; expected an exchange that is declared")


class _Task:
    def __init__(self, plan: SinkPlan, control: ControlClient, partition: int, app: str | None) -> None:
        self._plan = plan
        self._control = control
        self._written = Written(partition, AT_LEAST_ONCE if app is None else EXACTLY_ONCE, app)
        self._counts = self._written.counts
        self._rate = Rate(plan.max_rate)
        self._stage = uuid.uuid4().hex if app is not None else ""
        self._staged = 0
        self._crc = 0
        self._row = 0
        self._publisher: Publisher0 | Publisher1
        self._encoder: Encoder0 | Encoder1

    def run(self, batches: Iterator[pa.RecordBatch]) -> Written:
        opened = False
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if not opened:
                    self._open()
                    opened = True
                self._write(batch)
            if opened:
                self._finish()
        except BaseException as error:
            if opened and self._stage:
                self._discard()
            if isinstance(error, ChannelClosed):
                raise PublishError(f"the broker closed the channel: {error} (rows up to {self._row} of partition "
                                   f"{self._written.partition}; a body too large: option maxMessageBytes)") from error
            raise
        return self._written

    def _open(self) -> None:
        plan = self._plan
        prefix = ""
        if self._stage:
            exchanges = [name for name in {plan.exchange, plan.dead_letter_exchange} if name]
            try:
                self._control.request("stage.open", stage=self._stage, app=self._written.app, exchanges=exchanges or None)
            except RequestRefused as error:
                if error.condition != "not-found":
                    raise
                other = plan.exchange is None or f"'{plan.exchange}'" not in error.message
                raise _no_exchange("deadLetterExchange" if other else "exchange", error.message) from None
            prefix = f"{STAGE}{self._stage}:"
        channel = self._control.channel()
        if not prefix and plan.exchange and plan.endpoint.protocol == "0-9-1":
            # Fails here, rather than in the middle.
            try:
                channel.declare_exchange(plan.exchange, passive=True)
            except NotFound as error:
                raise _no_exchange("exchange", str(error)) from None
        target = Target(plan.exchange, plan.routing_key)
        limits = Limits(plan.max_message_bytes, LONGEST - len(prefix))
        if plan.endpoint.protocol == "1.0":
            addresses = choose("auto", channel.connection.server_properties)
            self._publisher = Publisher1(channel, plan.max_in_flight, prefix)
            self._encoder = Encoder1(target, limits, addresses)
        else:
            self._publisher = Publisher0(channel, plan.max_in_flight, prefix, mandatory=not prefix)
            limits.header = self._publisher.header_max
            self._encoder = Encoder0(target, limits)

    def _write(self, batch: pa.RecordBatch) -> None:
        rows, rejected = self._encoder.encode(batch)
        for bad in rejected:
            self._reject(bad)
        step = self._rate.most()
        for start in range(0, len(rows), step):
            piece = rows.slice(start, start + step)
            self._rate.wait(len(piece))
            self._publish(piece)
            self._handle_refused()
        self._counts.published += len(rows)
        self._counts.octets += rows.size
        self._row += batch.num_rows

    def _publish(self, rows: Rows) -> None:
        if self._stage:
            self._crc = zlib.crc32(b"".join(rows.contents), self._crc)
            self._staged += len(rows)
        self._publisher.publish(rows)

    def _reject(self, bad: BadRow) -> None:
        """A row that cannot be published goes where `onError` says."""
        plan = self._plan
        where = f"row {self._row + bad.index} of partition {self._written.partition}"
        if plan.on_error == FAIL:
            raise PublishError(f"{where} cannot be published: {bad.reason} (option onError: fail)")
        if plan.on_error == DROP:
            self._counts.failed_dropped += 1
            return
        if len(bad.body) > plan.max_message_bytes:
            raise PublishError(f"{where} cannot be published, nor be dead-lettered: {bad.reason}")
        key = plan.dead_letter_routing_key
        key = bad.routing_key[:LONGEST // 4] if key is None else key
        self._publish(self._encoder.dead_letter(bad, plan.dead_letter_exchange or "", key))
        self._counts.failed_dead_lettered += 1

    def _handle_refused(self) -> None:
        """Messages that the broker did not take. Of a stage it takes all; where they go is decided at promote."""
        for refused in self._publisher.refused:
            self._refuse(refused)

    def _refuse(self, refused: Refused) -> None:
        plan = self._plan
        rows = refused.rows
        choice = plan.on_unroutable if refused.unroutable else plan.on_error
        dead_letter = plan.dead_letter_exchange or ""
        option = "onUnroutable" if refused.unroutable else "onError"
        if choice == FAIL or self._stage:
            raise PublishError(f"a row was not taken: {refused.reason} (option {option}: fail)")
        counts = self._counts
        counts.published -= 1
        counts.octets -= rows.size
        if choice == DROP:
            if refused.unroutable:
                counts.unroutable_dropped += 1
            else:
                counts.failed_dropped += 1
            return
        key = rows.routing_keys[0] if plan.dead_letter_routing_key is None else plan.dead_letter_routing_key
        if (rows.exchanges[0], rows.routing_keys[0]) == (dead_letter, key):
            raise PublishError(f"a dead letter was not taken: {refused.reason} (options deadLetterExchange, "
                               "deadLetterRoutingKey)")
        self._publisher.publish(Rows([dead_letter], [key], rows.properties, rows.bodies))
        if refused.unroutable:
            counts.unroutable_dead_lettered += 1
        else:
            counts.failed_dead_lettered += 1

    def _finish(self) -> None:
        self._publisher.flush()
        refused = self._publisher.refused
        while refused:
            for one in refused:
                self._refuse(one)
            self._publisher.flush()
            refused = self._publisher.refused
        if self._stage and self._staged:
            self._control.request("stage.seal", stage=self._stage, count=self._staged, crc32=self._crc)
            self._written.stage = self._stage
        elif self._stage:
            self._discard()

    def _discard(self) -> None:
        """What was staged is of no use. Where this fails, the broker drops the stage in time."""
        try:
            self._control.patience = 0.0
            self._control.request("stage.discard", within=5.0, stages=[self._stage])
        except (SparkError, RequestRefused, Error):
            pass
