"""The table of the rules is complete, current, and about the rules that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conformance.amqp09 import codec
from tests.conformance.catalogue import catalogue
from tests.conformance.table import ROOT, VERSIONS, Collected, Table, rules_of

SPECIFICATIONS = ROOT.parent / "shared" / "spec"
SPECIFICATION_1_0 = SPECIFICATIONS / "amqp-1-0"
KEYWORD = re.compile(r"\b(?:MUST|SHOULD)(?:\s+NOT)?\b")


def paths(element: ElementTree.Element, above: list[str]) -> list[str]:
    """The paths of all rules below an element: names of classes, methods, fields and domains, then the rule's."""
    found = []
    for child in element:
        named = child.tag in ("class", "method", "field", "domain", "rule")
        path = [*above, (child.get("name") or "").replace(" ", "-")] if named else above
        if child.tag == "rule":
            found.append(".".join(path))
        else:
            found += paths(child, path)
    return found


@pytest.mark.parametrize(("version", "count"), [("0-9-1", 115), ("0-9", 199)])
def test_the_list_of_rules_is_the_specifications(version: str, count: int) -> None:
    listed = rules_of(version)
    assert len(listed) == len(set(listed)) == count
    specification = SPECIFICATIONS / f"amqp-{version}.xml"
    if not specification.exists():
        pytest.skip(f"{specification} is not there")
    assert listed == paths(ElementTree.parse(specification).getroot(), [])


def test_the_codec_of_0_9_has_the_specifications_classes_and_methods() -> None:
    specification = SPECIFICATIONS / "amqp-0-9.xml"
    if not specification.exists():
        pytest.skip(f"{specification} is not there")
    root = ElementTree.parse(specification).getroot()
    types = {domain.get("name"): domain.get("type") for domain in root.findall("domain")} | {"content": "content"}

    def fields(element: ElementTree.Element) -> tuple[tuple[str, str | None], ...]:
        return tuple(((field.get("name") or "").replace("-", "_"), types[field.get("domain")])
                     for field in element.findall("field"))

    classes = {known.get("name"): known for known in root.findall("class")}
    assert {name: (spec.class_id, spec.properties) for name, spec in codec.CLASSES.items()} == {
        name: (int(known.get("index") or 0), fields(known)) for name, known in classes.items()}
    assert {name: (spec.class_id, spec.method_id, spec.content, spec.fields) for name, spec in codec.METHODS.items()} == {
        f"{name}.{method.get('name')}": (int(known.get("index") or 0), int(method.get("index") or 0),
                                        method.get("content") == "1", fields(method))
        for name, known in classes.items() for method in known.findall("method")}


def keywords(element: ElementTree.Element, above: list[str]) -> list[tuple[str, str]]:
    """The MUSTs and SHOULDs below an element, each with the path of its place."""
    kind = element.tag.rsplit("}", 1)[-1]
    name = element.get("title") if kind == "doc" else element.get("name") if kind in ("section", "type", "field") else ""
    path = [*above, name] if name else above
    found = [("/".join(path), keyword) for keyword in KEYWORD.findall(element.text or "")]
    for child in element:
        found += keywords(child, path)
        found += [("/".join(path), keyword) for keyword in KEYWORD.findall(child.tail or "")]
    return [(place, " ".join(keyword.split())) for place, keyword in found]


def test_the_catalogue_of_1_0_is_the_specifications() -> None:
    if not SPECIFICATION_1_0.exists():
        pytest.skip(f"{SPECIFICATION_1_0} is not there")
    for part in ("types", "transport", "messaging", "transactions", "security"):
        root = ElementTree.parse(SPECIFICATION_1_0 / f"{part}.xml").getroot()
        listed = [(rule.place, rule.keyword) for rule in catalogue() if rule.part == part]
        assert listed == keywords(root, []), part


def test_the_catalogue_of_1_0_is_well_made() -> None:
    rules = catalogue()
    assert len({rule.id for rule in rules}) == len(rules)
    must = [rule for rule in rules if rule.keyword.startswith("MUST")]
    assert (len(must), len(rules) - len(must)) == (176, 32)
    seen: dict[tuple[str, str], int] = {}
    for rule in rules:
        place = (rule.part, rule.place)
        seen[place] = seen.get(place, 0) + 1
        assert rule.ordinal == seen[place], rule.id


def test_every_rule_has_a_test_or_a_reason() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.conformance.table", "--check"], cwd=Path(ROOT),
                          capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.fixture
def collected() -> Collected:
    """Marks as if every rule had its tests."""
    made = Collected()
    for version in VERSIONS:
        table = Table(version, made)
        for rule in table.rules:
            if rule not in table.untestable and rule not in table.missing:
                made.tests[version][rule]["test_x::test_y"] = None
                made.modes[version][rule] |= {"rabbitmq", "strict"} if rule in table.deviations else {""}
    return made


@pytest.mark.parametrize(("version", "rules"), [("0-9-1", 115), ("1.0", 208)])
def test_a_complete_table_has_no_problems(collected: Collected, version: str, rules: int) -> None:
    table = Table(version, collected)
    assert table.problems == []
    tested = rules - len(table.untestable) - len(table.missing)
    assert (f"{rules} rules: {tested} tested, {len(table.untestable)} cannot be tested, {len(table.missing)} missing"
            in table.totals())


@pytest.mark.parametrize(("rule", "modes", "problem"), [
    ("queue.bind.unique", None, "neither a test nor a reason"),
    ("queue.bind.unique", {"strict"}, "not tested in mode rabbitmq"),
    ("queue.delete.01", {""}, "a deviation wants a test of its own for each mode"),
    ("redelivered.hinting", {""}, "said to be untestable"),
    ("queue.no.such.rule", {""}, "a rule that does not exist"),
])
def test_what_is_wrong_with_a_table_is_said(collected: Collected, rule: str, modes: set[str] | None,
                                            problem: str) -> None:
    tests = collected.tests["0-9-1"]
    if modes is None:
        del tests[rule]
    else:
        tests[rule]["test_x::test_y"] = None
        collected.modes["0-9-1"][rule] = modes
    problems = Table("0-9-1", collected).problems
    assert len(problems) == 1
    assert problems[0].startswith(rule)
    assert problem in problems[0]


def test_what_is_missing_is_in_the_table(collected: Collected) -> None:
    table = Table("1.0", collected)
    rule = next(rule for rule in table.rules if rule in collected.tests["1.0"])
    del collected.tests["1.0"][rule]
    table.missing = {rule: "it lacks this"}
    assert f"| `{rule}` | **missing:** it lacks this |" in table.page()
    assert re.search(rf"{re.escape(rule)} +MISSING: it lacks this", table.text())


def test_a_test_without_a_rule_is_a_problem(collected: Collected) -> None:
    collected.unmarked.append("test_x::test_z")
    for version in VERSIONS:
        assert Table(version, collected).problems == ["test_x::test_z: has no rule"]
