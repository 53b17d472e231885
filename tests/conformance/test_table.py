"""The conformance tables are complete and current, and list only existing rules."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conformance.catalogue import catalogue, lines, rules_of
from tests.conformance.statements import capitals, facts, lower, statements
from tests.conformance.table import ROOT, VERSIONS, Collected, Table
from tests.support.peers import codec09 as codec

SPECIFICATIONS = ROOT.parent / "shared" / "spec"
SPECIFICATION_1_0 = SPECIFICATIONS / "amqp-1-0"


@pytest.mark.parametrize("version", ["0-9-1", "0-9"])
def test_the_list_of_rules_matches_the_specification(version: str) -> None:
    listed = rules_of(version)
    assert len(listed) == len(set(listed))
    specification = SPECIFICATIONS / f"amqp-{version}.xml"
    if not specification.exists():
        pytest.skip(f"{specification} does not exist")
    found = [line.statement for line in lines(version) if line.statement]
    assert found == list(statements(ElementTree.parse(specification).getroot()))


def test_the_codec_of_0_9_matches_the_specification() -> None:
    specification = SPECIFICATIONS / "amqp-0-9.xml"
    if not specification.exists():
        pytest.skip(f"{specification} does not exist")
    root = ElementTree.parse(specification).getroot()
    types = {domain.get("name"): domain.get("type") for domain in root.findall("domain")} | {"content": "content"}

    def fields(element: ElementTree.Element) -> tuple[tuple[str, str | None], ...]:
        return tuple(
            ((field.get("name") or "").replace("-", "_"), types[field.get("domain")]) for field in element.findall("field")
        )

    classes = {known.get("name"): known for known in root.findall("class")}
    assert {name: (spec.class_id, spec.properties) for name, spec in codec.CLASSES.items()} == {
        name: (int(known.get("index") or 0), fields(known)) for name, known in classes.items()
    }
    assert {name: (spec.class_id, spec.method_id, spec.content, spec.fields) for name, spec in codec.METHODS.items()} == {
        f"{name}.{method.get('name')}": (
            int(known.get("index") or 0),
            int(method.get("index") or 0),
            method.get("content") == "1",
            fields(method),
        )
        for name, known in classes.items()
        for method in known.findall("method")
    }


@pytest.mark.parametrize("part", ["types", "transport", "messaging", "transactions", "security"])
def test_the_catalogue_of_1_0_matches_the_specification(part: str) -> None:
    if not SPECIFICATION_1_0.exists():
        pytest.skip(f"{SPECIFICATION_1_0} does not exist")
    root = ElementTree.parse(SPECIFICATION_1_0 / f"{part}.xml").getroot()
    rules = [rule for rule in catalogue() if rule.part == part]
    assert [(rule.place, rule.keyword) for rule in rules if rule.keyword.isupper()] == list(capitals(root))
    assert [(rule.place, rule.keyword) for rule in rules if rule.keyword.islower()] == list(lower(root))
    assert [rule.place for rule in rules if not rule.keyword] == list(facts(part, root))


def test_the_catalogue_of_1_0_is_well_formed() -> None:
    ids = [rule.id for rule in catalogue() if rule.id]
    assert len(set(ids)) == len(ids)
    seen: dict[tuple[str, str, bool], int] = {}
    for rule in catalogue():
        if rule.keyword:
            place = (rule.part, rule.place, rule.keyword.isupper())
            seen[place] = seen.get(place, 0) + 1
            assert rule.ordinal == seen[place], rule


def test_every_rule_has_a_test_or_a_reason() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance.table", "--check"],
        cwd=Path(ROOT),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.fixture
def collected() -> Collected:
    """Marks as if every rule had tests."""
    made = Collected()
    for version in VERSIONS:
        table = Table(version, made)
        for rule in {**dict.fromkeys(table.rules), **table.deviations}:
            if rule not in table.untestable and rule not in table.missing:
                made.tests[version][rule]["test_x::test_y"] = None
                made.modes[version][rule] |= {"rabbitmq", "strict"} if rule in table.deviations else {""}
    return made


@pytest.mark.parametrize("version", VERSIONS)
def test_a_complete_table_has_no_problems(collected: Collected, version: str) -> None:
    table = Table(version, collected)
    rules = len(rules_of(version))
    assert table.problems == []
    tested = rules - len(table.untestable) - len(table.missing)
    assert (
        f"{rules} rules: {tested} tested, {len(table.untestable)} untestable, {len(table.missing)} missing"
        in table.totals()
    )


@pytest.mark.parametrize(
    ("rule", "modes", "problem"),
    [
        ("queue.bind.unique", None, "neither a test nor a reason"),
        ("queue.bind.unique", {"strict"}, "not tested in mode rabbitmq"),
        ("queue.delete.01", {""}, "a deviation needs a separate test for each mode"),
        ("redelivered.hinting", {""}, "listed as untestable"),
        ("queue.no.such.rule", {""}, "the rule does not exist"),
    ],
)
def test_a_table_reports_its_problems(collected: Collected, rule: str, modes: set[str] | None, problem: str) -> None:
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


def test_the_table_shows_missing_rules(collected: Collected) -> None:
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
