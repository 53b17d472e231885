"""What the header of one message says, as the values of the columns: made once for all rows with the same header."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from leveret.segments.texts import FIRST_TIME, LAST_TIME, text_of, to_json, untagged

# The order of a record.
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
# The headers: octets of a field table, or JSON data; of 1.0 the application properties.
TABLE: Final = 12
# Of 1.0: the fields of the struct without the kind of the body, and what `x_death` and `delivery_count` are made of.
AMQP10: Final = 13
MARKS: Final = 14
# Where the footer begins, as `folding.footer_at` has it.
FOOTER: Final = 15

Record = tuple[Any, ...]
NOTHING: Final[Record] = (*(None,) * 15, -1)

PROPERTY_NAMES: Final = ("content_type", "content_encoding", "durable", "priority", "correlation_id", "reply_to", "ttl_ms",
                         "message_id", "timestamp", "type", "user_id", "app_id")

OFFSET: Final = "x-stream-offset"
DEATHS: Final = "x-death"
DELIVERY_COUNT: Final = "x-delivery-count"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LARGEST_LONG: Final = (1 << 63) - 1
_LARGEST_INT: Final = (1 << 31) - 1


def micros_of_ms(milliseconds: Any) -> int | None:
    """Microseconds of Unix time; None for what no DataFrame can hold."""
    if isinstance(milliseconds, int) and not isinstance(milliseconds, bool) and FIRST_TIME <= milliseconds <= LAST_TIME:
        return int(milliseconds) * 1000
    return None


class Table:
    """The headers of a message as the columns have them: pairs of texts, JSON, deaths; empty or None where there are none.

    `data` is the table as JSON data; `marks` those of 1.0 that say what `x_death` and `delivery_count` are, None for 0-9-1,
    which has them among the headers.
    """

    __slots__ = ("deaths", "delivery_count", "json", "keys", "values")

    def __init__(self, data: dict[str, Any] | None, marks: dict[str, Any] | None) -> None:
        if data is None:
            data = {}
        elif OFFSET in data:
            data = {name: value for name, value in data.items() if name != OFFSET}
        self.keys = list(data)
        self.values = [text_of(value) for value in data.values()]
        self.json = to_json(data) if data else None
        found = data if marks is None else marks
        self.deaths = _deaths(found.get(DEATHS))
        count = untagged(found.get(DELIVERY_COUNT))
        self.delivery_count = count if type(count) is int and 0 <= count <= _LARGEST_INT else 0


def _deaths(data: Any) -> list[dict[str, Any]] | None:
    """The rows of `x_death`; None where there are none."""
    if not isinstance(data, list):
        return None
    return [_death(item) for item in data if isinstance(item, dict)] or None


def _death(item: dict[str, Any]) -> dict[str, Any]:
    found = {name: untagged(value) for name, value in item.items()}
    count = found.get("count")
    keys = found.get("routing-keys")
    return {
        "queue": _string(found.get("queue")), "reason": _string(found.get("reason")),
        "count": count if type(count) is int and -_LARGEST_LONG <= count <= _LARGEST_LONG else None,
        "exchange": _string(found.get("exchange")),
        "routing_keys": [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else None,
        "time": _micros(found.get("time")), "original_expiration": _string(found.get("original-expiration")),
    }


def _micros(value: Any) -> int | None:
    if isinstance(value, str):
        try:
            return (datetime.fromisoformat(value) - _EPOCH) // _MICROSECOND
        except (ValueError, TypeError):
            return None
    return micros_of_ms(value)


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None
