"""Generate the conformance tables of AMQP 0-9-1, 0-9 and 1.0: for each rule the tests, or the reason that it has none.

`python -m tests.conformance.table` prints the tables and writes docs/conformance-0-9-1.md, docs/conformance-0-9.md and
docs/conformance-1-0.md. It fails if a rule has neither tests nor a reason. With `--check` it writes nothing, and fails if a
page is out of date.
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

from tests.conformance.catalogue import rules_of

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
ROOT = HERE.parents[1]
VERSIONS = ("0-9-1", "0-9", "1.0")
# Folders with marked tests. Tests outside of the conformance tests may have marks, too.
FOLDERS = (HERE, TESTS / "protocols" / "amqp09", TESTS / "protocols" / "amqp10", TESTS / "wire" / "amqp10")
BOTH = ("rabbitmq", "strict")
OF_XML = (
    "The name of a rule is its path in the specification's XML. Some names end with the kind of the rule:",
    "",
    "| kind | rule |",
    "| --- | --- |",
    "| `chassis` | the peer that must implement a class or method |",
    "| `response` | a response to a method |",
    "| `grammar` | an alternative in the grammar of a class |",
    "| `reply-code` | the reply code for a violation of the rule before it |",
    "| `constant` | a constant |",
    "| `content`, `reserved`, `assert` | an attribute of a method or field |",
    "| `text` | a sentence of a description |",
    "",
)
OF_1_0 = (
    "A rule is a MUST or SHOULD of the specification, or a normative sentence without these keywords. Its name consists of"
    " the part, the section and a keyword of this project. Some names end with a fact of a type:",
    "",
    "| fact | rule |",
    "| --- | --- |",
    "| `mandatory` | the field must be present |",
    "| `default` | the value of an absent field |",
    "| `choice` | a value of a restricted type |",
    "",
)
# Text of each page about the names of rules and the location of tests.
NAMES = {
    "0-9-1": (
        *OF_XML,
        "Rules of the specification's prose, which is not part of the XML, come last. Paths of tests are"
        " relative to `tests/conformance/`.",
    ),
    "0-9": (*OF_XML, "Paths of tests are relative to `tests/conformance/`, or to `tests/` for tests elsewhere."),
    "1.0": (*OF_1_0, "Paths of tests are relative to `tests/conformance/`, or to `tests/` for tests elsewhere."),
}


def page_of(version: str) -> Path:
    return ROOT / "docs" / f"conformance-{version.replace('.', '-')}.md"


class Collected:
    """A pytest plugin that collects the marks of all conformance tests without running them.

    tests     by version and rule: names of the tests, as file and function
    modes     by version and rule: the modes that tests are limited to; "" for a test that runs in both, or has no mode
    unmarked  conformance tests without a rule
    """

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, dict[str, None]]] = {version: defaultdict(dict) for version in VERSIONS}
        self.modes: dict[str, dict[str, set[str]]] = {version: defaultdict(set) for version in VERSIONS}
        self.unmarked: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            own = item.path.is_relative_to(HERE)
            path = item.path.relative_to(HERE if own else TESTS).with_suffix("").as_posix()
            if path == "test_table":
                continue
            name = f"{path}::{getattr(item, 'originalname', item.name)}"
            mode = item.get_closest_marker("mode")
            rules = [mark.args for mark in item.iter_markers("rule")]
            if own and not rules:
                self.unmarked.append(name)
            for version, rule in rules:
                self.tests[version][rule][name] = None
                self.modes[version][rule].add(mode.args[0] if mode else "")


def collect() -> Collected:
    """Collect the marks without running the tests."""
    collected = Collected()
    output = io.StringIO()
    folders = [str(folder) for folder in FOLDERS]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *folders], plugins=[collected])
    if code != pytest.ExitCode.OK:
        raise SystemExit(f"the tests could not be collected:\n{output.getvalue()[-4000:]}")
    return collected


def lines_of(kind: str, version: str) -> dict[str, str]:
    """Read a file about rules ("untestable", "deviations" or "missing"); empty if the file does not exist."""
    path = HERE / f"{kind}_{version.replace('-', '_').replace('.', '_')}.toml"
    return tomllib.loads(path.read_text()) if path.exists() else {}


class Table:
    """Every rule of a version with its tests, deviation or reason. `problems` are the reasons to fail.

    missing rules that the broker does not implement yet, each with the missing part
    """

    def __init__(self, version: str, collected: Collected) -> None:
        self.version = version
        self.rules = rules_of(version)
        self.tests = collected.tests[version]
        modes = collected.modes[version]
        self.untestable = lines_of("untestable", version)
        self.deviations = lines_of("deviations", version)
        self.missing = lines_of("missing", version)
        self.problems = [f"{name}: has no rule" for name in dict.fromkeys(collected.unmarked)]
        known = set(self.rules)
        for rule in self.rules:
            tested = rule in self.tests
            if tested and rule in self.untestable:
                self.problems.append(f"{rule}: listed as untestable, but has tests")
            if tested and rule in self.missing:
                self.problems.append(f"{rule}: listed as missing, but has tests")
            if not tested and rule not in self.untestable and rule not in self.missing:
                self.problems.append(f"{rule}: neither a test nor a reason")
            missing = [mode for mode in BOTH if not modes[rule] & {mode, ""}]
            if tested and missing:
                self.problems.append(f"{rule}: not tested in mode {', '.join(missing)}")
        sections = {rule for rule in self.tests if rule.startswith("section.")}
        for rule in (*self.rules, *sections):
            if version == "0-9-1" and rule in self.deviations and not set(BOTH) <= modes[rule]:
                self.problems.append(f"{rule}: a deviation needs a separate test for each mode")
        for rule in {*self.untestable, *self.deviations, *self.missing} - known - sections:
            self.problems.append(f"{rule}: listed, but the rule does not exist")
        for rule in self.tests:
            if rule not in known and not rule.startswith("section."):
                self.problems.append(f"{rule}: has tests, but the rule does not exist ({next(iter(self.tests[rule]))})")
        self.sections = {rule: tests for rule, tests in sorted(self.tests.items()) if rule.startswith("section.")}

    def totals(self) -> str:
        tested = [rule for rule in self.rules if rule in self.tests]
        return (
            f"{len(self.rules)} rules: {len(tested)} tested, {len(self.untestable)} untestable,"
            f" {len(self.rules) - len(tested) - len(self.untestable)} missing;"
            f" {len(self.deviations)} deviations by default"
        )

    def text(self) -> str:
        """Return the table for a terminal."""
        width = max(map(len, self.rules))
        lines = []
        for rule in self.rules:
            if rule in self.tests:
                what = f"{len(self.tests[rule])} tests" if len(self.tests[rule]) > 1 else "1 test"
                if rule in self.deviations:
                    what += f"; default: {self.deviations[rule]}"
            else:
                what = (
                    f"no test: {self.untestable[rule]}"
                    if rule in self.untestable
                    else (f"MISSING: {self.missing.get(rule, '')}".rstrip(": "))
                )
            lines.append(f"{rule:{width}}  {what}")
        return "\n".join([*lines, "", f"AMQP {self.version}: {self.totals()}", *self.problems])

    def page(self) -> str:
        """Return the page of the documentation."""
        lines = [
            f"# Conformance with AMQP {self.version}",
            "",
            "<!-- Generated by `python -m tests.conformance.table`; do not edit. -->",
            "",
            f"This page lists every rule of AMQP {self.version} with the tests that check it.",
            "",
            f"{self.totals()}.",
            "",
            *NAMES[self.version],
            "",
            "If the default deviates from the specification, the last column describes the default. Most of these rules"
            " follow the specification in a vhost with `compat.strict = true`.",
            "",
            "## Rules",
            "",
            "| rule | checked by | default behaviour |",
            "| --- | --- | --- |",
        ]
        for rule in self.rules:
            if rule in self.tests:
                checked = "<br>".join(f"`{name}`" for name in self.tests[rule])
            elif rule in self.untestable:
                checked = f"*untestable:* {self.untestable[rule]}"
            else:
                checked = f"**missing:** {self.missing.get(rule, '')}"
            lines.append(f"| `{rule}` | {checked} | {self.deviations.get(rule, '')} |")
        if self.sections:
            lines += [
                "",
                "## Other tested sections",
                "",
                "Sections and fields of the specification that have tests but no rule:",
                "",
                "| section or field | checked by | default behaviour |",
                "| --- | --- | --- |",
            ]
        for section, tests in self.sections.items():
            checked = "<br>".join(f"`{name}`" for name in tests)
            lines.append(f"| `{section.removeprefix('section.')}` | {checked} | {self.deviations.get(section, '')} |")
        return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate the conformance tables of AMQP 0-9-1, 0-9 and 1.0.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    options = parser.parse_args()
    collected = collect()
    failed = False
    for version in VERSIONS:
        table = Table(version, collected)
        print(table.text())
        path = page_of(version)
        page = table.page()
        current = path.read_text() if path.exists() else ""
        if options.check and page != current:
            table.problems.append(f"{path} is out of date: python -m tests.conformance.table")
            print(table.problems[-1])
        elif page != current:
            path.write_text(page)
        failed = failed or bool(table.problems)
        print()
    sys.exit(failed)


if __name__ == "__main__":
    main()
