"""Slices of a planned batch over AMQP, as Arrow batches; read on after a lost connection."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from leveret.client.blocking.connection import Connection
from leveret.client.errors import ChannelClosed, ConnectionClosed, ConnectionFailed, Timeout
from leveret.segments.columns import make_batch
from leveret.segments.packed import PackDamaged, Packed
from leveret.segments.schema import COLUMNS
from leveret.spark.connection import PATIENCE, ControlClient, Endpoint, open_connection
from leveret.spark.errors import ReadFailed
from leveret.spark.schema import arrow_schema

log = logging.getLogger("leveret.spark")

# Packs that may be on their way.
PREFETCH: Final = 4
# Seconds without a pack after which the broker is asked whether the lease is still there.
QUIET: Final = 5.0
_LEFT_OUT: Final[dict[str, tuple[str, ...]]] = {"map": ("headers_json",), "json": ("headers",), "both": ()}


@dataclass(frozen=True, slots=True)
class Slice:
    """`count` messages of a batch from the index `first` on."""

    queue: str
    lease: str
    epoch: int
    batch: int
    first: int
    count: int


def read_slice(endpoint: Endpoint, part: Slice, columns: tuple[str, ...] | None, headers_format: str, prefetch: int | None,
               batch_rows: int) -> Iterator[pa.RecordBatch]:
    """All of it, with the schema that Spark wants. `ReadFailed` where the lease is another's, or was released."""
    schema = arrow_schema(columns)
    left_out = _LEFT_OUT[headers_format]
    names = [name for name in COLUMNS if name in schema.names and name not in left_out]
    for rows in _packs(endpoint, part, prefetch or PREFETCH):
        if not any(rows.times):
            rows.times = None  # a queue does not know when its messages came
        made = make_batch(rows, names, part.queue)
        batch = pa.RecordBatch.from_arrays(
            [made.column(name) if name in names else pa.nulls(len(rows), schema.field(name).type) for name in schema.names],
            schema=schema)
        for start in range(0, batch.num_rows, batch_rows):
            yield batch.slice(start, batch_rows)


def _packs(endpoint: Endpoint, part: Slice, prefetch: int) -> Iterator[Any]:
    # Reads of leases are consumers of 0-9-1, which the broker takes on the same port. What comes is the same.
    endpoint = replace(endpoint, protocol="0-9-1")
    done = 0
    failing: float | None = None
    while done < part.count:
        connection: Connection | None = None
        try:
            connection = open_connection(endpoint, f"leveret-spark lease {part.lease}", PATIENCE)
            for pack in _read_once(connection, endpoint, part, done, prefetch):
                failing = None
                done += pack.count
                yield pack.rows
        except ChannelClosed as error:
            raise ReadFailed(f"batch {part.batch} of lease {part.lease!r} of queue {part.queue!r}: {error} (another "
                             "query has "
                             "taken the lease over, or it was released)") from None
        except (ConnectionClosed, ConnectionFailed, Timeout) as error:
            now = time.monotonic()
            failing = failing or now
            if now - failing > PATIENCE:
                raise ReadFailed(f"batch {part.batch} of lease {part.lease!r} of queue {part.queue!r}, from index "
                                 f"{part.first + done}: {error}") from None
            log.warning("lease %r: reading on at index %d after: %s", part.lease, part.first + done, error)
            time.sleep(0.05)
        finally:
            if connection is not None:
                connection.close()


def _read_once(connection: Connection, endpoint: Endpoint, part: Slice, done: int, prefetch: int) -> Iterator[Packed]:
    """What is left of it, over one connection."""
    arguments = {"x-lease": part.lease, "x-lease-epoch": part.epoch, "x-lease-batch": part.batch,
                 "x-lease-first": part.first + done, "x-lease-count": part.count - done, "x-packed": True}
    channel = connection.channel(confirms=False)
    consumer = channel.consume(part.queue, prefetch=prefetch, no_ack=True, arguments=arguments).start()
    while done < part.count:
        try:
            message = consumer.next(QUIET)
        except Timeout:
            _check(endpoint, part)
            raise
        try:
            pack = Packed(message.body)
        except PackDamaged as error:
            raise ReadFailed(f"batch {part.batch} of lease {part.lease!r} of queue {part.queue!r}: {error}") from None
        begin = part.first + done
        if not (pack.count and pack.first == begin and pack.next == begin + pack.count <= part.first + part.count):
            raise ReadFailed(f"batch {part.batch} of lease {part.lease!r} of queue {part.queue!r}: {pack.count} messages "
                             f"from index {pack.first} to {pack.next - 1} came where index {begin} was next"
                             f" and {part.count - done} were left")
        done += pack.count
        yield pack


def _check(endpoint: Endpoint, part: Slice) -> None:
    """See that the lease is there and of our epoch; the broker is only slow then."""
    control = ControlClient(endpoint, f"leveret-spark lease {part.lease}")
    try:
        leases = control.request("lease.list", queue=part.queue)["leases"]
    finally:
        control.close()
    if not any(lease["lease"] == part.lease and lease["epoch"] == part.epoch for lease in leases):
        raise ReadFailed(f"lease {part.lease!r} of queue {part.queue!r} is not ours any more: another query has taken "
                         "it over, "
                         "or it was released")
