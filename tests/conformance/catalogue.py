"""The catalogue of the rules of AMQP 1.0, `rules_1_0.txt`; that file says how it is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).resolve().parent / "rules_1_0.txt"
WHO = ("broker", "client", "both", "text")
_PLACE = re.compile(r"= (\w+) ([\d.]+) (.+)")
_RULE = re.compile(r"(\d+) ((?:MUST|SHOULD)(?: NOT)?) (\w+) ([a-z0-9-]+): (.+)")


class Rule(NamedTuple):
    """One MUST or SHOULD.

    id        part, section and name: "transport.2.4.3.close-last"
    part      "types", "transport", "messaging", "transactions" or "security"
    place     its path in the XML of the part
    ordinal   which of the keywords of the place it is, from 1
    keyword   "MUST", "MUST NOT", "SHOULD" or "SHOULD NOT"
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
    """All rules, in the order of the specification. ValueError for a line that is none."""
    rules: list[Rule] = []
    part = section = place = ""
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        found = _PLACE.fullmatch(line)
        if found is not None:
            part, section, place = found.groups()
            continue
        found = _RULE.fullmatch(line)
        if found is None or found[3] not in WHO:
            raise ValueError(f"{FILE.name}: not a rule: {line}")
        rules.append(Rule(f"{part}.{section}.{found[4]}", part, place, int(found[1]), found[2], found[3], found[5]))
    return rules
