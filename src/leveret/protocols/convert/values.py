"""Single values: those of field tables (`plain`) and those of AMQP 1.0 (`typed`)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final
from uuid import UUID

from leveret.wire.amqp0.values import FieldValue, RawTimestamp
from leveret.wire.amqp10.errors import EncodeError
from leveret.wire.amqp10.values import Array, Decimal32, Decimal64, Decimal128, Described, Map, Timestamp, Value

MAX_DEPTH: Final = 32
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = 1000
_MAX_LONG: Final = (1 << 63) - 1
_LAST_TIMESTAMP: Final = 253402300800000


def plain(value: Value) -> FieldValue:
    """A value of AMQP 1.0 as one that a field table, or an overlay in the log, can hold."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, Timestamp):
        return _EPOCH + timedelta(milliseconds=int(value)) if 0 <= value < _LAST_TIMESTAMP else int(value)
    if isinstance(value, int):
        return int(value) if -_MAX_LONG - 1 <= value <= _MAX_LONG else str(int(value))
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name_of(key): plain(item) for key, item in value.items()}
    if isinstance(value, Map):
        return {name_of(key): plain(item) for key, item in value.pairs}
    if isinstance(value, Array):
        return [plain(item) for item in value.items]
    if isinstance(value, Described):
        return plain(value.value)
    if isinstance(value, (Decimal32, Decimal64, Decimal128)):
        return _plain_decimal(value.decimal())
    return str(value)


def _plain_decimal(value: Decimal) -> Decimal | str:
    """As a decimal where a field table can hold it: 32 bits and a scale up to 255."""
    _, digits, exponent = value.as_tuple()
    if isinstance(exponent, int) and -255 <= exponent <= 0 and len(digits) < 10:
        return value
    return str(value)


def name_of(key: Value) -> str:
    """The key of a map as the name of a field."""
    return str(key) if isinstance(key, (str, int, UUID)) else repr(key)


def typed(value: FieldValue, depth: int = 0) -> Value:
    """A value of a field table as one of AMQP 1.0. EncodeError where it is nested too deep for most peers."""
    if depth > MAX_DEPTH:
        raise EncodeError(f"values are nested more than {MAX_DEPTH} deep")
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return Timestamp((moment - _EPOCH) // timedelta(milliseconds=1))
    if isinstance(value, RawTimestamp):
        return Timestamp(min(int(value), _MAX_LONG // _SECOND) * _SECOND)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value) if -_MAX_LONG - 1 <= value <= _MAX_LONG else str(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [typed(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {text_of(key): typed(item, depth + 1) for key, item in value.items()}
    return value


def text(value: str) -> str | bytes:
    """The text, or its bytes where they were no UTF-8."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape")
    return value


def text_of(value: str) -> str:
    """The text with U+FFFD for what was no UTF-8: where only a text may stand."""
    data = value.encode("utf-8", "surrogateescape")
    return data.decode("utf-8", "replace")


def is_simple(value: FieldValue) -> bool:
    """Whether application-properties may hold it."""
    return not isinstance(value, (list, tuple, dict))
