"""Marks of parametrized tests: the rules that one parameter checks."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.conformance.catalogue import rules_of

# C:queue.declare: a method that the client sends; S:queue.declare-ok: one that the server sends.
_STEP = re.compile(r"([CS]):([a-z]+)\.([a-z-]+)")


def checks(version: str, *rules: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.rule(version, rule) for rule in rules]


@cache
def _known(version: str) -> frozenset[str]:
    return frozenset(rules_of(version))


def of_dialogue(version: str, dialogue: str) -> list[pytest.MarkDecorator]:
    """Return the rules that a dialogue like "C:queue.declare S:queue.declare-ok" checks: the sides that implement its
    classes and methods, their responses and contents, and its alternative of the grammar."""
    steps = [match.groups() for match in _STEP.finditer(dialogue)]
    found: dict[str, None] = {}
    for side, kind, method in steps:
        receiver = "server" if side == "C" else "client"
        found[f"{kind}.chassis.{receiver}"] = None
        found[f"{kind}.{method}.chassis.{receiver}"] = None
        found[f"{kind}.{method}.content"] = None
        found.update((f"{kind}.{method}.response.{answer}", None) for _, _, answer in steps)
    side, kind, method = steps[0]
    first = f"{'client' if side == 'C' else 'server'}-{method}"
    for production in ("", ".open-channel", ".use-channel", ".close-channel", ".close-connection"):
        found[f"{kind}.grammar{production}.{first}"] = None
    return checks(version, *(rule for rule in found if rule in _known(version)))


def names(version: str, pattern: str) -> list[str]:
    """Return all rules whose names match."""
    return [rule for rule in rules_of(version) if re.fullmatch(pattern, rule)]
