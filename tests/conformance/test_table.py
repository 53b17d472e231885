"""The table of the rules is complete, current, and about the rules that exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conformance.table import HERE, ROOT

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
