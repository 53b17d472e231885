"""Comparison and arithmetic of values by the rules of both dialects.

None is NULL, and unknown. JMS uses Java's numbers: integers wrap at 64 bits, `/` of two integers is an integer, and an
integer combined with a floating-point number becomes a double. In SQL filters, as in RabbitMQ, integers have any size, `/`
is always floating-point, and binaries, uuids and strings compare as bytes. In both, strings and numbers are not comparable:
in JMS the comparison is false; in RabbitMQ they are unequal.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final
from uuid import UUID

EQ: Final = 0
NE: Final = 1
LT: Final = 2
LE: Final = 3
GT: Final = 4
GE: Final = 5

ADD: Final = 0
SUBTRACT: Final = 1
MULTIPLY: Final = 2
DIVIDE: Final = 3
REMAINDER: Final = 4

_HALF: Final = 1 << 63
_MASK: Final = (1 << 64) - 1


def wrapped(value: int) -> int:
    """Return an integer wrapped to the 64 bits of a Java long."""
    return ((value + _HALF) & _MASK) - _HALF


def double(value: int | float) -> float:
    """Return a number as a double; numbers that are too large become infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def is_number(value: object) -> bool:
    """Return whether a value is a number; booleans are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def plain(value: object) -> object:
    """Return a decimal as a double, and any other value unchanged."""
    return double_of(value) if isinstance(value, Decimal) else value


def double_of(value: Decimal) -> float:
    """Return a decimal as a double. Signalling NaNs, which float() refuses, become NaN."""
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def to_bytes(value: object) -> bytes | None:
    """Return the bytes of a string, uuid or binary, None for other values."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, bytes):
        return value
    return None


def compare_numbers(operator: int, left: int | float, right: int | float) -> bool:
    """Compare two numbers with one of the six operators."""
    if operator == EQ:
        return left == right
    if operator == NE:
        return left != right
    if operator == LT:
        return left < right
    if operator == LE:
        return left <= right
    if operator == GT:
        return left > right
    return left >= right


def compare_bytes(operator: int, left: bytes, right: bytes) -> bool:
    """Compare two byte strings with one of the six operators."""
    if operator == EQ:
        return left == right
    if operator == NE:
        return left != right
    if operator == LT:
        return left < right
    if operator == LE:
        return left <= right
    if operator == GT:
        return left > right
    return left >= right


def compare(operator: int, left: object, right: object, sql: bool) -> bool | None:
    """Compare two values with one of the six operators. Returns None for unknown."""
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        if isinstance(left, bool) and isinstance(right, bool) and operator <= NE:
            return (left is right) == (operator == EQ)
        return sql and operator == NE
    left = plain(left)
    right = plain(right)
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        if not sql and isinstance(left, float) != isinstance(right, float):
            return compare_numbers(operator, double(left), double(right))
        return compare_numbers(operator, left, right)
    if isinstance(left, str) and isinstance(right, str) and operator <= NE:
        return (left == right) == (operator == EQ)
    if sql:
        left_bytes = to_bytes(left)
        right_bytes = to_bytes(right)
        if left_bytes is not None and right_bytes is not None:
            return compare_bytes(operator, left_bytes, right_bytes)
        return operator == NE
    return False


def calculate(operator: int, left: object, right: object, sql: bool) -> object:
    """Return the result of an arithmetic operator, None if there is none."""
    left = plain(left)
    right = plain(right)
    if isinstance(left, bool) or isinstance(right, bool):
        return None
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        return None
    if isinstance(left, int) and isinstance(right, int):
        return _exact_sql(operator, left, right) if sql else _exact_jms(operator, left, right)
    if sql:
        return _finite(operator, left, right)
    return _java(operator, double(left), double(right))


def _exact_jms(operator: int, left: int, right: int) -> int | None:
    if operator == ADD:
        return wrapped(left + right)
    if operator == SUBTRACT:
        return wrapped(left - right)
    if operator == MULTIPLY:
        return wrapped(left * right)
    if right == 0:
        return None
    quotient = abs(left) // abs(right)
    return wrapped(quotient if (left < 0) == (right < 0) else -quotient)


def _exact_sql(operator: int, left: int, right: int) -> int | float | None:
    if operator == ADD:
        return left + right
    if operator == SUBTRACT:
        return left - right
    if operator == MULTIPLY:
        return left * right
    if right == 0:
        return None
    if operator == REMAINDER:
        remainder = abs(left) % abs(right)
        return -remainder if left < 0 else remainder
    try:
        return left / right
    except OverflowError:
        return None


def _finite(operator: int, left: int | float, right: int | float) -> float | None:
    """Floating-point arithmetic of SQL filters. Results that are not finite are unknown."""
    if operator == REMAINDER:
        return None
    result = _java(operator, double(left), double(right))
    return result if math.isfinite(result) else None


def _java(operator: int, left: float, right: float) -> float:
    """Arithmetic of doubles by IEEE 754, which always has a result."""
    if operator == ADD:
        return left + right
    if operator == SUBTRACT:
        return left - right
    if operator == MULTIPLY:
        return left * right
    if right != 0.0:
        return left / right
    if left == 0.0 or left != left:
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def signed(negative: bool, value: object, sql: bool) -> object:
    """Apply `+` or `-` to a value. Returns None if it is not a number."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not negative:
        return value
    if isinstance(value, float) or sql:
        return -value
    return wrapped(-value)
