"""Records: column values that depend only on a message's header, built once for all rows with the same header."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from leveret.segments.texts import FIRST_TIME, LAST_TIME, text_of, to_json, untag
from leveret.segments.typed_json import Json, JsonObject

# Indices into a record.
CONTENT_TYPE: Final = 0
CONTENT_ENCODING: Final = 1
DURABLE: Final = 2
PRIORITY: Final = 3
CORRELATION_ID: Final = 4
REPLY_TO: Final = 5
TTL_MS: Final = 6
MESSAGE_ID: Final = 7
TIMESTAMP: Final = 8
TYPE: Final = 9
USER_ID: Final = 10
APP_ID: Final = 11
# The headers: an encoded field table, or JSON data; for 1.0 the application properties.
TABLE: Final = 12
# For 1.0: the fields of the struct without the body's type, and the data for `x_death` and `delivery_count`.
AMQP10: Final = 13
BROKER_FIELDS: Final = 14
# Position of the footer, see `folding.footer_start`.
FOOTER: Final = 15

Record = tuple[Any, ...]
EMPTY_RECORD: Final[Record] = (*(None,) * 15, -1)

PROPERTY_NAMES: Final = (
    "content_type",
    "content_encoding",
    "durable",
    "priority",
    "correlation_id",
    "reply_to",
    "ttl_ms",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
)

OFFSET: Final = "x-stream-offset"
# A header with the number of a publisher's timestamp that is out of range, often because it is in milliseconds.
RAW_TIMESTAMP: Final = "x-raw-timestamp"
DEATHS: Final = "x-death"
DELIVERY_COUNT: Final = "x-delivery-count"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MAX_INT64: Final = (1 << 63) - 1
_MAX_INT32: Final = (1 << 31) - 1


def micros_of_ms(milliseconds: Json) -> int | None:
    """Convert milliseconds of Unix time to microseconds; None if it is out of range for a DataFrame."""
    if isinstance(milliseconds, int) and not isinstance(milliseconds, bool) and FIRST_TIME <= milliseconds <= LAST_TIME:
        return int(milliseconds) * 1000
    return None


def with_raw_timestamp(headers: JsonObject | None, number: int) -> JsonObject:
    """Return headers with the number of a timestamp that is out of range for a DataFrame."""
    return {RAW_TIMESTAMP: number} | (headers or {})


class HeaderValues:
    """The header columns of a message; empty or None if it has no headers.

    Args:
        data: The headers as JSON data.
        broker_fields: For 1.0, the data for `x_death` and `delivery_count`; None for 0-9-1, where they are headers.
    """

    __slots__ = ("deaths", "delivery_count", "json", "keys", "values")

    def __init__(self, data: JsonObject | None, broker_fields: JsonObject | None) -> None:
        if data is None:
            data = {}
        elif OFFSET in data:
            data = {name: value for name, value in data.items() if name != OFFSET}
        self.keys = list(data)
        self.values = [text_of(value) for value in data.values()]
        self.json = to_json(data) if data else None
        found = data if broker_fields is None else broker_fields
        self.deaths = _deaths(found.get(DEATHS))
        count = untag(found.get(DELIVERY_COUNT))
        self.delivery_count = count if type(count) is int and 0 <= count <= _MAX_INT32 else 0


def _deaths(data: Json) -> list[JsonObject] | None:
    """Return the rows of `x_death`; None if there are none."""
    if not isinstance(data, list):
        return None
    return [_death(item) for item in data if isinstance(item, dict)] or None


def _death(item: JsonObject) -> JsonObject:
    found = {name: untag(value) for name, value in item.items()}
    count = found.get("count")
    keys = found.get("routing-keys")
    return {
        "queue": _string(found.get("queue")),
        "reason": _string(found.get("reason")),
        "count": count if type(count) is int and -_MAX_INT64 <= count <= _MAX_INT64 else None,
        "exchange": _string(found.get("exchange")),
        "routing_keys": [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else None,
        "time": _micros(found.get("time")),
        "original_expiration": _string(found.get("original-expiration")),
    }


def _micros(value: Json) -> int | None:
    if isinstance(value, str):
        try:
            return (datetime.fromisoformat(value) - _EPOCH) // _MICROSECOND
        except (ValueError, TypeError):
            return None
    return micros_of_ms(value)


def _string(value: Json) -> str | None:
    return value if isinstance(value, str) else None
