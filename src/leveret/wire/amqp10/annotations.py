"""Annotation keys (messaging 3.2.10): symbols and ulongs, most of which are reserved."""

from __future__ import annotations

from leveret.wire.amqp10 import codes
from leveret.wire.amqp10.codes import TYPES, WIDTHS
from leveret.wire.amqp10.decode import value_end
from leveret.wire.amqp10.errors import DecodeError


def find_annotation(data: bytes, begin: int, end: int, name: bytes) -> int:
    """Return the start of an annotation's value in the section between `begin` and `end`.

    Return -1 if the annotation is absent or the section is not a map. Other values are skipped by size. Raises DecodeError
    if the section is truncated.
    """
    return _find(data, begin, end, name, codes.SYMBOL_8, codes.SYMBOL_32)


def find_application_text(data: bytes, begin: int, end: int, name: bytes) -> str:
    """Return an application property that is text, in the section between `begin` and `end`; "" if there is none.

    Other values are skipped by size. Raises DecodeError if the section is truncated.
    """
    pos = _find(data, begin, end, name, codes.STRING_8, codes.STRING_32)
    if pos < 0 or (data[pos] != codes.STRING_8 and data[pos] != codes.STRING_32):
        return ""
    size = 2 if data[pos] == codes.STRING_8 else 5
    return data[pos + size : value_end(data, pos, end)].decode("utf-8", "replace")


def _find(data: bytes, begin: int, end: int, name: bytes, short: int, long: int) -> int:
    """Return the start of the value of a key, whose format codes are `short` or `long`; -1 if there is none."""
    if data.find(name, begin, end) < 0:
        return -1
    pos = value_end(data, begin + 1, end)  # after the descriptor
    code = data[pos]
    if code != codes.MAP_8 and code != codes.MAP_32:
        return -1
    pos += 9 if code == codes.MAP_32 else 3
    size = len(name)
    while pos < end:
        stop = value_end(data, pos, end)
        after = value_end(data, stop, end)
        if (
            (data[pos] == short or data[pos] == long)
            and data.endswith(name, pos, stop)
            and stop - pos == size + (2 if data[pos] == short else 5)
        ):
            return stop
        pos = after
    return -1


def reserved_key(data: bytes, begin: int, end: int, allowed: bytes) -> str:
    """Return the first reserved key in the annotations section between `begin` and `end`, or "".

    Ulongs are reserved, and symbols that do not begin with `allowed`. Values are skipped by size. Raises DecodeError if the
    section is not a map, or has a key of another type.
    """
    pos = value_end(data, begin + 1, end)  # after the descriptor
    code = data[pos]
    if code != codes.MAP_8 and code != codes.MAP_32:
        raise DecodeError(pos, f"annotations: expected a map, not {TYPES.get(code, 'a described value')}")
    wide = WIDTHS[code] == codes.FOUR_BYTE_SIZE
    start = pos + (9 if wide else 3)
    if start > end:
        raise DecodeError(pos, "annotations: expected the count of a map")
    count = int.from_bytes(data[pos + 5 : start], "big") if wide else data[pos + 2]
    if count & 1:
        raise DecodeError(pos, f"annotations: expected an even number of values in a map, not {count}")
    pos = start
    found = ""
    for _ in range(count >> 1):
        stop = value_end(data, pos, end)
        code = data[pos]
        if code == codes.SYMBOL_8 or code == codes.SYMBOL_32:
            at = pos + (2 if code == codes.SYMBOL_8 else 5)
            if not data.startswith(allowed, at, stop) and not found:
                found = data[at:stop].decode("ascii", "backslashreplace") or "''"
        elif code == codes.SMALL_ULONG or code == codes.ULONG or code == codes.ULONG_0:
            if not found:
                found = str(int.from_bytes(data[pos + 1 : stop], "big"))
        else:
            raise DecodeError(
                pos, f"annotations: expected a symbol or a ulong as a key, not {TYPES.get(code, 'a described value')}"
            )
        pos = value_end(data, stop, end)
    if pos != end:
        raise DecodeError(pos, f"annotations: expected the end of a map, not {end - pos} more bytes")
    return found
