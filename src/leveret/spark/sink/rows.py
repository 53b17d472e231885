"""Rows of a sink as encoded messages: the parts that both protocols share."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from leveret.segments import typed_json

if TYPE_CHECKING:
    import pyarrow as pa

# Exchange names, routing keys and most properties of 0-9-1 are short strings.
MAX_SHORT_STRING: Final = 255
_MAX_TEXT: Final = 4096
# Maximum size of a column with 32-bit positions.
_MAX_COLUMN: Final = 1 << 30

# A value of a row as `to_pylist` returns it. Its type follows from the schema, which is checked first.
Cell: TypeAlias = Any


class Rows:
    """Encoded messages of one Arrow batch, in order, without rejected rows.

    Attributes:
        exchanges, routing_keys: Address of each message.
        properties: Encoded properties, one object for all messages or a list: the payload of a header frame after the body
            size (0-9-1), or the sections before the body (1.0).
        bodies: The bodies; for 1.0 the encoded sections from the body on.
        contents: The bytes that the broker counts as bodies: for 1.0 the contents of the sections, otherwise `bodies`.
        size: Total size of `bodies` in bytes.
    """

    __slots__ = ("_bodies", "_contents", "_exchanges", "_routing_keys", "properties", "size")

    def __init__(
        self,
        exchanges: list[str],
        routing_keys: list[str],
        properties: bytes | list[bytes],
        bodies: list[bytes],
        contents: list[bytes] | None = None,
    ) -> None:
        self._contents = bodies if contents is None else contents
        self._exchanges = exchanges
        self._routing_keys = routing_keys
        self.properties = properties
        self._bodies = bodies
        self.size = sum(map(len, bodies))

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def exchanges(self) -> list[str]:
        return self._exchanges

    @property
    def routing_keys(self) -> list[str]:
        return self._routing_keys

    @property
    def bodies(self) -> list[bytes]:
        return self._bodies

    @property
    def contents(self) -> list[bytes]:
        return self._contents

    def addresses(self) -> list[tuple[str, str]]:
        """Return exchange and routing key of each message, or those of all messages once."""
        return list(zip(self.exchanges, self.routing_keys, strict=True))

    def body_ends(self) -> Sequence[int]:
        """Return the position of each body in all of them, and their end."""
        return list(accumulate(map(len, self.bodies), initial=0))

    def packed_bodies(self) -> tuple[bytes, bytes | memoryview]:
        """Return the sizes of the bodies as 32-bit numbers, little-endian, and all bodies."""
        return struct.pack(f"<{len(self)}I", *map(len, self.bodies)), b"".join(self.bodies)

    def checksum(self, running: int) -> int:
        """Return a running CRC-32 extended by `contents`."""
        return zlib.crc32(b"".join(self.contents), running)

    def slice(self, start: int, stop: int) -> Rows:
        """Return the messages from `start` to before `stop`."""
        if start == 0 and stop >= len(self.bodies):
            return self
        properties = self.properties if isinstance(self.properties, bytes) else self.properties[start:stop]
        contents = None if self._contents is self._bodies else self.contents[start:stop]
        return Rows(
            self.exchanges[start:stop], self.routing_keys[start:stop], properties, self.bodies[start:stop], contents
        )

    def at(self, index: int) -> Rows:
        return self.slice(index, index + 1)


class ColumnRows(Rows):
    """Rows with one address whose bodies stay in an Arrow column of type binary, without null."""

    __slots__ = ("_address", "_column", "_ends")

    def __init__(self, address: tuple[str, str], properties: bytes | list[bytes], column: pa.Array) -> None:
        self._address = address
        self._column = column
        self._ends = memoryview(column.buffers()[1]).cast("i")[column.offset : column.offset + len(column) + 1]
        self.properties = properties
        self.size = self._ends[-1] - self._ends[0]

    def __len__(self) -> int:
        return len(self._column)

    @property
    def exchanges(self) -> list[str]:
        return [self._address[0]] * len(self)

    @property
    def routing_keys(self) -> list[str]:
        return [self._address[1]] * len(self)

    @property
    def bodies(self) -> list[bytes]:
        found: list[bytes] = self._column.to_pylist()
        return found

    @property
    def contents(self) -> list[bytes]:
        return self.bodies

    def addresses(self) -> list[tuple[str, str]]:
        return [self._address]

    def body_ends(self) -> Sequence[int]:
        return self._ends

    def packed_bodies(self) -> tuple[bytes, bytes | memoryview]:
        import pyarrow.compute as pc

        sizes = pc.binary_length(self._column)
        begin = 4 * sizes.offset
        return bytes(memoryview(sizes.buffers()[1])[begin : begin + 4 * len(sizes)]), self._data()

    def checksum(self, running: int) -> int:
        return zlib.crc32(self._data(), running)

    def _data(self) -> bytes | memoryview:
        data = self._column.buffers()[2]
        return b"" if data is None else memoryview(data)[self._ends[0] : self._ends[-1]]

    def slice(self, start: int, stop: int) -> Rows:
        if start == 0 and stop >= len(self):
            return self
        properties = self.properties if isinstance(self.properties, bytes) else self.properties[start:stop]
        return ColumnRows(self._address, properties, self._column.slice(start, max(0, stop - start)))


class RejectedRow:
    """A row that cannot be published.

    Attributes:
        index: Index in its batch.
        reason: Human-readable reason.
        exchange, routing_key, body: None if unknown.
    """

    __slots__ = ("body", "exchange", "index", "reason", "routing_key")

    def __init__(self, index: int, reason: str, exchange: str, routing_key: str, body: bytes) -> None:
        self.index = index
        self.reason = reason
        self.exchange = exchange
        self.routing_key = routing_key
        self.body = body

    def headers(self) -> dict[str, str]:
        """Return the headers of a dead letter for this row."""
        return {
            "x-exception-message": self.reason[:_MAX_TEXT],
            "x-original-exchange": self.exchange[:_MAX_TEXT],
            "x-original-routing-key": self.routing_key[:_MAX_TEXT],
        }


class Limits:
    """Limits of the connection and of addresses, in bytes.

    Attributes:
        body: Size of a body.
        exchange: Length of an exchange's name.
        header: Size of a message's properties.
    """

    __slots__ = ("body", "exchange", "header")

    def __init__(self, body: int = 128 << 20, exchange: int = MAX_SHORT_STRING, header: int = 131064 - 12) -> None:
        self.body = body
        self.exchange = exchange
        self.header = header


class RowErrors:
    """Reasons why rows cannot be published, by index; the first reason of each row is kept."""

    __slots__ = ("reasons",)

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}

    def add(self, index: int, reason: str) -> None:
        self.reasons.setdefault(index, reason)


class AddressOptions:
    """The address of rows: options override columns."""

    __slots__ = ("exchange", "routing_key")

    def __init__(self, exchange: str | None, routing_key: str | None) -> None:
        self.exchange = exchange
        self.routing_key = routing_key

    def addresses(self, batch: pa.RecordBatch, limits: Limits, errors: RowErrors) -> tuple[list[str], list[str]]:
        """Return exchanges and routing keys of all rows; rows with an invalid address are added to `errors`."""
        rows = batch.num_rows
        exchanges = self._of("exchange", self.exchange, batch)
        keys = self._of("routing_key", self.routing_key, batch)
        found_exchanges = [""] * rows if exchanges is None else exchanges
        for index, exchange in _invalid_names(found_exchanges, limits.exchange):
            errors.add(
                index,
                'exchange: null; expected a name, or "" for the default exchange'
                if exchange is None
                else f"exchange: a name of {len(exchange.encode())} bytes; expected at most {limits.exchange}",
            )
            found_exchanges[index] = ""
        found_keys: list[str] = [""] * rows if keys is None else [key if key is not None else "" for key in keys]
        for index, key in _invalid_names(found_keys, MAX_SHORT_STRING):
            errors.add(index, f"routing_key: {len(key.encode())} bytes; expected at most {MAX_SHORT_STRING}")
            found_keys[index] = ""
        return found_exchanges, found_keys

    def common(self, batch: pa.RecordBatch, limits: Limits) -> tuple[str, str] | None:
        """Return exchange and routing key if all rows of the batch have the same valid ones by the options."""
        names = batch.schema.names
        if (self.exchange is None and "exchange" in names) or (self.routing_key is None and "routing_key" in names):
            return None
        address = self.exchange or "", self.routing_key or ""
        valid = len(address[0].encode()) <= limits.exchange and len(address[1].encode()) <= MAX_SHORT_STRING
        return address if valid else None

    @staticmethod
    def _of(name: str, option: str | None, batch: pa.RecordBatch) -> list[Cell] | None:
        if option is not None:
            return [option] * batch.num_rows
        if name not in batch.schema.names:
            return None
        found: list[Cell] = batch.column(name).to_pylist()
        return found


def _invalid_names(names: list[Cell], max_bytes: int) -> list[tuple[int, Cell]]:
    distinct = {
        name for name in set(names) if name is None or (len(name) > max_bytes // 4 and len(name.encode()) > max_bytes)
    }
    if not distinct:
        return []
    return [(index, name) for index, name in enumerate(names) if name in distinct]


def body_column(batch: pa.RecordBatch, limits: Limits) -> pa.Array | None:
    """Return the bodies as an Arrow column of type binary; None if some are null, or could be too large."""
    import pyarrow as pa

    column = batch.column("body")
    if column.null_count or column.nbytes > min(limits.body, _MAX_COLUMN):
        return None
    return column.cast(pa.binary())


def encode_bodies(batch: pa.RecordBatch, limits: Limits, errors: RowErrors) -> list[bytes]:
    """Return the bodies as bytes; b"" for rows that are added to `errors`."""
    import pyarrow as pa

    column = batch.column("body")
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
    bodies: list[Cell] = column.to_pylist()
    if column.null_count:
        for index, body in enumerate(bodies):
            if body is None:
                errors.add(index, "body: null; expected bytes")
                bodies[index] = b""
    if column.nbytes > limits.body:
        for index, body in enumerate(bodies):
            if len(body) > limits.body:
                errors.add(index, f"body: {len(body)} bytes; expected at most {limits.body} (option maxMessageBytes)")
    return bodies


def distinct(
    column: pa.Array, encode: Callable[[Cell], Cell], name: str, errors: RowErrors
) -> tuple[list[Cell], list[int]]:
    """Encode the distinct values of a column.

    Returns:
        The encoded values followed by None, and each row's index into them. Values for which `encode` raises ValueError
        are None, and their rows are added to `errors`.
    """
    import pyarrow.compute as pc

    found = column.dictionary_encode()
    encoded: list[Cell] = []
    wrong: dict[int, str] = {}
    for value in found.dictionary.to_pylist():
        try:
            encoded.append(encode(value))
        except (ValueError, OverflowError) as error:
            wrong[len(encoded)] = f"{name}: {error}"
            encoded.append(None)
    indices = pc.fill_null(found.indices, len(encoded)).to_pylist() if column.null_count else found.indices.to_pylist()
    encoded.append(None)
    if wrong:
        for row, index in enumerate(indices):
            if index in wrong:
                errors.add(row, wrong[index])
    return encoded, indices


def headers_of(headers: list[tuple[str, str | None]] | None, headers_json: str | None) -> dict[str, Cell] | None:
    """Return the headers of a row as JSON data: `headers_json` if set, otherwise `headers`. Raises ValueError."""
    if headers_json is not None:
        found = typed_json.parse(headers_json)
        if not isinstance(found, dict):
            raise ValueError(f"expected a JSON object, not {headers_json[:40]!r}")
        return found
    return None if headers is None else dict(headers)


def drop_rejected(rows: Rows, errors: RowErrors) -> tuple[Rows, list[RejectedRow]]:
    """Split rows into those without and those with errors."""
    if not errors.reasons:
        return rows, []
    rejected = [
        RejectedRow(index, reason, rows.exchanges[index], rows.routing_keys[index], rows.contents[index])
        for index, reason in sorted(errors.reasons.items())
    ]
    kept = [index for index in range(len(rows)) if index not in errors.reasons]
    properties = rows.properties if isinstance(rows.properties, bytes) else [rows.properties[index] for index in kept]
    return Rows(
        [rows.exchanges[index] for index in kept],
        [rows.routing_keys[index] for index in kept],
        properties,
        [rows.bodies[index] for index in kept],
        None if rows.contents is rows.bodies else [rows.contents[index] for index in kept],
    ), rejected
