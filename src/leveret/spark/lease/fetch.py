"""Reads slices of a lease batch over AMQP as Arrow batches, and resumes after a lost connection."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from leveret.client._sync.connection import Connection
from leveret.client.errors import ChannelClosed, ConnectionClosed, ConnectionFailed, Timeout
from leveret.segments.columns import make_batch
from leveret.segments.record_batches import DeliveredBatch, InvalidRecordBatch
from leveret.spark.connection import RECONNECT_TIMEOUT, ControlClient, Endpoint, open_amqp091_connection
from leveret.spark.errors import ReadFailed
from leveret.spark.schema import Projection
from leveret.wire.amqp0.values import FieldTable

logger = logging.getLogger("leveret.spark")

# Record batches in flight by default.
PREFETCH: Final = 4
# Seconds without a record batch after which the lease is checked.
IDLE_TIMEOUT: Final = 5.0


@dataclass(frozen=True, slots=True)
class LeaseSlice:
    """`count` messages of a lease batch, starting at index `first`."""

    queue: str
    lease: str
    epoch: int
    batch: int
    first: int
    count: int


def read_slice(
    endpoint: Endpoint,
    part: LeaseSlice,
    columns: tuple[str, ...] | None,
    headers_format: str,
    prefetch: int | None,
    batch_rows: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the slice with the schema that Spark expects. Raises ReadFailed if the lease was lost or released."""
    projection = Projection(columns, headers_format)
    for rows in _record_batches(endpoint, part, prefetch or PREFETCH):
        if not any(rows.times):
            rows.times = None  # queues do not record append times
        batch = projection.batch(make_batch(rows, projection.names, part.queue))
        for start in range(0, batch.num_rows, batch_rows):
            yield batch.slice(start, batch_rows)


def _record_batches(endpoint: Endpoint, part: LeaseSlice, prefetch: int) -> Iterator[Any]:
    done = 0
    failing_since: float | None = None
    while done < part.count:
        connection: Connection | None = None
        try:
            # Lease readers are 0-9-1 consumers. The rows are the same.
            connection = open_amqp091_connection(endpoint, f"leveret-spark lease {part.lease}", RECONNECT_TIMEOUT)
            for delivered in _read_once(connection, endpoint, part, done, prefetch):
                failing_since = None
                done += delivered.count
                yield delivered.rows
        except ChannelClosed as error:
            raise ReadFailed(
                f"batch {part.batch} of lease {part.lease!r} of queue {part.queue!r}: {error} (another query "
                "has acquired the lease, or it was released)"
            ) from None
        except (ConnectionClosed, ConnectionFailed, Timeout) as error:
            now = time.monotonic()
            failing_since = failing_since or now
            if now - failing_since > RECONNECT_TIMEOUT:
                raise ReadFailed(
                    f"batch {part.batch} of lease {part.lease!r} of queue {part.queue!r}, from index "
                    f"{part.first + done}: {error}"
                ) from None
            logger.warning("lease %r: resuming at index %d after: %s", part.lease, part.first + done, error)
            time.sleep(0.05)
        finally:
            if connection is not None:
                connection.close()


def _read_once(
    connection: Connection, endpoint: Endpoint, part: LeaseSlice, done: int, prefetch: int
) -> Iterator[DeliveredBatch]:
    """Read the rest of the slice over one connection."""
    arguments: FieldTable = {
        "x-lease": part.lease,
        "x-lease-epoch": part.epoch,
        "x-lease-batch": part.batch,
        "x-lease-first": part.first + done,
        "x-lease-count": part.count - done,
        "x-packed": True,
    }
    channel = connection.channel(confirms=False)
    consumer = channel.consume(part.queue, prefetch=prefetch, no_ack=True, arguments=arguments).start()
    while done < part.count:
        try:
            message = consumer.next(IDLE_TIMEOUT)
        except Timeout:
            _check(endpoint, part)
            raise
        try:
            delivered = DeliveredBatch(message.body)
        except InvalidRecordBatch as error:
            raise ReadFailed(f"batch {part.batch} of lease {part.lease!r} of queue {part.queue!r}: {error}") from None
        begin = part.first + done
        if not (
            delivered.count
            and delivered.first == begin
            and delivered.next == begin + delivered.count <= part.first + part.count
        ):
            raise ReadFailed(
                f"batch {part.batch} of lease {part.lease!r} of queue {part.queue!r}: got {delivered.count} "
                f"messages from index {delivered.first} to {delivered.next - 1}; expected at most "
                f"{part.count - done} from index {begin}"
            )
        done += delivered.count
        yield delivered


def _check(endpoint: Endpoint, part: LeaseSlice) -> None:
    """Raise ReadFailed if the lease was lost. Otherwise the broker is only slow."""
    control = ControlClient(endpoint, f"leveret-spark lease {part.lease}")
    try:
        leases = control.request("lease.list", queue=part.queue)["leases"]
    finally:
        control.close()
    if not any(lease["lease"] == part.lease and lease["epoch"] == part.epoch for lease in leases):
        raise ReadFailed(
            f"lease {part.lease!r} of queue {part.queue!r} is lost: another query has acquired it, or it was released"
        )
