"""What a filter that cannot be understood is answered with, and the limits that it is held to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# How much of the offending text an error quotes.
EXCERPT: Final = 20


class SelectorError(ValueError):
    """The text is no filter of its language.

    `position` is the offset, in characters from 0, at which the text stopped making sense (its length where more was
    expected). `expected` says what should have stood there, and `text` is the whole text.
    """

    def __init__(self, position: int, expected: str, text: str) -> None:
        self.position = position
        self.expected = expected
        self.text = text
        super().__init__(position, expected, text)

    def __str__(self) -> str:
        found = self.text[self.position : self.position + EXCERPT]
        return f"position {self.position}: expected {self.expected}, found {found!r}" if found else (
            f"position {self.position}: expected {self.expected}"
        )


class EntryError(SelectorError):
    """A filter that is a map has an entry which it cannot have: `position` is its index, `text` its key."""

    def __str__(self) -> str:
        return f"entry {self.position} ({self.text!r}): expected {self.expected}"


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a filter may be. Every matching message pays for it, once for each consumer that has it."""

    length: int = 16_384
    """Characters of the text."""
    terms: int = 2_000
    """Literals, identifiers and function calls."""
    likes: int = 32
    """Patterns."""
    depth: int = 50
    """Levels of the tree: parentheses, operators within operators, and the operands of a chain of arithmetic."""
    entries: int = 64
    """Entries of a properties filter or an application properties filter."""


DEFAULT_LIMITS: Final = Limits()
