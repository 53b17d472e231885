"""The table of the rules is complete, current, and about the rules that exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conformance.table import HERE, ROOT, Collected, Table

SPECIFICATION = ROOT.parent / "shared" / "spec" / "amqp-0-9-1.xml"


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


def test_the_list_of_rules_is_the_specifications() -> None:
    if not SPECIFICATION.exists():
        pytest.skip(f"{SPECIFICATION} is not there")
    listed = (HERE / "rules_0_9_1.txt").read_text().split()
    assert listed == paths(ElementTree.parse(SPECIFICATION).getroot(), [])
    assert len(listed) == 115


def test_every_rule_has_a_test_or_a_reason() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.conformance.table", "--check"], cwd=Path(ROOT),
                          capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.fixture
def collected() -> Collected:
    """Marks as if every rule had its tests."""
    made = Collected()
    table = Table(made)
    for rule in table.rules:
        if rule not in table.untestable:
            made.tests[rule]["test_x::test_y"] = None
            made.modes[rule] |= {"rabbitmq", "strict"} if rule in table.deviations else {""}
    return made


def test_a_complete_table_has_no_problems(collected: Collected) -> None:
    table = Table(collected)
    assert table.problems == []
    assert "115 rules: 110 tested, 5 cannot be tested, 0 missing" in table.totals()


@pytest.mark.parametrize(("rule", "modes", "problem"), [
    ("queue.bind.unique", None, "neither a test nor a reason"),
    ("queue.bind.unique", {"strict"}, "not tested in mode rabbitmq"),
    ("queue.delete.01", {""}, "a deviation wants a test of its own for each mode"),
    ("redelivered.hinting", {""}, "said to be untestable"),
    ("queue.no.such.rule", {""}, "a rule that does not exist"),
])
def test_what_is_wrong_with_a_table_is_said(collected: Collected, rule: str, modes: set[str] | None,
                                            problem: str) -> None:
    if modes is None:
        del collected.tests[rule]
    else:
        collected.tests[rule]["test_x::test_y"] = None
        collected.modes[rule] = modes
    problems = Table(collected).problems
    assert len(problems) == 1
    assert problems[0].startswith(rule)
    assert problem in problems[0]


def test_a_test_without_a_rule_is_a_problem(collected: Collected) -> None:
    collected.unmarked.append("test_x::test_z")
    assert Table(collected).problems == ["test_x::test_z: has no rule"]
