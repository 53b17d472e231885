"""Errors and limits of filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Characters of the offending text that an error quotes.
EXCERPT: Final = 20


class SelectorError(ValueError):
    """The text is not a valid filter.

    Attributes:
        position: The offset of the error in characters, starting at 0; the length of the text if it is incomplete.
        expected: Expected token or value.
        text: The whole text.
    """

    def __init__(self, position: int, expected: str, text: str) -> None:
        self.position = position
        self.expected = expected
        self.text = text
        super().__init__(position, expected, text)

    def __str__(self) -> str:
        found = self.text[self.position : self.position + EXCERPT]
        return (
            f"position {self.position}: expected {self.expected}, found {found!r}"
            if found
            else (f"position {self.position}: expected {self.expected}")
        )


class EntryError(SelectorError):
    """A filter that is a map has an invalid entry. `position` is its index, `text` its key."""

    def __str__(self) -> str:
        return f"entry {self.position} ({self.text!r}): expected {self.expected}"


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum size of a filter, which is evaluated for each message and consumer."""

    length: int = 16_384
    """Characters of the text."""
    terms: int = 2_000
    """Literals, identifiers and function calls."""
    likes: int = 32
    """Patterns."""
    depth: int = 50
    """Levels of the tree: parentheses, nested operators, and the operands of chained arithmetic."""
    entries: int = 64
    """Entries of a properties filter or an application properties filter."""


DEFAULT_LIMITS: Final = Limits()
