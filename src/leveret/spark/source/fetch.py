"""Reads ranges of a stream over AMQP, in record batches, and resumes after a lost connection.

A record batch states which offsets it covers, so every gap, overlap or early end is detected and raises an error instead
of changing the number of rows.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from leveret.client._sync.connection import Amqp10Connection
from leveret.client.amqp10 import Filter
from leveret.client.errors import (
    ChannelClosed,
    ConnectionClosed,
    ConnectionFailed,
    ConsumerCancelled,
    LinkClosed,
    NotFound,
    Timeout,
)
from leveret.client.message import Message
from leveret.segments.record_batches import DeliveredBatch, InvalidRecordBatch
from leveret.spark.connection import RECONNECT_TIMEOUT, AnyConnection, ControlClient, Endpoint
from leveret.spark.errors import DataLoss, OffsetError, ReadFailed, RequestRefused
from leveret.spark.source.topology import describe
from leveret.storage import disk
from leveret.wire.amqp0.values import FieldTable

logger = logging.getLogger("leveret.spark")

# Record batches in flight: the broker prepares the next ones while this task builds rows.
PREFETCH: Final = 4
# Seconds without a record batch after which the stream's state is checked.
IDLE_TIMEOUT: Final = 5.0

# Consumer arguments and the AMQP 1.0 filters that correspond to them.
_FILTERS: Final = {
    "x-stream-offset": "rabbitmq:stream-offset-spec",
    "x-packed": "leveret:packed",
    "x-packed-until": "leveret:packed-until",
    "x-stream-filter-routing-key": "leveret:stream-filter-routing-key",
}


class StreamFetch:
    """Reads the messages of one stream in a range of offsets.

    Args:
        endpoint: The broker.
        stream: Name of the stream.
        id: The stream's id, which detects that it was deleted and declared again.
        prefetch: Record batches in flight.
        routing_keys: Topic pattern; other messages are not sent.
        fail_on_data_loss: Raise DataLoss if retention removed messages before they were read.
        loss_holder: Holder under which losses are reported to the broker, None for none.
        loss_directory: Directory in which losses are recorded, None for none.
        reconnect_timeout: Seconds that the broker may be unreachable.

    Attributes:
        lost: Number of messages that retention removed before they were read.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        stream: str,
        id: str,
        *,
        prefetch: int | None = None,
        routing_keys: str | None = None,
        fail_on_data_loss: bool = True,
        loss_holder: str | None = None,
        loss_directory: str | None = None,
        reconnect_timeout: float = RECONNECT_TIMEOUT,
    ) -> None:
        self.endpoint = endpoint
        self.stream = stream
        self.id = id
        self.prefetch = prefetch or PREFETCH
        self.routing_keys = routing_keys
        self.fail_on_data_loss = fail_on_data_loss
        self.loss_holder = loss_holder
        self.loss_directory = loss_directory
        self.reconnect_timeout = reconnect_timeout
        self.lost = 0
        # All messages before this offset were yielded, or are lost.
        self._position = 0

    def read(self, first: int, stop: int) -> Iterator[DeliveredBatch]:
        """Yield record batches that cover exactly the offsets from `first` to before `stop`.

        Raises:
            DataLoss, OffsetError, ReadFailed, BrokerUnreachable: The range cannot be read.
        """
        self._position = first
        failing_since: float | None = None
        while self._position < stop:
            try:
                for batch in self._read_once(stop):
                    failing_since = None
                    yield batch
            except (ConnectionClosed, ConnectionFailed, ChannelClosed, Timeout) as error:
                now = time.monotonic()
                failing_since = failing_since or now
                if isinstance(error, NotFound) or now - failing_since > self.reconnect_timeout:
                    raise ReadFailed(f"stream {self.stream!r}, offsets {self._position} to {stop - 1}: {error}") from None
                logger.warning("stream %r: resuming at offset %d after: %s", self.stream, self._position, error)
                # Pause in case the broker refuses connections immediately.
                time.sleep(0.05)

    def _read_once(self, stop: int) -> Iterator[DeliveredBatch]:
        """Read over one connection until it fails."""
        control = ControlClient(self.endpoint, "leveret-spark-read", self.reconnect_timeout)
        try:
            self._check(control, stop)
            if self._position >= stop:
                return
            consumer = self._consume(control.connection(), stop)
            while self._position < stop:
                try:
                    message: Message = consumer.next(IDLE_TIMEOUT)
                except Timeout:
                    self._check(control, stop)
                    raise
                except (ConsumerCancelled, LinkClosed) as error:
                    self._check(control, stop)
                    raise ReadFailed(
                        f"stream {self.stream!r}, offset {self._position}: the broker cannot read it: "
                        f"{error}; see the broker's log"
                    ) from None
                batch = self._decode(message.body, stop)
                message.ack()
                if batch is not None:
                    self._position = batch.next
                    yield batch
        finally:
            control.close()

    def _consume(self, connection: AnyConnection, stop: int) -> Any:
        """Start a consumer of record batches."""
        arguments: FieldTable = {"x-stream-offset": self._position, "x-packed": True, "x-packed-until": stop}
        if self.routing_keys is not None:
            arguments["x-stream-filter-routing-key"] = self.routing_keys
        if isinstance(connection, Amqp10Connection):
            filters = [Filter(_FILTERS[name], value) for name, value in arguments.items()]
            return connection.receiver(self.stream, filters=filters, prefetch=self.prefetch)
        channel = connection.channel(confirms=False)
        return channel.consume(self.stream, prefetch=self.prefetch, arguments=arguments).start()

    def _decode(self, data: bytes, stop: int) -> DeliveredBatch | None:
        """Decode a record batch and check that it continues the previous one; None if nothing is left to read."""
        try:
            batch = DeliveredBatch(data)
        except InvalidRecordBatch as error:
            raise ReadFailed(f"stream {self.stream!r} at offset {self._position}: {error}") from None
        if batch.first > self._position:
            self._skip_lost(min(batch.first, stop))
            if batch.first >= stop:
                return None
        elif batch.first < self._position:
            raise ReadFailed(
                f"stream {self.stream!r}: the broker sent offset {batch.first} again; expected {self._position}"
            )
        if batch.next > stop or batch.next <= batch.first or not batch.is_ordered():
            raise ReadFailed(
                f"stream {self.stream!r}: the broker sent a record batch of offsets {batch.first} to "
                f"{batch.next - 1} with other offsets in it, or outside of the requested range "
                f"({self._position} to {stop - 1})"
            )
        return batch

    def _check(self, control: ControlClient, stop: int) -> None:
        """Check that the stream is still the same, and skip what retention has removed."""
        info = describe(control, self.stream)
        if info.id != self.id:
            raise OffsetError(
                f"stream {self.stream!r} was deleted and declared again while it was read (id {self.id}, now {info.id})"
            )
        if stop > info.next:
            raise OffsetError(
                f"stream {self.stream!r} lost messages at its end: offsets up to {stop - 1} were planned, "
                f"and it ends at {info.next}"
            )
        if info.first > self._position:
            self._skip_lost(min(info.first, stop))

    def _skip_lost(self, stop: int) -> None:
        count = stop - self._position
        what = (
            f"stream {self.stream!r}: {count} messages, from offset {self._position} to {stop - 1}, were removed by "
            "retention before they were read"
        )
        if self.fail_on_data_loss:
            raise DataLoss(f"{what}; set failOnDataLoss to false to skip them")
        logger.warning("%s; skipped (failOnDataLoss=false)", what)
        if self.loss_directory is not None:
            record_loss(self.loss_directory, self.stream, self._position, stop)
        self._report_loss(self._position, stop)
        self.lost += count
        self._position = stop

    def _report_loss(self, first: int, stop: int) -> None:
        """Report a loss to the broker, from which the query reads the count. A task has no other channel to the driver."""
        if self.loss_holder is None:
            return
        control = ControlClient(self.endpoint, "leveret-spark-read", self.reconnect_timeout)
        try:
            control.request("stream.lost", stream=self.stream, holder=self.loss_holder, first=first, stop=stop)
        except RequestRefused as error:
            logger.warning("stream %r: the loss could not be reported: %s", self.stream, error)
        finally:
            control.close()


def record_loss(directory: str, stream: str, first: int, stop: int) -> None:
    """Record that the messages from `first` to before `stop` were lost.

    A task can only report success or failure to the driver, and a batch read has no progress, hence one file per range. A
    retried task writes the same file again.

    Raises:
        ReadFailed: The file cannot be written; losses are never silent.
    """
    target = Path(directory)
    content = json.dumps(
        {"stream": stream, "first_offset": first, "last_offset": stop - 1, "messages": stop - first, "time": time.time()}
    )
    file = target / f"{quote(stream, safe='')[:150]}-{first:020}-{stop - 1:020}.json"
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        disk.make_directories(target)
        disk.write_synced(temporary, content.encode("utf-8"))
        temporary.replace(file)
        disk.sync_directory(target)
    except OSError as error:
        raise ReadFailed(
            f"option lossDirectory: {directory!r} cannot be written ({error.strerror}), and messages of "
            f"stream {stream!r} from offset {first} to {stop - 1} are lost; expected a directory that the "
            "driver and all workers can write to"
        ) from None
