"""Encodes rows as AMQP 1.0 messages: Arrow columns to encoded sections.

A row whose column `amqp10` is null becomes the 1.0 form of a 0-9-1 message (docs/conversion.md). Otherwise the struct has
the fields that only 1.0 has, and every value keeps its type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from leveret.client.engine.amqp10.addresses import Addresses
from leveret.segments import typed_json
from leveret.segments.texts import clean
from leveret.spark.sink.rows import (
    AddressOptions,
    Cell,
    Limits,
    RejectedRow,
    RowErrors,
    Rows,
    drop_rejected,
    encode_bodies,
    headers_of,
)
from leveret.wire.amqp10 import message
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.messaging import Properties as Fields
from leveret.wire.amqp10.sections import section_ranges
from leveret.wire.amqp10.values import Map, Symbol, ULong

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS: Final = (
    "durable",
    "priority",
    "ttl_ms",
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "headers",
    "headers_json",
    "amqp10",
)
# Prefixes of body sections other than data.
_SECTION_PREFIXES: Final = {"value": b"\x00\x53\x77", "sequence": b"\x00\x53\x76"}
_MAX_CACHED: Final = 4096
_NESTED_PREFIX: Final = "x-opt-header-"


class Amqp10Encoder:
    """Encodes Arrow batches as AMQP 1.0 messages. A row without `durable` is durable."""

    def __init__(self, address: AddressOptions, limits: Limits, addresses: Addresses) -> None:
        self._address = address
        self._limits = limits
        self._addresses = addresses
        self._cache: dict[Cell, bytes] = {}

    def encode(self, batch: pa.RecordBatch) -> tuple[Rows, list[RejectedRow]]:
        """Return the messages, and the rows that cannot be encoded."""
        errors = RowErrors()
        exchanges, keys = self._address.addresses(batch, self._limits, errors)
        bodies = encode_bodies(batch, self._limits, errors)
        nothing: list[Cell] = [None] * batch.num_rows
        columns = []
        for name in _COLUMNS:
            column = batch.column(name) if name in batch.schema.names else None
            if column is not None and name == "timestamp":
                column = column.cast("int64")
            columns.append(nothing if column is None else column.to_pylist())
        heads: list[bytes] = []
        sections: list[bytes] = []
        contents = list(bodies)
        for index, values in enumerate(zip(*columns, strict=True)):
            amqp10 = values[14]
            footer = b""
            if index in errors.reasons:
                heads.append(b"")
                sections.append(bodies[index])
                continue
            try:
                head = self._head(values, amqp10)
                if amqp10 is not None and amqp10.get("footer") is not None:
                    footer = message.encode_footer(_map("footer", amqp10["footer"], True))
                section, contents[index] = _body(bodies[index], amqp10)
                sections.append(section + footer)
            except (ValueError, OverflowError, TypeError) as error:
                errors.add(index, str(error))
                head = b""
                del sections[index:]
                sections.append(bodies[index])
            heads.append(head)
        return drop_rejected(Rows(exchanges, keys, heads, sections, contents), errors)

    @staticmethod
    def dead_letter(row: RejectedRow, exchange: str, routing_key: str) -> Rows:
        """Like `Amqp091Encoder.dead_letter`, with application properties."""
        head = message.encode_header(True, -1, -1, False, 0)
        head += message.encode_application_properties({name: clean(text) for name, text in row.headers().items()})
        return Rows([exchange], [routing_key], head, [message.encode_data_head(len(row.body)) + row.body], [row.body])

    def _head(self, values: tuple[Cell, ...], amqp10: dict[str, Cell] | None) -> bytes:
        """Return the sections before the body."""
        if amqp10 is not None:
            return self._native(values, amqp10)
        headers = values[12]
        key = (*values[:12], tuple(headers) if headers is not None else None, values[13])
        found = self._cache.get(key)
        if found is None:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            found = self._cache[key] = self._plain(values)
        return found

    def _header(self, values: tuple[Cell, ...]) -> bytes:
        durable, priority, ttl = values[:3]
        if priority is not None and not 0 <= priority <= 255:
            raise ValueError(f"priority: {priority}; expected an integer from 0 to 255")
        if ttl is not None and not 0 <= ttl < 1 << 32:
            raise ValueError(f"ttl_ms: {ttl}; expected milliseconds from 0 to 4294967295")
        return message.encode_header(
            durable is not False, -1 if priority is None else priority, -1 if ttl is None else ttl, False, 0
        )

    def _plain(self, values: tuple[Cell, ...]) -> bytes:
        _, _, _, content_type, encoding, correlation_id, reply_to, message_id, micros, kind, user_id, app_id = values[:12]
        encoded = self._header(values)
        annotations: dict[Cell, Cell] = {}
        application: dict[str, Cell] = {}
        if kind is not None:
            annotations["x-basic-type"] = kind
        for name, value in _headers(values).items():
            if name.startswith("x-"):
                annotations["x-opt-deaths" if name == "x-death" else name] = value
            elif isinstance(value, (list, dict, Map)):
                annotations[_NESTED_PREFIX + name] = value
            else:
                application[name] = value
        if annotations:
            encoded += message.encode_message_annotations(annotations)
        if reply_to is not None and "/" not in reply_to:
            reply_to = self._addresses.of_queue(reply_to)
        fields = Fields(
            message_id,
            None if user_id is None else user_id.encode(),
            None,
            None,
            reply_to,
            correlation_id,
            content_type,
            encoding,
            None,
            None if micros is None else micros // 1000,
            app_id,
        )
        encoded += _properties(fields)
        return encoded + message.encode_application_properties(application) if application else encoded

    def _native(self, values: tuple[Cell, ...], amqp10: dict[str, Cell]) -> bytes:
        _, _, _, content_type, encoding, correlation_id, reply_to, message_id, micros, subject, user_id, _ = values[:12]
        encoded = self._header(values)
        for name, encode in (
            ("delivery_annotations", message.encode_delivery_annotations),
            ("message_annotations", message.encode_message_annotations),
        ):
            text = amqp10.get(name)
            if text is not None:
                encoded += encode(_map(name, text, True))
        expiry = amqp10.get("absolute_expiry_time")
        fields = Fields(
            _identifier("message_id", message_id, amqp10.get("message_id_type")),
            None if user_id is None else user_id.encode(),
            amqp10.get("to"),
            subject,
            reply_to,
            _identifier("correlation_id", correlation_id, amqp10.get("correlation_id_type")),
            content_type,
            encoding,
            None if expiry is None else _millis(expiry),
            None if micros is None else micros // 1000,
            amqp10.get("group_id"),
            amqp10.get("group_sequence"),
            amqp10.get("reply_to_group_id"),
        )
        encoded += _properties(fields)
        text = amqp10.get("application_properties")
        if text is not None:
            return encoded + message.encode_application_properties(_map("application_properties", text, False))
        headers = _headers(values)
        return encoded + message.encode_application_properties(headers) if headers else encoded


def _headers(values: tuple[Cell, ...]) -> dict[str, Cell]:
    try:
        return {name: typed_json.to_value(name, item) for name, item in (headers_of(values[12], values[13]) or {}).items()}
    except ValueError as error:
        raise ValueError(f"{'headers' if values[13] is None else 'headers_json'}: {error}") from None


def _properties(fields: Fields) -> bytes:
    if all(getattr(fields, name) is None for name in message.PROPERTY_FIELDS):
        return b""
    return message.encode_properties(fields)


def _millis(moment: Cell) -> int:
    from datetime import UTC, datetime, timedelta

    return int((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))


def _map(name: str, text: str, symbols: bool) -> Cell:
    """Decode a JSON map; with `symbols` its keys become symbols."""
    data = typed_json.parse(text)
    value = typed_json.to_value(name, data)
    if isinstance(value, dict):
        return {Symbol(key) if symbols and type(key) is str else key: item for key, item in value.items()}
    if isinstance(value, Map):
        return value
    raise ValueError(f"{name}: expected a JSON object, not {text[:40]!r}")


def _identifier(name: str, text: str | None, kind: str | None) -> Cell:
    if text is None or kind in (None, "", "string"):
        return text
    try:
        if kind == "uuid":
            return UUID(text)
        if kind == "ulong":
            return ULong(int(text))
        if kind == "binary":
            return typed_json.to_value(name, {"$binary": text})
    except ValueError:
        raise ValueError(f"{name}: {text[:40]!r} is not a {kind} (amqp10.{name}_type)") from None
    raise ValueError(f"amqp10.{name}_type: {kind!r}; expected string, uuid, ulong or binary")


def _body(body: bytes, amqp10: dict[str, Cell] | None) -> tuple[bytes, bytes]:
    """Return the body sections, and the bytes that the broker counts as the body.

    These are the content of a text, and the encoded sections of any other value.
    """
    kind = amqp10.get("body_type") if amqp10 is not None else None
    if kind in (None, "data"):
        return message.encode_data_head(len(body)) + body, body
    if kind == "string":
        return message.encode_body_value(_text(body)), body
    start = _SECTION_PREFIXES.get("value" if kind == "binary" else kind)
    if start is None:
        raise ValueError(f"amqp10.body_type: {kind!r}; expected data, string, binary, value or sequence")
    if kind != "binary" and body.startswith(start):
        try:
            section_ranges(body)
            return body, body
        except (DecodeError, IndexError, ValueError):
            pass
    if kind == "sequence":
        raise ValueError("body: not AMQP 1.0 sections, as amqp10.body_type 'sequence' requires")
    if kind == "value":
        try:
            return message.encode_body_value(body.decode("utf-8")), body
        except UnicodeDecodeError:
            pass
    section = message.encode_body_value(body)
    return section, section


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("body: not UTF-8 text, as amqp10.body_type 'string' requires") from None
