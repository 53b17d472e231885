"""Values of field tables that Python has no type of its own for. They are ints in every other respect."""

from __future__ import annotations


class LongLong(int):
    """An integer that is sent in 64 bits even where 32 would do, for peers that look at the type."""

    __slots__ = ()


class RawTimestamp(int):
    """An AMQP timestamp that `datetime` cannot hold (beyond the year 9999): seconds since 1970, unsigned 64 bits."""

    __slots__ = ()
