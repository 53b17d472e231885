"""Parsers for option values: numbers, sizes, times, choices."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from leveret.security.patterns import Pattern

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_SIZE: Final = re.compile(r"([0-9]{1,15})\s*([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(ms|s|m|h|d)?", re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}
# Absolute numbers that are seconds of Unix time from 1973 to 5138, and milliseconds only from 1970 to 1973.
_SECONDS_RANGE: Final = range(10**8, 10**11)
# Milliseconds of Unix time in 5138; as microseconds, 1973.
_MIN_MICROSECONDS: Final = 10**14
# The maxima of the control protocol: an exbibyte or more, and more than three years.
_MAX_SIZE: Final = 1 << 62
_MAX_DURATION: Final = 100_000_000
_BOOLEANS: Final = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False, "1": True, "0": False}

Reader = Callable[[str], Any]


class InvalidValue(ValueError):
    """An invalid value. `args[0]` describes the expected values."""


def text(value: str) -> str:
    """Accept any text but the empty one."""
    if not value:
        raise InvalidValue("a text that is not empty")
    return value


def name(max_length: int) -> Reader:
    """Accept a text of at most `max_length` characters, but not the empty one."""

    def read(value: str) -> str:
        if not 0 < len(value) <= max_length:
            raise InvalidValue(f"a text of 1 to {max_length} characters")
        return value

    return read


def anything(value: str) -> str:
    return value


def integer(low: int, high: int = 2**63 - 1) -> Reader:
    """Parse integers between two bounds, inclusive."""

    def read(value: str) -> int:
        if not _INTEGER.fullmatch(value.strip()) or not low <= int(value) <= high:
            raise InvalidValue(f"an integer of at least {low}" if high == 2**63 - 1 else f"an integer from {low} to {high}")
        return int(value)

    return read


def size(value: str) -> int:
    """Parse a size in bytes: a number, or one with the suffix k, m, g or t (powers of 1,024)."""
    found = _SIZE.fullmatch(value.strip())
    n_bytes = 0 if found is None else int(found[1]) * _UNITS[found[2].lower()]
    if not 0 < n_bytes <= _MAX_SIZE:
        raise InvalidValue(f"bytes above 0, such as 67108864 or 64m, and at most {_MAX_SIZE >> 40}t")
    return n_bytes


def duration(value: str) -> float:
    """Parse a duration in seconds: a number, or one with the suffix ms, s, m, h or d."""
    found = _DURATION.fullmatch(value.strip())
    seconds = -1.0 if found is None else float(found[1]) * _SECONDS[found[2]]
    if not 0 <= seconds <= _MAX_DURATION:
        raise InvalidValue(f"a time such as 500ms, 30s or 15m, and at most {_MAX_DURATION // 86400}d")
    return seconds


def positive_duration(value: str) -> float:
    """Parse a duration like `duration`, above 0."""
    seconds = duration(value)
    if not seconds:
        raise InvalidValue("a time above 0, such as 500ms, 30s or 15m")
    return seconds


def rate(value: str) -> float:
    """Parse messages per second, above 0."""
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e12:
        raise InvalidValue("messages per second, above 0")
    return found


def boolean(value: str) -> bool:
    found = _BOOLEANS.get(value.strip().lower())
    if found is None:
        raise InvalidValue("true or false")
    return found


def choice(*choices: str) -> Reader:
    """Accept one of the texts, in any case."""

    def read(value: str) -> str:
        found = value.strip().lower()
        if found not in choices:
            raise InvalidValue(", ".join(choices[:-1]) + f" or {choices[-1]}")
        return found

    return read


def pattern(value: str) -> str:
    """Accept a regular expression."""
    try:
        Pattern(value, whole=True)
    except ValueError as error:
        raise InvalidValue(f"a regular expression in RE2 syntax ({error})") from None
    return text(value)


def names(value: str) -> tuple[str, ...]:
    """Parse comma-separated names."""
    found = tuple(name.strip() for name in value.split(",") if name.strip())
    if not found:
        raise InvalidValue("comma-separated names")
    return found


def partitions(value: str) -> tuple[int, ...] | dict[str, tuple[int, ...]]:
    """Parse numbers of partitions, such as "0,2", or JSON lists of them by super stream: {"orders": [0, 2]}."""
    expected = 'numbers of partitions such as 0,2, or lists by super stream in JSON such as {"orders": [0, 2]}'
    if not value.strip().startswith("{"):
        found = [number.strip() for number in value.split(",")]
        if not all(_INTEGER.fullmatch(number) and int(number) >= 0 for number in found):
            raise InvalidValue(expected)
        return tuple(sorted({int(number) for number in found}))
    try:
        parsed = json.loads(value)
    except ValueError:
        raise InvalidValue(expected) from None
    if not parsed or not all(isinstance(numbers, list) and numbers for numbers in parsed.values()):
        raise InvalidValue(expected)
    if not all(type(number) is int and number >= 0 for numbers in parsed.values() for number in numbers):
        raise InvalidValue(expected)
    return {name: tuple(sorted(set(numbers))) for name, numbers in parsed.items()}


def timestamp(value: str) -> int:
    """Parse a time to milliseconds of Unix time: a number of them, or ISO 8601 (UTC if it has no time zone).

    A number that is plausible only as seconds or microseconds is refused.
    """
    stripped = value.strip()
    if _INTEGER.fullmatch(stripped):
        number = int(stripped)
        if abs(number) in _SECONDS_RANGE:
            raise InvalidValue(f"milliseconds of Unix time, and {number} looks like seconds; did you mean {number * 1000}?")
        if abs(number) >= _MIN_MICROSECONDS:
            raise InvalidValue(
                f"milliseconds of Unix time, and {number} looks like microseconds; did you mean {number // 1000}?"
            )
        return number
    try:
        found = datetime.fromisoformat(stripped)
    except ValueError:
        raise InvalidValue("milliseconds of Unix time, or a time such as 2026-05-01T12:00:00Z") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def timestamps(value: str) -> int | dict[str, int]:
    """Parse a time, or JSON times by stream: {"orders-0": 1777636800000, "orders-1": "2026-05-01T12:00:00Z"}."""
    if not value.strip().startswith("{"):
        return timestamp(value)
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not found:
        raise InvalidValue('a time, or times by stream in JSON such as {"orders-0": "2026-05-01T12:00:00Z"}')
    return {name: timestamp(str(time)) for name, time in found.items()}


def offsets(*keywords: str) -> Reader:
    """Parse one of the keywords, or JSON offsets by stream: {"orders-0": 17, "orders-1": "earliest"}.

    As in Kafka, the number -2 means earliest and -1 latest.
    """

    def read(value: str) -> str | dict[str, int]:
        stripped = value.strip()
        if stripped.lower() in keywords:
            return stripped.lower()
        expected = f'{" or ".join(keywords)}, or offsets by stream in JSON such as {{"orders-0": 17}}'
        try:
            found = json.loads(stripped)
        except ValueError:
            raise InvalidValue(expected) from None
        if not isinstance(found, dict) or not found:
            raise InvalidValue(expected)
        result: dict[str, int] = {}
        for name, offset in found.items():
            if offset in ("earliest", "latest"):
                offset = EARLIEST if offset == "earliest" else LATEST
            if isinstance(offset, dict):
                raise InvalidValue(
                    f"{expected}; {name!r} has partitions, as in Kafka; expected its streams, such as '{name}-0'"
                )
            if not isinstance(offset, int) or isinstance(offset, bool) or not -2 <= offset < 2**63:
                raise InvalidValue(f"{expected}; the value of {name!r} is not an offset")
            result[name] = offset
        return result

    return read


# Special offsets in JSON.
LATEST: Final = -1
EARLIEST: Final = -2
