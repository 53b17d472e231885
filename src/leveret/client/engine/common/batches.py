"""Batches: many messages that one call publishes, in record batches if the server supports them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from leveret.client.engine.common.encoding import Body, Encoder, encode_body, name_of
from leveret.client.engine.common.outgoing import Outgoing
from leveret.client.engine.common.publisher import PublisherCore
from leveret.client.errors import BatchFailed, Error, InvalidMessage, Nacked, Returned, Unpublished
from leveret.client.properties import NAMES, Properties, PropertyValue, from_keywords
from leveret.wire.amqp0.commands import MANDATORY
from leveret.wire.record_batches import HEAD_BYTES, MAX_BYTES, MAX_ROWS, ROW_BYTES

if TYPE_CHECKING:
    from leveret.client.engine.common.channel import BaseChannelCore

# Maximum numbers of unconfirmed record batches and of unconfirmed single messages of one call.
BATCH_WINDOW: Final = 8
SINGLE_WINDOW: Final = 500
# Bytes of a row in addition to its columns as `Rows` has them: two lengths in the address, and over 1.0 the start of a data
# section.
_ADDED: Final = 2 + 8


@runtime_checkable
class Column(Protocol):
    """A column of Arrow: an array or a chunked array."""

    def to_pylist(self) -> list[Any]: ...


@runtime_checkable
class ArrowTable(Protocol):
    """A table or a record batch of Arrow."""

    @property
    def schema(self) -> Any: ...

    @property
    def num_rows(self) -> int: ...

    def column(self, name: str) -> Column: ...


Messages = ArrowTable | Column | Sequence[Body] | Sequence[Unpublished]
Keys = Any


class Rows:
    """The messages of a batch.

    Attributes:
        exchanges, keys, properties, bodies: Those of each row; the properties are encoded.
    """

    __slots__ = ("bodies", "exchanges", "keys", "properties")

    def __init__(self, exchanges: list[str], keys: list[str], properties: list[bytes], bodies: list[bytes]) -> None:
        self.exchanges = exchanges
        self.keys = keys
        self.properties = properties
        self.bodies = bodies

    def __len__(self) -> int:
        return len(self.bodies)

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield first and last row (exclusive) of each record batch. A row that is too large for one is alone."""
        first = 0
        size = HEAD_BYTES
        for index, (exchange, key, properties, body) in enumerate(
            zip(self.exchanges, self.keys, self.properties, self.bodies, strict=True)
        ):
            # A character has at most 4 bytes in UTF-8.
            added = ROW_BYTES + _ADDED + 4 * (len(exchange) + len(key)) + len(properties) + len(body)
            if index > first and (size + added > MAX_BYTES or index - first == MAX_ROWS):
                yield first, index
                first = index
                size = HEAD_BYTES
            size += added
        if first < len(self.bodies):
            yield first, len(self.bodies)

    def fits(self, index: int) -> bool:
        """Return whether a row fits in a record batch."""
        size = 4 * (len(self.exchanges[index]) + len(self.keys[index]))
        size += len(self.properties[index]) + len(self.bodies[index])
        return HEAD_BYTES + ROW_BYTES + _ADDED + size <= MAX_BYTES


def read_rows(
    encoder: Encoder,
    messages: Messages,
    routing_key: Any,
    exchange: Any,
    properties: Properties | None,
    keywords: dict[str, PropertyValue],
) -> Rows:
    """Return the rows of a batch.

    Raises:
        InvalidMessage: A row cannot be encoded; the message has its number.
    """
    if isinstance(messages, ArrowTable):
        return _read_table(encoder, messages, routing_key, exchange, properties, keywords)
    found = list(_values(messages))
    if found and isinstance(found[0], tuple):
        return _read_messages(encoder, found, properties, keywords)
    count = len(found)
    return Rows(
        _names(exchange, count, "exchange"),
        _names(routing_key, count, "routing_key"),
        _merged(encoder, None, count, properties, keywords),
        _bodies(found),
    )


def _values(column: Any) -> Sequence[Any]:
    if isinstance(column, Column):
        return column.to_pylist()
    if isinstance(column, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(column, Sequence):
        raise InvalidMessage(
            f"messages: expected an Arrow table, or a list or Arrow column of bodies, not {type(column).__name__}"
        )
    return column


def _names(given: Any, count: int, what: str) -> list[str]:
    """Return a name for each row."""
    if isinstance(given, (list, tuple, Column)):
        names = _values(given)
        if len(names) != count:
            raise InvalidMessage(f"{what}: {len(names)} values for {count} messages; expected one for each, or one for all")
        return [_in_row(index, name_of, name) for index, name in enumerate(names)]
    return [name_of(given)] * count


def _bodies(bodies: Sequence[Any]) -> list[bytes]:
    return [body if type(body) is bytes else _in_row(index, encode_body, body) for index, body in enumerate(bodies)]


def _in_row(index: int, encode: Any, value: Any) -> Any:
    try:
        return encode(value)
    except InvalidMessage as error:
        raise InvalidMessage(f"row {index}: {error}") from None


def _merged(
    encoder: Encoder,
    of_rows: Sequence[Properties | None] | None,
    count: int,
    properties: Properties | None,
    keywords: dict[str, PropertyValue],
) -> list[bytes]:
    """Return the encoded properties of each row: its own, or those of all rows."""
    if of_rows is None:
        return [encoder.merge(properties, keywords)] * count
    merged: list[bytes] = []
    for index, own in enumerate(of_rows):
        try:
            merged.append(encoder.merge(properties if own is None else own, keywords))
        except InvalidMessage as error:
            raise InvalidMessage(f"row {index}: {error}") from None
    return merged


def _read_messages(
    encoder: Encoder, messages: Sequence[Any], properties: Properties | None, keywords: dict[str, PropertyValue]
) -> Rows:
    rows = [_in_row(index, _message, message) for index, message in enumerate(messages)]
    return Rows(
        [row.exchange for row in rows],
        [row.routing_key for row in rows],
        _merged(encoder, [row.properties for row in rows], len(rows), properties, keywords),
        _bodies([row.body for row in rows]),
    )


def _message(value: Any) -> Unpublished:
    if not isinstance(value, tuple) or len(value) != len(Unpublished._fields):
        raise InvalidMessage(f"expected (exchange, routing key, properties, body) as in Unpublished, not {value!r:.100}")
    return Unpublished(name_of(value[0]), name_of(value[1]), value[2], value[3])


def _read_table(
    encoder: Encoder,
    table: ArrowTable,
    routing_key: Any,
    exchange: Any,
    properties: Properties | None,
    keywords: dict[str, PropertyValue],
) -> Rows:
    names: list[str] = table.schema.names
    known = ("body", "routing_key", "exchange", *NAMES)
    unknown = [name for name in names if name not in known]
    if "body" not in names or unknown:
        problem = f"unknown column {unknown[0]!r}" if unknown else "no column 'body'"
        raise InvalidMessage(f"messages: {problem}; expected the columns body and, if needed, {', '.join(known[1:])}")
    count = table.num_rows
    own = [name for name in names if name in NAMES and name not in keywords]
    of_rows: list[Properties | None] | None = None
    if own:
        columns = [table.column(name).to_pylist() for name in own]
        of_rows = [
            from_keywords(properties, {name: value for name, value in zip(own, values, strict=True) if value is not None})
            for values in zip(*columns, strict=True)
        ]
    return Rows(
        _names(table.column("exchange") if "exchange" in names else exchange, count, "exchange"),
        _names(table.column("routing_key") if "routing_key" in names else routing_key, count, "routing_key"),
        _merged(encoder, of_rows, count, properties, keywords),
        _bodies(table.column("body").to_pylist()),
    )


class BatchCore(PublisherCore):
    """The publishes of one batch: record batches, or single messages."""

    __slots__ = ("_encoder", "_flags", "_reason", "_refused", "_returned", "_rows", "_sent")

    def __init__(self, channel: BaseChannelCore, encoder: Encoder, rows: Rows, flags: int) -> None:
        super().__init__(channel, BATCH_WINDOW if channel.batches else SINGLE_WINDOW)
        self._encoder = encoder
        self._rows = rows
        self._flags = flags
        # The numbers of the rows of each publish, and whether it is a record batch.
        self._sent: dict[Outgoing, tuple[range, bool]] = {}
        self._returned: list[int] = []
        self._refused: list[int] = []
        # Why the first of these was refused.
        self._reason = ""

    def outgoing(self) -> Iterator[Outgoing]:
        """Encode and yield the publishes in order. Raises `InvalidMessage`."""
        rows = self._rows
        channel = self.channel
        if not channel.batches:
            for index in range(len(rows)):
                outgoing = self._encode(index)
                self._sent[outgoing] = range(index, index + 1), False
                yield outgoing
            return
        ordered = True
        for first, stop in rows.pieces():
            fits = stop - first > 1 or rows.fits(first)
            outgoing = channel.encode_batch(rows, first, stop, self._flags) if fits else self._encode(first)
            # Over 1.0, links are not ordered, so a single message has the window for itself.
            self.window = BATCH_WINDOW if fits and ordered else 1
            ordered = fits
            self._sent[outgoing] = range(first, stop), fits
            yield outgoing

    def _encode(self, index: int) -> Outgoing:
        """Return a row as a single publish."""
        rows = self._rows
        return self._encoder.encode(
            rows.bodies[index], rows.exchanges[index], rows.keys[index], self._flags, rows.properties[index]
        )

    def settled(self, outgoing: Outgoing, error: Error | None) -> None:
        super().settled(outgoing, error)
        self._sent.pop(outgoing, None)

    def note_failure(self, outgoing: Outgoing, error: Error) -> None:
        numbers, is_batch = self._sent[outgoing]
        report = self.channel.read_report(error) if is_batch else None
        if report is not None:
            if self._flags & MANDATORY:
                self._returned += [numbers[index] for index in report.unroutable]
            self._refused += [numbers[index] for index in report.refused]
            self._reason = self._reason or (str(report) if report.refused else "")
        elif isinstance(error, Returned):
            self._returned += numbers
        elif isinstance(error, Nacked) and not (is_batch and error.condition):
            self._refused += numbers
            self._reason = self._reason or str(error)
        elif self.error is None or isinstance(self.error, BatchFailed):
            self.error = error
        if self.error is None and (self._returned or self._refused):
            self.error = BatchFailed()

    def take_error(self) -> Error:
        error = self.error
        assert error is not None
        if not isinstance(error, BatchFailed):
            return error
        rows = self._rows
        returned, refused = sorted(self._returned), sorted(self._refused)
        parts = [
            f"{len(numbers)} {what}, the first is row {numbers[0]}{reason}"
            for what, numbers, reason in (("unroutable", returned, ""), ("refused", refused, f": {self._reason}"))
            if numbers
        ]
        return BatchFailed(
            f"{len(returned) + len(refused)} of {len(rows)} messages were not published: {'; '.join(parts)}",
            messages=[self._encode(index).describe() for index in sorted(returned + refused)],
            unroutable=returned,
            refused=refused,
        )
