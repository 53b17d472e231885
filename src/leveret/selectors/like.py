"""LIKE: `%` matches any number of characters, `_` matches one.

A pattern is split at its `%` into pieces. The first and the last piece are at the ends of the value. Pieces in between are
searched once, from the end of the previous one; the leftmost match is as good as any other. Pieces without `_` are searched
with `str.find`, pieces with `_` with the shift-and algorithm: one bit per character of the piece says whether the
value matches so far. The time is proportional to the length of the value, whatever the pattern, because the bits fit into a
machine word: such a piece has at most MAX_WILD characters.
"""

from __future__ import annotations

from typing import Final

# The elements of a parsed pattern: a literal character, or one of these.
ONE: Final = ""
ANY: Final = "%%"
# Characters of a piece with a `_` between two `%`. Without a limit, each character of a value would cost time in proportion
# to the length of the piece.
MAX_WILD: Final = 60
# Characters of a value to compare; the condition is unknown for longer values.
MAX_VALUE: Final = 16_384


class Piece:
    """A part of a pattern without `%`. Between two `%`, it starts and ends with a literal character."""

    __slots__ = ("goal", "length", "literal", "masks", "parts", "wild")

    def __init__(self, elements: list[str]) -> None:
        self.length: Final[int] = len(elements)
        self.literal: Final[str | None] = None if ONE in elements else "".join(elements)
        # Runs of literal characters with their offsets, to compare at a given position.
        self.parts: Final[list[tuple[int, str]]] = _runs(elements)
        self.goal: Final[int] = 1 << (len(elements) - 1) if elements else 0
        wild = 0
        masks: dict[str, int] = {}
        for index, element in enumerate(elements):
            if element == ONE:
                wild |= 1 << index
            else:
                masks[element] = masks.get(element, 0) | 1 << index
        self.wild: Final[int] = wild
        self.masks: Final[dict[str, int]] = {element: mask | wild for element, mask in masks.items()}

    def at(self, value: str, start: int) -> bool:
        """Return whether the value contains the piece at `start`. The value must be long enough."""
        for offset, part in self.parts:  # noqa: SIM110 - compiled, a loop is faster than a generator
            if not value.startswith(part, start + offset):
                return False
        return True

    def after(self, value: str, start: int) -> int:
        """Return the end of the leftmost match at or after `start`, or -1."""
        literal = self.literal
        if literal is not None:
            found = value.find(literal, start)
            return -1 if found < 0 else found + self.length
        masks = self.masks
        wild = self.wild
        goal = self.goal
        state = 0
        for index in range(start, len(value)):
            state = (state << 1 | 1) & masks.get(value[index], wild)
            if state & goal:
                return index + 1
        return -1


def _runs(elements: list[str]) -> list[tuple[int, str]]:
    runs: list[tuple[int, str]] = []
    run: list[str] = []
    for index, element in enumerate([*elements, ONE]):
        if element != ONE:
            run.append(element)
        elif run:
            runs.append((index - len(run), "".join(run)))
            run = []
    return runs


def _elements(pattern: str, escape: str) -> list[str]:
    """Parse a pattern. Raises `ValueError` if it ends with the escape character."""
    elements: list[str] = []
    escaped = False
    for character in pattern:
        if escaped:
            elements.append(character)
            escaped = False
        elif escape and character == escape:
            escaped = True
        elif character == "%":
            elements.append(ANY)
        elif character == "_":
            elements.append(ONE)
        else:
            elements.append(character)
    if escaped:
        raise ValueError("a pattern that does not end with its escape character")
    return elements


class Pattern:
    """A compiled pattern. Raises `ValueError`, which says what was expected."""

    __slots__ = ("_first", "_gaps", "_last", "_middle", "_min_length", "_whole")

    def __init__(self, pattern: str, escape: str = "") -> None:
        elements = _elements(pattern, escape)
        cuts = [index for index, element in enumerate(elements) if element == ANY]
        self._whole: Final[bool] = not cuts
        self._min_length: Final[int] = len(elements) - len(cuts)
        self._first: Final[Piece] = Piece(elements[: cuts[0]] if cuts else elements)
        self._last: Final[Piece] = Piece(elements[cuts[-1] + 1 :] if cuts else [])
        middle: list[Piece] = []
        # Characters to skip before each middle piece and before the last one: `_` next to a `%`.
        gaps = [0]
        for index in range(len(cuts) - 1):
            piece = elements[cuts[index] + 1 : cuts[index + 1]]
            begin = 0
            while begin < len(piece) and piece[begin] == ONE:
                begin += 1
            end = len(piece)
            while end > begin and piece[end - 1] == ONE:
                end -= 1
            gaps[-1] += begin
            if begin < end:
                if end - begin > MAX_WILD and ONE in piece[begin:end]:
                    raise ValueError(f"at most {MAX_WILD} characters between two %, if one of them is _")
                middle.append(Piece(piece[begin:end]))
                gaps.append(0)
            gaps[-1] += len(piece) - end
        self._middle: Final[list[Piece]] = middle
        self._gaps: Final[list[int]] = gaps

    def matches(self, value: str) -> bool:
        """Return whether the whole value matches."""
        if len(value) < self._min_length:
            return False
        first = self._first
        if self._whole:
            return len(value) == first.length and first.at(value, 0)
        if not first.at(value, 0):
            return False
        position = first.length
        gaps = self._gaps
        index = 0
        for piece in self._middle:
            position = piece.after(value, position + gaps[index])
            if position < 0:
                return False
            index += 1
        last = self._last
        start = len(value) - last.length
        return position + gaps[index] <= start and last.at(value, start)
