"""Read the catalogues of the rules, `rules_*.txt`. Each of these files describes its format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
FILE = HERE / "rules_1_0.txt"
WHO = ("broker", "client", "both", "text")
_PLACE = re.compile(r"[=~] (\w+) ([\d.]+) (.+)")
_RULE = re.compile(r"(\d+) ((?:MUST|SHOULD)(?: NOT)?) (\w+) ([a-z0-9-]+): (.+)")
_LOWER = re.compile(r"(\d+) ([a-z,-]+) (?:-|(\w+) ([a-z0-9-]+): (.+))")


class Rule(NamedTuple):
    """One MUST or SHOULD, one sentence that is normative without either, or one fact of a type.

    id        part, section and name: "transport.2.4.3.close-last"; "" for a sentence that asks for nothing
    part      "types", "transport", "messaging", "transactions" or "security"
    place     its path in the XML of the part; of a fact the fact itself
    ordinal   which of the keywords, or of the sentences, of the place it is, from 1; 0 for a fact
    keyword   "MUST", "MUST NOT", "SHOULD" or "SHOULD NOT"; of a sentence its keywords; "" for a fact
    who       whom it concerns, one of WHO
    words     what it asks for, in short
    """

    id: str
    part: str
    place: str
    ordinal: int
    keyword: str
    who: str
    words: str


def catalogue() -> list[Rule]:
    """Return all lines, in the order of the list. Raises ValueError for an invalid line."""
    rules: list[Rule] = []
    part = section = place = ""
    lower = False
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("+ "):
            id = line[2:].partition(" ")[0]
            rules.append(Rule(id, id.partition(".")[0], line[2:], 0, "", "both", ""))
            continue
        found = _PLACE.fullmatch(line)
        if found is not None:
            lower = line.startswith("~")
            part, section, place = found.groups()
            continue
        found = (_LOWER if lower else _RULE).fullmatch(line)
        if found is None or found[3] not in (*WHO, None):
            raise ValueError(f"{FILE.name}: not a rule: {line}")
        id = f"{part}.{section}.{found[4]}" if found[4] else ""
        rules.append(Rule(id, part, place, int(found[1]), found[2], found[3] or "text", found[5] or ""))
    return rules


class Line(NamedTuple):
    """A line of the list of rules of AMQP 0-9-1 or 0-9.

    id         the rule's name; "" for a sentence without a requirement
    statement  what `statements.statements` finds for it; "" for a rule of the prose
    """

    id: str
    statement: str


def lines(version: str) -> list[Line]:
    """Return all lines, in the order of the specification. Raises ValueError for an invalid line."""
    path = HERE / f"rules_{version.replace('-', '_')}.txt"
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("+ "):
            id, _, words = line[2:].partition(": ")
            if not words:
                raise ValueError(f"{path.name}: not a rule: {line}")
            found.append(Line(id, ""))
            continue
        id, _, fact = line.partition(" ")
        place, text, name = id.partition(".text.")
        if not text:
            found.append(Line(id, line))
            continue
        keywords, _, words = fact.partition(": ")
        if (name == "-") == bool(words):
            raise ValueError(f"{path.name}: not a rule: {line}")
        found.append(Line(id if words else "", f"{place}.text {keywords}"))
    return found


def rules_of(version: str) -> list[str]:
    """Return the ids of all rules of a version, in the order of the specification."""
    if version == "1.0":
        return [rule.id for rule in catalogue() if rule.id]
    return [line.id for line in lines(version) if line.id]
