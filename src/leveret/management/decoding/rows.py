"""Values of a payload as rows, limited in number, depth and size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, time
from typing import Final, TypeAlias

from leveret.management.decoding.jobs import Row

MAX_ROWS: Final = 5000
MAX_DEPTH: Final = 64
# Characters of a text and bytes of a binary value that are shown.
MAX_TEXT: Final = 500
MAX_BINARY: Final = 64

# A value of a payload that has no values inside it.
Scalar: TypeAlias = object


class Rows:
    """The rows of a payload.

    Attributes:
        rows: The rows so far.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._depth = 0

    @property
    def is_full(self) -> bool:
        """Whether no further value is shown."""
        return len(self.rows) >= MAX_ROWS

    def add(self, name: str, type: str, value: str) -> Row:
        """Add a value."""
        at = len(self.rows)
        row = Row(index=at, depth=self._depth, name=shorten(name), type=type, value=value, end=at + 1)
        self.rows.append(row)
        return row

    @contextmanager
    def inside(self, row: Row) -> Iterator[bool]:
        """Add the values inside another one. Yields whether they are to be added: not if they are too deep."""
        shows = self._depth < MAX_DEPTH
        self._depth += 1
        if not shows:
            self.add("", "…", "deeper values are not shown")
        yield shows
        self._depth -= 1
        row.end = len(self.rows)

    def end(self) -> list[Row]:
        """Return all rows, with a last one that says if some are not shown."""
        if self.is_full:
            self.add("", "…", f"the first {MAX_ROWS} values are shown")
        return self.rows


def shorten(text: str) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… {len(text)} characters"


def hex_of(data: bytes) -> str:
    """Return the first bytes of a binary value."""
    return data[:MAX_BINARY].hex(" ") + (f" … {len(data)} bytes" if len(data) > MAX_BINARY else "")


def text_of(value: Scalar) -> str:
    """Return the text of a value without values inside it."""
    if isinstance(value, bytes):
        return hex_of(value)
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return ""
    return value.isoformat() if isinstance(value, date | time) else shorten(str(value))


def count(number: int) -> str:
    """Return the number of values inside another one, as a text."""
    return f"{number} value" if number == 1 else f"{number} values"
