"""Format codes of the primitive types (types 1.6), and the widths of their values."""

from __future__ import annotations

from typing import Final

DESCRIBED: Final = 0x00
NULL: Final = 0x40
TRUE: Final = 0x41
FALSE: Final = 0x42
UINT_0: Final = 0x43
ULONG_0: Final = 0x44
LIST_0: Final = 0x45
UBYTE: Final = 0x50
BYTE: Final = 0x51
SMALL_UINT: Final = 0x52
SMALL_ULONG: Final = 0x53
SMALL_INT: Final = 0x54
SMALL_LONG: Final = 0x55
BOOLEAN: Final = 0x56
USHORT: Final = 0x60
SHORT: Final = 0x61
UINT: Final = 0x70
INT: Final = 0x71
FLOAT: Final = 0x72
CHAR: Final = 0x73
DECIMAL_32: Final = 0x74
ULONG: Final = 0x80
LONG: Final = 0x81
DOUBLE: Final = 0x82
TIMESTAMP: Final = 0x83
DECIMAL_64: Final = 0x84
DECIMAL_128: Final = 0x94
UUID: Final = 0x98
BINARY_8: Final = 0xA0
STRING_8: Final = 0xA1
SYMBOL_8: Final = 0xA3
BINARY_32: Final = 0xB0
STRING_32: Final = 0xB1
SYMBOL_32: Final = 0xB3
LIST_8: Final = 0xC0
MAP_8: Final = 0xC1
LIST_32: Final = 0xD0
MAP_32: Final = 0xD1
ARRAY_8: Final = 0xE0
ARRAY_32: Final = 0xF0

# Primitive type by format code. The code also determines the width of a fixed-width value, or of the size of any other.
TYPES: Final[dict[int, str]] = {
    NULL: "null",
    TRUE: "boolean",
    FALSE: "boolean",
    UINT_0: "uint",
    ULONG_0: "ulong",
    LIST_0: "list",
    UBYTE: "ubyte",
    BYTE: "byte",
    SMALL_UINT: "uint",
    SMALL_ULONG: "ulong",
    SMALL_INT: "int",
    SMALL_LONG: "long",
    BOOLEAN: "boolean",
    USHORT: "ushort",
    SHORT: "short",
    UINT: "uint",
    INT: "int",
    FLOAT: "float",
    CHAR: "char",
    DECIMAL_32: "decimal32",
    ULONG: "ulong",
    LONG: "long",
    DOUBLE: "double",
    TIMESTAMP: "timestamp",
    DECIMAL_64: "decimal64",
    DECIMAL_128: "decimal128",
    UUID: "uuid",
    BINARY_8: "binary",
    STRING_8: "string",
    SYMBOL_8: "symbol",
    BINARY_32: "binary",
    STRING_32: "string",
    SYMBOL_32: "symbol",
    LIST_8: "list",
    MAP_8: "map",
    LIST_32: "list",
    MAP_32: "map",
    ARRAY_8: "array",
    ARRAY_32: "array",
}

# Special values in `WIDTHS`: a one-byte size, a four-byte size, an unknown code.
ONE_BYTE_SIZE: Final = -1
FOUR_BYTE_SIZE: Final = -2
NO_SUCH_CODE: Final = -3

_BY_CATEGORY: Final = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16, 0xA: -1, 0xB: -2, 0xC: -1, 0xD: -2, 0xE: -1, 0xF: -2}

# Number of bytes after each format code.
WIDTHS: Final[list[int]] = [_BY_CATEGORY[code >> 4] if code in TYPES else NO_SUCH_CODE for code in range(256)]
