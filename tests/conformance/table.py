"""The table of the rules of AMQP 0-9-1: which tests check each, or why none can.

`python -m tests.conformance.table` prints it, writes docs/conformance-0-9-1.md, and fails for a rule with neither. With
`--check` it writes nothing, and fails where the page is not what it would write.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VERSION = "0-9-1"
PAGE = ROOT / "docs" / "conformance-0-9-1.md"
BOTH = ("rabbitmq", "strict")


class Collected:
    """A pytest plugin: the marks of all conformance tests, none of which is run.

    tests     by rule: names of the tests, as file and function
    modes     by rule: the modes that tests are kept to; "" for a test that runs in both, or knows no mode
    unmarked  tests without a rule
    """

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, None]] = defaultdict(dict)
        self.modes: dict[str, set[str]] = defaultdict(set)
        self.unmarked: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            path = item.path.relative_to(HERE).with_suffix("").as_posix()
            if path == "test_table":
                continue
            name = f"{path}::{getattr(item, 'originalname', item.name)}"
            mode = item.get_closest_marker("mode")
            paths = [mark.args[1] for mark in item.iter_markers("rule") if mark.args[0] == VERSION]
            if not paths:
                self.unmarked.append(name)
            for rule in paths:
                self.tests[rule][name] = None
                self.modes[rule].add(mode.args[0] if mode else "")


def collect() -> Collected:
    """The marks, by collecting without running."""
    collected = Collected()
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", str(HERE)], plugins=[collected])
    if code != pytest.ExitCode.OK:
        raise SystemExit(f"the tests could not be collected:\n{output.getvalue()}")
    return collected


class Table:
    """Every rule with what is known about it. `problems` are the reasons to fail."""

    def __init__(self, collected: Collected) -> None:
        self.rules = (HERE / "rules_0_9_1.txt").read_text().split()
        self.tests = collected.tests
        self.untestable: dict[str, str] = tomllib.loads((HERE / "untestable_0_9_1.toml").read_text())
        self.deviations: dict[str, str] = tomllib.loads((HERE / "deviations_0_9_1.toml").read_text())
        self.problems = [f"{name}: has no rule" for name in dict.fromkeys(collected.unmarked)]
        known = set(self.rules)
        for rule in self.rules:
            tested = rule in self.tests
            if tested and rule in self.untestable:
                self.problems.append(f"{rule}: said to be untestable, but there are tests")
            if not tested and rule not in self.untestable:
                self.problems.append(f"{rule}: neither a test nor a reason")
            missing = [mode for mode in BOTH if not collected.modes[rule] & {mode, ""}]
            if tested and missing:
                self.problems.append(f"{rule}: not tested in mode {', '.join(missing)}")
            if rule in self.deviations and not set(BOTH) <= collected.modes[rule]:
                self.problems.append(f"{rule}: a deviation wants a test of its own for each mode")
        for rule in {*self.untestable, *self.deviations} - known:
            self.problems.append(f"{rule}: a line about a rule that does not exist")
        for rule in self.tests:
            if rule not in known and not rule.startswith("section."):
                self.problems.append(f"{rule}: tests for a rule that does not exist ({next(iter(self.tests[rule]))})")
        self.sections = {rule: tests for rule, tests in sorted(self.tests.items()) if rule.startswith("section.")}

    def totals(self) -> str:
        tested = [rule for rule in self.rules if rule in self.tests]
        return (f"{len(self.rules)} rules: {len(tested)} tested, {len(self.untestable)} cannot be tested,"
                f" {len(self.rules) - len(tested) - len(self.untestable)} missing;"
                f" {len(self.deviations)} deviate by default and are tested in both modes")

    def text(self) -> str:
        """For a terminal."""
        width = max(map(len, self.rules))
        lines = []
        for rule in self.rules:
            if rule in self.tests:
                what = f"{len(self.tests[rule])} tests" if len(self.tests[rule]) > 1 else "1 test"
                if rule in self.deviations:
                    what += f"; default: {self.deviations[rule]}"
            else:
                what = f"no test: {self.untestable[rule]}" if rule in self.untestable else "MISSING"
            lines.append(f"{rule:{width}}  {what}")
        return "\n".join([*lines, "", self.totals(), *self.problems])

    def page(self) -> str:
        """For the documentation."""
        lines = [
            "# Conformance with AMQP 0-9-1",
            "",
            "Made by `python -m tests.conformance.table` from the tests; do not edit.",
            "",
            f"{self.totals()}.",
            "",
            "A rule is named by its path in the specification's XML. Tests are in `tests/conformance/`. Where the"
            " default deviates from the specification, as RabbitMQ does, the column says what it does; a virtual host with"
            " `compat.strict = true` follows the specification.",
            "",
            "| rule | checked by | by default |",
            "| --- | --- | --- |",
        ]
        for rule in self.rules:
            if rule in self.tests:
                checked = "<br>".join(f"`{name}`" for name in self.tests[rule])
            elif rule in self.untestable:
                checked = f"*not testable:* {self.untestable[rule]}"
            else:
                checked = "**missing**"
            lines.append(f"| `{rule}` | {checked} | {self.deviations.get(rule, '')} |")
        lines += ["", "## Besides the rules", "",
                  "Sections of the specification, and fields, that have no rule but are tested all the same:", "",
                  "| section or field | checked by |", "| --- | --- |"]
        for section, tests in self.sections.items():
            checked = "<br>".join(f"`{name}`" for name in tests)
            lines.append(f"| `{section.removeprefix('section.')}` | {checked} |")
        return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="The table of the rules of AMQP 0-9-1.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the page is out of date")
    options = parser.parse_args()
    table = Table(collect())
    print(table.text())
    page = table.page()
    current = PAGE.read_text() if PAGE.exists() else ""
    if options.check and page != current:
        table.problems.append(f"{PAGE} is out of date: python -m tests.conformance.table")
        print(table.problems[-1])
    elif page != current:
        PAGE.write_text(page)
    sys.exit(1 if table.problems else 0)


if __name__ == "__main__":
    main()
