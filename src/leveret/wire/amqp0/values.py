"""Types for field-table values that Python lacks. They are subclasses of int."""

from __future__ import annotations


class LongLong(int):
    """An integer that is always sent in 64 bits, for peers that check the type."""

    __slots__ = ()


class RawTimestamp(int):
    """An AMQP timestamp that `datetime` cannot hold (beyond the year 9999): seconds since 1970, unsigned 64 bits."""

    __slots__ = ()
