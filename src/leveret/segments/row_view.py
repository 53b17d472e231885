"""View of a segment's row as a message for selectors."""

from __future__ import annotations

from base64 import b64decode
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

from leveret.segments import typed_json
from leveret.segments.texts import untag
from leveret.segments.typed_json import Json
from leveret.selectors import HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, MessageView
from leveret.wire.amqp10.values import Decimal32, Decimal64, Decimal128, Value

_HEADER: Final = {"durable": "durable", "priority": "priority", "ttl": "ttl_ms", "delivery-count": "delivery_count"}
_PROPERTIES: Final = {
    "subject": "type",
    "reply-to": "reply_to",
    "content-type": "content_type",
    "content-encoding": "content_encoding",
    "to": "to",
    "group-id": "group_id",
    "group-sequence": "group_sequence",
    "reply-to-group-id": "reply_to_group_id",
}
_TIMES: Final = {"creation-time": "timestamp", "absolute-expiry-time": "absolute_expiry_time"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_IDENTIFIERS: Final = {"message-id": "message_id", "correlation-id": "correlation_id"}
COLUMNS: Final = (
    "exchange",
    "routing_key",
    "durable",
    "priority",
    "ttl_ms",
    "delivery_count",
    "type",
    "reply_to",
    "content_type",
    "content_encoding",
    "user_id",
    "timestamp",
    "message_id",
    "correlation_id",
    "app_id",
    "headers_json",
    "amqp10",
)

# A row as Arrow returns it, by column name; `schema` defines the types.
Row: TypeAlias = dict[str, Any]


class RowView(MessageView):
    """A row as a dict of COLUMNS. A 0-9-1 message appears as an AMQP 1.0 consumer receives it."""

    __slots__ = ("_annotations", "_application", "_row", "_struct")

    def __init__(self) -> None:
        super().__init__()
        self.bind({})

    def bind(self, row: Row) -> None:
        self._row = row
        self._struct: Row = row.get("amqp10") or {}
        self._application: Row | None = None
        self._annotations: Row | None = None

    def get(self, section: int, name: str) -> object:
        if section == HEADER:
            return self._row.get(_HEADER.get(name, ""))
        if section == PROPERTIES:
            return self._property(name)
        if self._application is None or self._annotations is None:
            self._application, self._annotations = self._maps()
        return (self._annotations if section == MESSAGE_ANNOTATIONS else self._application).get(name)

    def _property(self, name: str) -> object:
        row = self._row
        if name in _TIMES:
            column = _TIMES[name]
            moment = row.get(column) if column in row else self._struct.get(column)
            return (moment - _EPOCH) // _MILLISECOND if isinstance(moment, datetime) else None
        if name in _IDENTIFIERS:
            column = _IDENTIFIERS[name]
            return _identifier(row.get(column), self._struct.get(f"{column}_type"))
        if name == "user-id":
            user = row.get("user_id")
            return user.encode("utf-8") if user is not None else None
        if name == "group-id" and row.get("amqp10") is None:
            return row.get("app_id")
        column = _PROPERTIES.get(name, "")
        return row.get(column) if column in row else self._struct.get(column)

    def _maps(self) -> tuple[Row, Row]:
        """Return the application properties and the message annotations, including those with the published address."""
        row = self._row
        application = _decoded(row.get("headers_json"))
        if row.get("amqp10") is not None:
            annotations = _decoded(self._struct.get("message_annotations"))
        else:
            annotations = {name: value for name, value in application.items() if name.startswith("x-")}
            application = {name: value for name, value in application.items() if not name.startswith("x-")}
        annotations["x-exchange"] = row.get("exchange")
        annotations["x-routing-key"] = row.get("routing_key")
        return application, annotations


def _decoded(text: str | None) -> Row:
    if text is None:
        return {}
    return {name: _value(data) for name, data in typed_json.parse(text).items()}


def _value(data: Json) -> Value | Decimal:
    try:
        value = typed_json.to_value("", data)
    except (ValueError, ArithmeticError):
        return untag(data)
    return value.decimal() if isinstance(value, (Decimal32, Decimal64, Decimal128)) else value


def _identifier(text: str | None, kind: str | None) -> object:
    if text is None or kind is None or kind == "string":
        return text
    if kind == "uuid":
        return UUID(text)
    return int(text) if kind == "ulong" else b64decode(text)
