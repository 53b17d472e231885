"""Field-table dialects: the type of each tag (0-9-1 section 4.2.5.5, and the deviations of clients).

The specification and RabbitMQ's clients disagree: `s` is a short string in the specification and a 16-bit integer in
RabbitMQ, `l` is unsigned in the specification and signed in RabbitMQ, and `x` exists only in RabbitMQ. Qpid adds `c`, `C`
and `k`. Each connection uses one dialect.
"""

from __future__ import annotations

from typing import Final

UNKNOWN: Final = 0
BOOLEAN: Final = 1
INT8: Final = 2
UINT8: Final = 3
INT16: Final = 4
UINT16: Final = 5
INT32: Final = 6
UINT32: Final = 7
INT64: Final = 8
UINT64: Final = 9
FLOAT: Final = 10
DOUBLE: Final = 11
DECIMAL: Final = 12
UNSIGNED_DECIMAL: Final = 13
TIMESTAMP: Final = 14
VOID: Final = 15
CHARACTER: Final = 16
SHORT_STRING: Final = 17
LONG_STRING: Final = 18
BYTE_ARRAY: Final = 19
ARRAY: Final = 20
TABLE: Final = 21

# Bytes of each type after its tag, or a code for its encoding.
SHORT_LENGTH: Final = -1
LONG_LENGTH: Final = -2
NESTED_ARRAY: Final = -3
NESTED_TABLE: Final = -4
NO_SUCH_TYPE: Final = -5
_SIZES: Final = (
    NO_SUCH_TYPE,
    1,
    1,
    1,
    2,
    2,
    4,
    4,
    8,
    8,
    4,
    8,
    5,
    5,
    8,
    0,
    1,
    SHORT_LENGTH,
    LONG_LENGTH,
    LONG_LENGTH,
    NESTED_ARRAY,
    NESTED_TABLE,
)


class Dialect:
    """A dialect.

    Attributes:
        types: the type of each of the 256 tags.
        sizes: the size of each of them in bytes, or a code for its encoding.
        bytes_tag: tag to send `bytes`.
        long_tag: tag to send integers of more than 32 bits.
        unsigned_decimal: whether decimals are unsigned.
    """

    __slots__ = ("bytes_tag", "long_tag", "name", "sizes", "types", "unsigned_decimal")

    def __init__(self, name: str, tags: dict[str, int], bytes_tag: bytes, long_tag: bytes) -> None:
        self.name = name
        self.types = [UNKNOWN] * 256
        for tag, type in tags.items():
            self.types[ord(tag)] = type
        self.sizes = [_SIZES[type] for type in self.types]
        self.bytes_tag = bytes_tag
        self.long_tag = long_tag
        self.unsigned_decimal = tags["D"] == UNSIGNED_DECIMAL


_COMMON: Final[dict[str, int]] = {
    "t": BOOLEAN,
    "b": INT8,
    "B": UINT8,
    "u": UINT16,
    "I": INT32,
    "i": UINT32,
    "f": FLOAT,
    "d": DOUBLE,
    "D": DECIMAL,
    "S": LONG_STRING,
    "A": ARRAY,
    "T": TIMESTAMP,
    "F": TABLE,
    "V": VOID,
}

# Besides RabbitMQ's own tags, it reads `U` and `L` of the specification, which several clients send.
RABBITMQ: Final = Dialect(
    "rabbitmq", {**_COMMON, "s": INT16, "U": INT16, "l": INT64, "L": INT64, "x": BYTE_ARRAY}, b"x", b"l"
)

QPID: Final = Dialect(
    "qpid",
    {**_COMMON, "s": INT16, "l": INT64, "x": BYTE_ARRAY, "c": LONG_STRING, "C": LONG_STRING, "k": CHARACTER},
    b"x",
    b"l",
)

# The tags in the text of 0-9-1, which has no type for bytes that are not text.
SPECIFICATION: Final = Dialect(
    "specification", {**_COMMON, "U": INT16, "L": INT64, "l": UINT64, "D": UNSIGNED_DECIMAL, "s": SHORT_STRING}, b"S", b"L"
)

DIALECTS: Final[dict[str, Dialect]] = {dialect.name: dialect for dialect in (RABBITMQ, QPID, SPECIFICATION)}
