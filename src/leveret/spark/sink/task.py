"""A task of a write: publishes Arrow batches and returns a commit message for the driver."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import WriterCommitMessage

from leveret.client._sync.channel import Channel
from leveret.client._sync.session import Session
from leveret.client.engine.amqp10.addresses import choose
from leveret.client.errors import ChannelClosed, Error, NotFound
from leveret.spark.connection import ControlClient
from leveret.spark.errors import OptionError, RequestRefused, SparkError
from leveret.spark.sink.amqp091_encoder import Amqp091Encoder
from leveret.spark.sink.amqp091_publisher import Amqp091Publisher, Rate
from leveret.spark.sink.amqp091_window import RefusedMessage
from leveret.spark.sink.amqp10_encoder import Amqp10Encoder
from leveret.spark.sink.amqp10_publisher import Amqp10Publisher
from leveret.spark.sink.plan import AT_LEAST_ONCE, DROP, EXACTLY_ONCE, FAIL, SinkPlan
from leveret.spark.sink.rows import MAX_SHORT_STRING, AddressOptions, Limits, RejectedRow, Rows

if TYPE_CHECKING:
    import pyarrow as pa

# Prefix of exchange names that publishes into a sink transaction.
TRANSACTION_PREFIX: Final = "leveret.stage:"
# Sink transactions that the broker commits together; each partition has one.
MAX_PARTITIONS: Final = 10_000
_QUERY: Final = "sql.streaming.queryId"


class PublishError(SparkError):
    """A row could not be published or routed."""


@dataclass(slots=True)
class Counts:
    """Row counts of a task or a write.

    Attributes:
        published: Rows that the broker accepted (or that are in a sink transaction), without dead letters.
        body_bytes: Total size of their bodies.
        failed_dropped, failed_dead_lettered: Rows that could not be published (onError).
        unroutable_dropped, unroutable_dead_lettered: Unroutable rows (onUnroutable).
    """

    published: int = 0
    body_bytes: int = 0
    failed_dropped: int = 0
    failed_dead_lettered: int = 0
    unroutable_dropped: int = 0
    unroutable_dead_lettered: int = 0

    def add(self, other: Counts) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    @property
    def lost(self) -> int:
        """The number of rows that did not reach a queue as addressed."""
        return self.failed_dropped + self.failed_dead_lettered + self.unroutable_dropped + self.unroutable_dead_lettered


@dataclass(slots=True)
class Written(WriterCommitMessage):
    """The result of a task.

    Attributes:
        transaction: The sink transaction with its rows if the write is exactly once; None if there were no rows.
        app: Owner of the transaction.
    """

    partition: int
    guarantee: str
    app: str | None = None
    transaction: str | None = None
    counts: Counts = field(default_factory=Counts)


def write_task(plan: SinkPlan, batches: Iterator[pa.RecordBatch]) -> Written:
    """Publish all rows. Raises PublishError for a row, and errors of the broker."""
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
        # Batch writes in foreachBatch also have the query id, but it does not identify them.
        app = _app_of_query(query, plan.sink_name) if plan.streaming else plan.app
        guarantee = resolve_guarantee(plan, app, control)
        if guarantee == EXACTLY_ONCE and partition >= MAX_PARTITIONS:
            raise OptionError(
                f"option guarantee: exactly-once supports writes of at most {MAX_PARTITIONS} partitions, and "
                f"this one has partition {partition}; use fewer partitions (df.coalesce, "
                "spark.sql.shuffle.partitions) or guarantee at-least-once"
            )
        return _Task(plan, control, partition, app if guarantee == EXACTLY_ONCE else None).run(batches)
    finally:
        control.close()


def _app_of_query(query: str | None, sink_name: str | None) -> str | None:
    if query is None:
        return None
    return f"{query}/{sink_name}" if sink_name else query


def resolve_guarantee(plan: SinkPlan, app: str | None, control: ControlClient) -> str:
    """Return the guarantee of a write. Raises OptionError if the requested one is not possible."""
    requested = plan.guarantee
    if requested == EXACTLY_ONCE and app is None:
        raise SparkError("the task has no query id, which an exactly-once write needs")
    if requested == AT_LEAST_ONCE or (requested is None and app is None):
        return AT_LEAST_ONCE
    if control.is_leveret():
        return EXACTLY_ONCE
    if requested == EXACTLY_ONCE or plan.app is not None:
        which = "guarantee: exactly-once" if requested else "txnAppId: it"
        raise OptionError(
            f"option {which} needs Leveret, and {control.endpoint} is another broker; set guarantee to at-least-once"
        )
    return AT_LEAST_ONCE


def _exchange_error(option: str, reason: str) -> OptionError:
    return OptionError(f"option {option}: {reason}; expected an exchange that exists")


class _Task:
    def __init__(self, plan: SinkPlan, control: ControlClient, partition: int, app: str | None) -> None:
        self._plan = plan
        self._control = control
        self._written = Written(partition, AT_LEAST_ONCE if app is None else EXACTLY_ONCE, app)
        self._counts = self._written.counts
        self._rate = Rate(plan.max_rate)
        self._transaction = uuid.uuid4().hex if app is not None else ""
        self._n_published = 0
        self._crc = 0
        self._row = 0
        self._publisher: Amqp091Publisher | Amqp10Publisher
        self._encoder: Amqp091Encoder | Amqp10Encoder

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
            if opened and self._transaction:
                self._abort()
            if isinstance(error, ChannelClosed):
                raise PublishError(
                    f"the broker closed the channel: {error} (rows up to {self._row} of partition "
                    f"{self._written.partition}; if a body is too large, set maxMessageBytes)"
                ) from error
            raise
        return self._written

    def _open(self) -> None:
        plan = self._plan
        prefix = ""
        if self._transaction:
            exchanges = [name for name in {plan.exchange, plan.dead_letter_exchange} if name]
            try:
                self._control.request(
                    "stage.open", stage=self._transaction, app=self._written.app, exchanges=exchanges or None
                )
            except RequestRefused as error:
                if error.condition != "not-found":
                    raise
                other = plan.exchange is None or f"'{plan.exchange}'" not in error.message
                raise _exchange_error("deadLetterExchange" if other else "exchange", error.message) from None
            prefix = f"{TRANSACTION_PREFIX}{self._transaction}:"
        channel = self._control.channel()
        if not prefix and plan.exchange and isinstance(channel, Channel):
            # Fail before rows are published.
            try:
                channel.declare_exchange(plan.exchange, passive=True)
            except NotFound as error:
                raise _exchange_error("exchange", str(error)) from None
        address = AddressOptions(plan.exchange, plan.routing_key)
        limits = Limits(plan.max_message_bytes, MAX_SHORT_STRING - len(prefix))
        if isinstance(channel, Session):
            addresses = choose("auto", channel.connection.server_properties)
            self._publisher = Amqp10Publisher(channel, plan.max_in_flight, prefix)
            self._encoder = Amqp10Encoder(address, limits, addresses)
        else:
            assert isinstance(channel, Channel)
            self._publisher = Amqp091Publisher(channel, plan.max_in_flight, prefix, mandatory=not prefix)
            limits.header = self._publisher.header_max
            self._encoder = Amqp091Encoder(address, limits)

    def _write(self, batch: pa.RecordBatch) -> None:
        rows, rejected = self._encoder.encode(batch)
        for row in rejected:
            self._reject(row)
        step = self._rate.max_chunk()
        for start in range(0, len(rows), step):
            piece = rows.slice(start, start + step)
            self._rate.wait(len(piece))
            self._publish(piece)
            self._handle_refused()
        self._counts.published += len(rows)
        self._counts.body_bytes += rows.size
        self._row += batch.num_rows

    def _publish(self, rows: Rows) -> None:
        if self._transaction:
            self._crc = rows.checksum(self._crc)
            self._n_published += len(rows)
        self._publisher.publish(rows)

    def _reject(self, row: RejectedRow) -> None:
        """Apply `onError` to a row that cannot be published."""
        plan = self._plan
        where = f"row {self._row + row.index} of partition {self._written.partition}"
        if plan.on_error == FAIL:
            raise PublishError(f"{where} cannot be published: {row.reason} (option onError: fail)")
        if plan.on_error == DROP:
            self._counts.failed_dropped += 1
            return
        if len(row.body) > plan.max_message_bytes:
            raise PublishError(f"{where} can neither be published nor dead-lettered: {row.reason}")
        key = plan.dead_letter_routing_key
        key = row.routing_key[: MAX_SHORT_STRING // 4] if key is None else key
        self._publish(self._encoder.dead_letter(row, plan.dead_letter_exchange or "", key))
        self._counts.failed_dead_lettered += 1

    def _handle_refused(self) -> None:
        """Handle messages that the broker rejected. A sink transaction accepts all and routes them at commit."""
        for refused in self._publisher.refused:
            self._refuse(refused)

    def _refuse(self, refused: RefusedMessage) -> None:
        plan = self._plan
        rows = refused.rows
        choice = plan.on_unroutable if refused.unroutable else plan.on_error
        dead_letter = plan.dead_letter_exchange or ""
        option = "onUnroutable" if refused.unroutable else "onError"
        if choice == FAIL or self._transaction:
            raise PublishError(f"the broker rejected a row: {refused.reason} (option {option}: fail)")
        counts = self._counts
        counts.published -= 1
        counts.body_bytes -= rows.size
        if choice == DROP:
            if refused.unroutable:
                counts.unroutable_dropped += 1
            else:
                counts.failed_dropped += 1
            return
        key = rows.routing_keys[0] if plan.dead_letter_routing_key is None else plan.dead_letter_routing_key
        if (rows.exchanges[0], rows.routing_keys[0]) == (dead_letter, key):
            raise PublishError(
                f"the broker rejected a dead letter: {refused.reason} (options deadLetterExchange, deadLetterRoutingKey)"
            )
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
        if self._transaction and self._n_published:
            self._control.request("stage.seal", stage=self._transaction, count=self._n_published, crc32=self._crc)
            self._written.transaction = self._transaction
        elif self._transaction:
            self._abort()

    def _abort(self) -> None:
        """Abort the sink transaction. If the request fails, the broker aborts it later."""
        try:
            self._control.reconnect_timeout = 0.0
            self._control.request("stage.discard", within=5.0, stages=[self._transaction])
        except (SparkError, RequestRefused, Error):
            pass
