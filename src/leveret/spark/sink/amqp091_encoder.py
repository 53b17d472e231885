"""Encodes rows as AMQP 0-9-1 messages: Arrow columns to the payloads of header frames.

A property is encoded once per distinct value of its column, and a batch with equal properties shares one payload.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from leveret.segments import typed_json
from leveret.segments.texts import clean
from leveret.spark.sink.rows import (
    AddressOptions,
    Cell,
    ColumnRows,
    Limits,
    RejectedRow,
    RowErrors,
    Rows,
    body_column,
    distinct,
    drop_rejected,
    encode_bodies,
    headers_of,
)
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.fieldtable import encode_short_string, encode_table

if TYPE_CHECKING:
    import pyarrow as pa

_U16: Final = struct.Struct(">H").pack
_U64: Final = struct.Struct(">Q").pack
_HEADERS: Final = 0x2000


def _durable(value: bool) -> bytes:
    return b"\x02" if value else b"\x01"


def _priority(value: int) -> bytes:
    if not 0 <= value <= 255:
        raise ValueError(f"{value}; expected an integer from 0 to 255")
    return bytes((value,))


def _expiration(value: int) -> bytes:
    if value < 0:
        raise ValueError(f"{value}; expected milliseconds, 0 or more")
    return encode_short_string(str(value))


def _timestamp(value: int) -> bytes:
    if value < 0:
        raise ValueError("a time before 1970, which AMQP 0-9-1 cannot represent")
    return _U64(value // 1_000_000)


# (column, property flag, encoder) in the order of the properties; the headers and `durable` come in between.
_BEFORE_HEADERS: Final[tuple[tuple[str, int, Callable[[Cell], bytes]], ...]] = (
    ("content_type", 0x8000, encode_short_string),
    ("content_encoding", 0x4000, encode_short_string),
)
_AFTER_HEADERS: Final[tuple[tuple[str, int, Callable[[Cell], bytes]], ...]] = (
    ("priority", 0x0800, _priority),
    ("correlation_id", 0x0400, encode_short_string),
    ("reply_to", 0x0200, encode_short_string),
    ("ttl_ms", 0x0100, _expiration),
    ("message_id", 0x0080, encode_short_string),
    ("timestamp", 0x0040, _timestamp),
    ("type", 0x0020, encode_short_string),
    ("user_id", 0x0010, encode_short_string),
    ("app_id", 0x0008, encode_short_string),
)
# Fields of the column `amqp10` that become headers.
_FIELD_HEADERS: Final = {
    "to": "x-opt-to",
    "subject": "x-opt-subject",
    "group_sequence": "x-opt-group-sequence",
    "reply_to_group_id": "x-opt-reply-to-group-id",
    "message_id_type": "x-opt-message-id-type",
    "correlation_id_type": "x-opt-correlation-id-type",
}
# Types that need no header, because the columns imply them.
_DEFAULT_ID_TYPES: Final = (None, "", "string")
# Annotations that 0-9-1 represents otherwise.
_NOT_HEADERS: Final = ("x-exchange", "x-routing-key", "x-basic-type", "x-opt-cluster-id", "x-opt-deaths")
_NESTED_PREFIX: Final = "x-opt-header-"


class _Payload:
    """Property flags and properties of a batch of rows, shared as long as all rows are equal."""

    __slots__ = ("flags", "pieces", "same")

    def __init__(self) -> None:
        # `same` has the flags of constant properties. A piece is bytes for all rows, or a list with one entry per row.
        self.same = 0
        self.flags: list[list[int]] = []
        self.pieces: list[bytes | list[bytes]] = []

    def add(self, flag: int, encoded: list[Cell], indices: list[int]) -> None:
        """Add a property: its distinct encoded values (None: absent), and each row's index into them."""
        if len(encoded) == 2 and len(set(indices)) == 1:
            value = encoded[indices[0]]
            if value is not None:
                self.same |= flag
                self._add_piece(value)
            return
        values = [b"" if value is None else value for value in encoded]
        bits = [0 if value is None else flag for value in encoded]
        if any(bits):
            self.pieces.append([values[index] for index in indices])
            self.flags.append([bits[index] for index in indices])

    def _add_piece(self, piece: bytes) -> None:
        if self.pieces and isinstance(self.pieces[-1], bytes):
            self.pieces[-1] += piece
        else:
            self.pieces.append(piece)

    def payloads(self, rows: int) -> bytes | list[bytes]:
        if not self.flags:
            return b"".join([_U16(self.same), *[piece for piece in self.pieces if isinstance(piece, bytes)]])
        cache: dict[int, bytes] = {}
        same = self.same
        heads: list[bytes] = []
        for bits in zip(*self.flags, strict=True):
            flags = same | sum(bits)
            head = cache.get(flags)
            if head is None:
                head = cache[flags] = _U16(flags)
            heads.append(head)
        columns = [[piece] * rows if isinstance(piece, bytes) else piece for piece in self.pieces]
        return list(map(b"".join, zip(heads, *columns, strict=True)))


class Amqp091Encoder:
    """Encodes Arrow batches as AMQP 0-9-1 messages.

    A row without `durable` is persistent. `headers_json` takes precedence over `headers`; fields that only AMQP 1.0 has
    become headers, see docs/conversion.md.
    """

    def __init__(self, address: AddressOptions, limits: Limits) -> None:
        self._address = address
        self._limits = limits
        self._cache: dict[Cell, bytes] = {}

    def encode(self, batch: pa.RecordBatch) -> tuple[Rows, list[RejectedRow]]:
        """Return the messages, and the rows that cannot be encoded."""
        errors = RowErrors()
        limits = self._limits
        address = self._address.common(batch, limits)
        column = body_column(batch, limits) if address is not None else None
        exchanges: list[str] = []
        keys: list[str] = []
        bodies: list[bytes] = []
        if column is None:
            exchanges, keys = self._address.addresses(batch, limits, errors)
            bodies = encode_bodies(batch, limits, errors)
        batch = _with_group(batch)
        payload = _Payload()
        names = batch.schema.names
        for name, flag, encode in _BEFORE_HEADERS:
            self._property(payload, batch, names, name, flag, encode, errors)
        self._headers(payload, batch, names, errors)
        if "durable" in names and batch.column("durable").null_count < batch.num_rows:
            encoded, indices = distinct(batch.column("durable").fill_null(True), _durable, "durable", errors)
            payload.add(0x1000, encoded, indices)
        else:
            payload.add(0x1000, [b"\x02", None], [0] * batch.num_rows)
        for name, flag, encode in _AFTER_HEADERS:
            self._property(payload, batch, names, name, flag, encode, errors)
        payloads = payload.payloads(batch.num_rows)
        max_size = len(payloads) if isinstance(payloads, bytes) else max(map(len, payloads), default=0)
        if max_size > limits.header:
            for index in range(batch.num_rows):
                size = max_size if isinstance(payloads, bytes) else len(payloads[index])
                if size > limits.header:
                    errors.add(
                        index,
                        f"the properties take {size} bytes; a header frame of this connection has room for "
                        f"{limits.header} (headers, headers_json)",
                    )
        if address is None or column is None:
            return drop_rejected(Rows(exchanges, keys, payloads, bodies), errors)
        return drop_rejected(ColumnRows(address, payloads, column), errors)

    @staticmethod
    def dead_letter(row: RejectedRow, exchange: str, routing_key: str) -> Rows:
        """Return a message with the body of a rejected row and the reason in its headers."""
        table = encode_table({name: clean(text) for name, text in row.headers().items()}, RABBITMQ)
        return Rows([exchange], [routing_key], _U16(_HEADERS | 0x1000) + table + b"\x02", [row.body])

    @staticmethod
    def _property(
        payload: _Payload,
        batch: pa.RecordBatch,
        names: list[str],
        name: str,
        flag: int,
        encode: Callable[[Cell], bytes],
        errors: RowErrors,
    ) -> None:
        if name not in names:
            return
        column = batch.column(name)
        if column.null_count == batch.num_rows:
            return
        if name == "timestamp":
            column = column.cast("int64")
        payload.add(flag, *distinct(column, encode, name, errors))

    def _headers(self, payload: _Payload, batch: pa.RecordBatch, names: list[str], errors: RowErrors) -> None:
        rows = batch.num_rows
        columns = [
            batch.column(name) if name in names and batch.column(name).null_count < rows else None
            for name in ("headers", "headers_json", "amqp10")
        ]
        texts, typed, amqp10 = columns
        if amqp10 is None and texts is None:
            if typed is not None:
                payload.add(_HEADERS, *distinct(typed, _typed, "headers_json", errors))
            return
        if amqp10 is None and typed is not None and not typed.null_count:
            payload.add(_HEADERS, *distinct(typed, _typed, "headers_json", errors))
            return
        nothing: list[Cell] = [None] * rows
        encoded: list[Cell] = []
        found: dict[tuple[Cell, ...], int] = {}
        indices: list[int] = []
        for index, (headers, text, only10) in enumerate(
            zip(*[nothing if column is None else column.to_pylist() for column in columns], strict=True)
        ):
            key = (
                tuple(headers) if headers is not None and text is None else None,
                text,
                None if only10 is None else repr(only10),
            )
            place = found.get(key)
            if place is None:
                try:
                    table = headers_of(headers, text)
                    if only10 is not None:
                        table = {**(table or {}), **_headers_of_amqp10(only10)} or table
                    value = None if table is None else typed_json.to_table(table)
                except (ValueError, OverflowError) as error:
                    errors.add(index, f"{'headers' if text is None else 'headers_json'}: {error}")
                    value = None
                place = len(encoded)
                encoded.append(value)
                if index not in errors.reasons:
                    found[key] = place
            indices.append(place)
        payload.add(_HEADERS, [*encoded, None], indices)


def _with_group(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with the groups of AMQP 1.0 as `app_id`, their equivalent in 0-9-1."""
    import pyarrow.compute as pc

    names = batch.schema.names
    if "amqp10" not in names or batch.column("amqp10").null_count == batch.num_rows:
        return batch
    group = pc.struct_field(batch.column("amqp10"), "group_id")
    if "app_id" not in names:
        return batch.append_column("app_id", group)
    return batch.set_column(names.index("app_id"), "app_id", pc.coalesce(batch.column("app_id"), group))


def _typed(text: str) -> bytes:
    return typed_json.to_table(headers_of(None, text))


def _headers_of_amqp10(value: dict[str, Cell]) -> dict[str, Cell]:
    """Return headers, as JSON data, for the fields that only 1.0 has (docs/conversion.md).

    Raises:
        ValueError: The annotations are not JSON.
    """
    headers = _from_annotations(value.get("message_annotations"))
    if value.get("body_type") == "string":
        headers["x-opt-amqp-body"] = "string"
    for field, name in _FIELD_HEADERS.items():
        found = value.get(field)
        if found is None or (field.endswith("_id_type") and found in _DEFAULT_ID_TYPES):
            continue
        headers[name] = {"$long": found} if isinstance(found, int) else found
    expiry = value.get("absolute_expiry_time")
    if isinstance(expiry, datetime):
        headers["x-opt-absolute-expiry-time"] = {"!timestamp": expiry.astimezone(UTC).isoformat()}
    return headers


def _from_annotations(text: str | None) -> dict[str, Cell]:
    if text is None:
        return {}
    found = typed_json.parse(text)
    if not isinstance(found, dict):
        raise ValueError(f"amqp10.message_annotations: expected a JSON object, not {text[:40]!r}")
    return {
        name.removeprefix(_NESTED_PREFIX): item
        for name, item in found.items()
        if name.startswith("x-") and name not in _NOT_HEADERS
    }
