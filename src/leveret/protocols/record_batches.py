"""Publishing of record batches, for all protocols (docs/record-batches.md).

All rows are checked before the first one is published. Both are done in steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

from leveret.broker.errors import BrokerError, ContentTooLarge, PreconditionFailed
from leveret.broker.message import Message
from leveret.broker.queues.queue import Queue
from leveret.broker.routing import Route, push
from leveret.broker.vhost import Vhost
from leveret.protocols.vhost_session import VhostSession
from leveret.wire.record_batches import (
    ADDRESS_PREFIX,
    EXCHANGE,
    MAX_BYTES,
    SERVER_PROPERTY,
    InvalidRecordBatch,
    RowReader,
    encode_ranges,
    is_address,
)

# Maximum number of rows that are checked or published between two checks of the budget, and units of work after which
# there are fewer.
CHUNK: Final = 64
CHUNK_WORK: Final = 1000
# Units of work to check and to publish a row.
CHECK_WORK: Final = 2
PUBLISH_WORK: Final = 3
# Bytes of properties (as a power of two) that are scanned for one unit of work.
SCAN_SHIFT: Final = 5
# Bytes of the sections of AMQP 1.0 around a record batch in addition to it.
ENVELOPE_BYTES: Final = 4096
# Minimum max-frame-size of a client of AMQP 1.0: an outcome with row numbers must fit in a frame.
MIN_FRAME_SIZE: Final = 16_384


class RowRefused(BrokerError):
    """A queue refused a row, such as a full one with `reject-publish`. The other queues have it."""

    condition = "resource-error"


class Report:
    """Rows of a record batch that were not published, although the others were.

    Attributes:
        unroutable: rows without a queue.
        refused: rows that a queue, or the routing, refused.
        reason: why the first of these was refused.
    """

    def __init__(self) -> None:
        self.unroutable: list[int] = []
        self.refused: list[int] = []
        self.reason = ""

    def is_empty(self) -> bool:
        return not self.unroutable and not self.refused

    def refuse(self, index: int, reason: str) -> None:
        if not self.refused:
            self.reason = reason
        self.refused.append(index)

    def text(self, count: int) -> str:
        """Describe the report for a record batch of `count` rows."""
        parts: list[str] = []
        if self.unroutable:
            parts.append(f"{len(self.unroutable)} of {count} rows unroutable")
        if self.refused:
            parts.append(f"{len(self.refused)} of {count} rows refused, row {self.refused[0]}: {self.reason}")
        return "; ".join(parts)

    def fields(self) -> dict[str, str]:
        """Return the row numbers, and the reason, as text."""
        fields: dict[str, str] = {}
        if self.unroutable:
            fields["unroutable"] = encode_ranges(self.unroutable)
        if self.refused:
            fields["refused"] = encode_ranges(self.refused)
            # Names may contain invalid UTF-8.
            fields["reason"] = self.reason.encode("utf-8", "replace").decode()
        return fields

    def encode(self) -> bytes:
        """Return the report as JSON."""
        return json.dumps(self.fields()).encode()


class Run:
    """Consecutive rows with one address.

    Attributes:
        route: their route when they were checked.
        first: index of the first one.
        single: whether they are pushed one by one, because some of them have queues or a time of their own.
    """

    __slots__ = ("address", "first", "route", "single")

    def __init__(self, address: bytes, route: Route, first: int) -> None:
        self.address = address
        self.route = route
        self.first = first
        self.single = False


class BatchRows:
    """The checked rows of a record batch, and how many of them are published.

    Attributes:
        messages: the messages of the rows.
        published: number of published rows.
        report: the rows of these that have no queue, or were refused.
    """

    def __init__(self, vhost: Vhost) -> None:
        self.messages: list[Message] = []
        self.published = 0
        self.report = Report()
        self._vhost = vhost
        # That of the vhost when the routes were found.
        self._topology: int = vhost.topology
        self._runs: list[Run] = []
        # Index of the run of the next row.
        self._position = 0

    def begin_run(self, address: bytes, route: Route) -> Run:
        """Begin a run of rows, to which the next messages belong."""
        run = Run(address, route, len(self.messages))
        self._runs.append(run)
        return run

    def last_route(self) -> Route:
        """Return the route of the last row."""
        return self._runs[-1].route

    def publishing(self, publish: Callable[[Run, int], None]) -> Iterator[int]:
        """Publish the rows in pieces, and yield their units of work.

        `publish` publishes rows of a run, up to an index (exclusive) or fewer if they are much work.
        """
        broker = self._vhost.broker
        runs = self._runs
        while self.published < len(self.messages):
            begun = broker.work
            first = self.published
            limit = min(first + CHUNK, len(self.messages))
            while self.published < limit and broker.work - begun < CHUNK_WORK:
                position = self._position
                end = runs[position + 1].first if position + 1 < len(runs) else len(self.messages)
                publish(runs[position], min(limit, end))
                if self.published == end:
                    self._position = position + 1
            yield PUBLISH_WORK * (self.published - first)

    def route_of(self, run: Run) -> Route:
        """Return the present route of a run.

        Raises:
            BrokerError: its exchange was deleted after the check.
        """
        return run.route if self._vhost.topology == self._topology else self._vhost.route(run.address)

    def push_run(self, run: Run, route: Route, stop: int) -> int:
        """Push rows of a run together, if that is possible. Returns the index of the first one that is left."""
        first = self.published
        if run.single or route.dynamic or len(route.queues) != 1:
            return first
        pushed = route.queues[0].push_run(self.messages, first, stop)
        route.published += pushed - first
        return pushed

    def refuse(self, stop: int, reason: str) -> None:
        """Refuse the next rows, up to an index (exclusive)."""
        for index in range(self.published, stop):
            self.report.refuse(index, reason)
        self.published = stop

    def note_published(self, stop: int) -> None:
        """Note that the next rows, up to an index (exclusive), are published."""
        self.published = stop


def announcement(max_message_size: int, where: str) -> dict[str, str]:
    """Return the property that announces the exchange or address of record batches; none if messages are too small."""
    if 0 < max_message_size < MAX_BYTES + ENVELOPE_BYTES:
        return {}
    return {SERVER_PROPERTY: where}


def open_batch(data: bytes) -> RowReader:
    """Return a reader of the rows.

    Raises:
        PreconditionFailed: the data is not a record batch.
    """
    try:
        return RowReader(data)
    except InvalidRecordBatch as error:
        raise PreconditionFailed(str(error)) from None


def too_large(size: int) -> BrokerError:
    """Return the error for a record batch of `size` bytes."""
    return ContentTooLarge(f"a record batch of {size} bytes; expected at most {MAX_BYTES}, so publish fewer rows in one")


def in_row(index: int, error: BrokerError) -> BrokerError:
    """Return an error of the same kind that names the row."""
    return type(error)(f"row {index} of the record batch: {error}", closes_connection=error.closes_connection)


def route_of(session: VhostSession, vhost: Vhost, address: bytes) -> Route:
    """Return the route of a row in the vhost of the session.

    Raises:
        BrokerError: the address is malformed, its exchange does not exist, or the user may not write to it.
    """
    if not is_address(address):
        raise PreconditionFailed(
            f"malformed address {address[:50]!r}; expected a short string with the exchange and one with the routing key"
        )
    if address.startswith(ADDRESS_PREFIX):
        raise PreconditionFailed(f"a record batch cannot contain messages to exchange '{EXCHANGE}'")
    route = session.find_route_in(vhost, address)
    if route.request:
        raise PreconditionFailed(
            f"a record batch cannot contain requests; publish messages to exchange '{route.exchange_name}' singly"
        )
    return route


def push_row(route: Route, message: Message, queues: list[Queue], due: int = 0) -> None:
    """Put a message into its queues, at `due` if that is not 0.

    Raises:
        RowRefused: a queue is full.
    """
    full = push(route, message, queues, due)
    if len(queues) > 1:
        queues[0].broker.work += PUBLISH_WORK * (len(queues) - 1)
    if full is not None:
        raise RowRefused(f"queue '{full.name}' in vhost '{full.vhost.name}' is full")
