"""Decimal numbers in the Binary Integer Decimal encoding (IEEE 754-2008 3.5.2), kept as bytes."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import ClassVar, Self

from leveret.wire.amqp10.errors import EncodeError

# Scaling is exact for all three widths, regardless of the thread's context.
_EXACT = Context(prec=40, Emin=-99_999, Emax=99_999)


class _Decimal:
    """A decimal. `encoded` is its encoding, which preserves cohorts, non-canonical encodings and NaN payloads.

    Two decimals are equal if their encodings are equal.
    """

    __slots__ = ("encoded",)

    WIDTH: ClassVar[int]
    DIGITS: ClassVar[int]
    LIMIT: ClassVar[int]
    BIAS: ClassVar[int]
    EXPONENT_BITS: ClassVar[int]

    def __init__(self, encoded: bytes) -> None:
        if len(encoded) != self.WIDTH:
            raise EncodeError(f"a {type(self).__name__} has {self.WIDTH} bytes, not {len(encoded)}")
        self.encoded = encoded

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, _Decimal) and other.encoded == self.encoded

    def __hash__(self) -> int:
        return hash(self.encoded)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.decimal()})"

    def decimal(self) -> Decimal:
        """Return the number. A coefficient with too many digits is not canonical and means 0."""
        bits = self.WIDTH * 8
        number = int.from_bytes(self.encoded, "big")
        sign = number >> bits - 1
        if number >> bits - 5 & 0xF == 0xF:
            if not number >> bits - 6 & 1:
                return Decimal("-Infinity" if sign else "Infinity")
            payload = number & (1 << bits - 4 - self.EXPONENT_BITS) - 1
            name = "sNaN" if number >> bits - 7 & 1 else "NaN"
            return Decimal(f"{'-' if sign else ''}{name}{payload if 0 < payload < 10 ** (self.DIGITS - 1) else ''}")
        short = bits - 1 - self.EXPONENT_BITS
        if number >> bits - 3 & 3 == 3:
            short -= 2
            coefficient = number & (1 << short) - 1 | 1 << short + 2
        else:
            coefficient = number & (1 << short) - 1
        exponent = (number >> short & (1 << self.EXPONENT_BITS) - 1) - self.BIAS
        value = Decimal(coefficient if coefficient < self.LIMIT else 0)
        if exponent:
            value = value.scaleb(exponent, _EXACT)
        return value.copy_negate() if sign else value

    @classmethod
    def of(cls, value: Decimal | int | str) -> Self:
        """Encode a number, with its exponent if possible. Raises EncodeError if it does not fit exactly."""
        number = Decimal(value)
        sign, digits, exponent = number.as_tuple()
        bits = cls.WIDTH * 8
        top = sign << bits - 1
        if not isinstance(exponent, int):
            kind = {"F": 0x1E, "n": 0x1F, "N": 0x1F}[exponent]
            top |= kind << bits - 6 | (1 << bits - 7 if exponent == "N" else 0)
            payload = int("".join(map(str, digits))) if digits and exponent != "F" else 0
            if payload >= 10 ** (cls.DIGITS - 1):
                raise EncodeError(f"{number} does not fit a {cls.__name__}")
            return cls((top | payload).to_bytes(cls.WIDTH, "big"))
        coefficient = int("".join(map(str, digits)) or "0")
        biased = exponent + cls.BIAS
        limit = 3 << cls.EXPONENT_BITS - 2
        if not coefficient:
            biased = min(max(biased, 0), limit - 1)
        while coefficient and coefficient % 10 == 0 and (biased < 0 or coefficient >= 10**cls.DIGITS):
            coefficient //= 10
            biased += 1
        while biased >= limit and coefficient * 10 < 10**cls.DIGITS:
            coefficient *= 10
            biased -= 1
        if not 0 <= biased < limit or coefficient >= 10**cls.DIGITS:
            raise EncodeError(f"{number} does not fit a {cls.__name__}")
        short = bits - 1 - cls.EXPONENT_BITS
        if coefficient >> short:
            short -= 2
            top |= 3 << bits - 3
            coefficient &= (1 << short) - 1
        return cls((top | biased << short | coefficient).to_bytes(cls.WIDTH, "big"))


class Decimal32(_Decimal):
    """7 digits, exponents from -101 to 90."""

    __slots__ = ()
    WIDTH = 4
    DIGITS = 7
    LIMIT = 10**7
    BIAS = 101
    EXPONENT_BITS = 8


class Decimal64(_Decimal):
    """16 digits, exponents from -398 to 369."""

    __slots__ = ()
    WIDTH = 8
    DIGITS = 16
    LIMIT = 10**16
    BIAS = 398
    EXPONENT_BITS = 10


class Decimal128(_Decimal):
    """34 digits, exponents from -6176 to 6111."""

    __slots__ = ()
    WIDTH = 16
    DIGITS = 34
    LIMIT = 10**34
    BIAS = 6176
    EXPONENT_BITS = 14
