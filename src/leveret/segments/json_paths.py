"""Paths into JSON documents: `$.customer.emails[0]`, `$['odd name'].items[*].price`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from leveret.segments.typed_json import Json

# .NAME, .*, [NUMBER], [*], ['NAME'] or ["NAME"].
_STEP: Final = re.compile(
    r"""\.(?P<name>[^.\[\]'"*\s]+)|\.(?P<any>\*)|\[(?P<number>\d+)\]|\[(?P<each>\*)\]"""
    r"""|\[(?P<quote>['"])(?P<quoted>.*?)(?P=quote)\]"""
)

# A name, an index, or None for all elements.
Step = str | int | None


class JsonPath:
    """A JSON path. Raises ValueError for an invalid one."""

    __slots__ = ("steps", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.steps = _steps(text)

    def values(self, document: Json) -> Iterator[Json]:
        """Yield the values at the path; none if it does not exist."""
        yield from _find(document, self.steps, 0)

    def replace(self, document: Json, value: Json) -> tuple[Json, int]:
        """Replace the values at the path in place.

        Returns:
            The document (`value` itself for the path `$`) and the number of replaced values.
        """
        if not self.steps:
            return value, 1
        count = 0
        for parent in list(_find(document, self.steps[:-1], 0)):
            count += _replace_in(parent, self.steps[-1], value)
        return document, count


def _steps(text: str) -> tuple[Step, ...]:
    if not text.startswith("$"):
        raise ValueError(f"JSON path {text[:80]!r}: expected '$' at the start, as in $.customer.id")
    steps: list[Step] = []
    at = 1
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            raise ValueError(f"JSON path {text[:80]!r}: expected .NAME, ['NAME'], [NUMBER] or [*] at position {at}")
        if match["number"] is not None:
            steps.append(int(match["number"]))
        elif match["any"] is not None or match["each"] is not None:
            steps.append(None)
        else:
            steps.append(match["name"] if match["name"] is not None else match["quoted"])
        at = match.end()
    return tuple(steps)


def _children(value: Json, step: Step) -> list[Json]:
    if isinstance(value, dict):
        if step is None:
            return list(value.values())
        return [value[step]] if isinstance(step, str) and step in value else []
    if isinstance(value, list):
        if step is None:
            return value
        return [value[step]] if isinstance(step, int) and step < len(value) else []
    return []


def _find(value: Json, steps: tuple[Step, ...], at: int) -> Iterator[Json]:
    if at == len(steps):
        yield value
        return
    for child in _children(value, steps[at]):
        yield from _find(child, steps, at + 1)


def _replace_in(parent: Json, step: Step, value: Json) -> int:
    if isinstance(parent, dict):
        names = list(parent) if step is None else [step] if isinstance(step, str) and step in parent else []
        for name in names:
            parent[name] = value
        return len(names)
    if isinstance(parent, list):
        places = range(len(parent))
        if step is not None:
            places = range(step, step + 1) if isinstance(step, int) and step < len(parent) else range(0)
        for place in places:
            parent[place] = value
        return len(places)
    return 0
