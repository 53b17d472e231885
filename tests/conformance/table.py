"""The tables of the rules of AMQP 0-9-1, 0-9 and 1.0: which tests check each, or why none can.

`python -m tests.conformance.table` prints them, writes docs/conformance-0-9-1.md, docs/conformance-0-9.md and
docs/conformance-1-0.md, and fails for a rule with neither. With `--check` it writes nothing, and fails where a page is not
what it would write.
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
# Where marked tests are. Besides the conformance tests, others may be marked as well.
FOLDERS = (HERE, TESTS / "protocols" / "v0_9", TESTS / "protocols" / "v1_0", TESTS / "wire" / "amqp1")
BOTH = ("rabbitmq", "strict")
OF_XML = ("A rule is named by its path in the specification's XML. `chassis` is the side that has to implement a class or"
          " method, `response` an answer, `grammar` an alternative of a class's grammar, `reply-code` the code for breaking"
          " the rule before it, `constant` a constant, `content`, `reserved` and `assert` an attribute of a method or"
          " field, `text` a sentence of a description.")
NAMES = {
    "0-9-1": f"{OF_XML} Rules of the specification's prose, which is not in the XML, come last. Tests are in"
             " `tests/conformance/`.",
    "0-9": f"{OF_XML} Tests are in `tests/conformance/amqp09/`, or where the path says.",
    "1.0": "A rule is a MUST or SHOULD of the specification, or a sentence that is normative without either; its name"
           " has the part, the section and a word of ours. `mandatory`, `default` and `choice` are facts of a type: that a"
           " field must not be absent, what it means when it is, and a value of a restricted type. Tests are in"
           " `tests/conformance/amqp1/`, or where the path says.",
}


def page_of(version: str) -> Path:
    return ROOT / "docs" / f"conformance-{version.replace('.', '-')}.md"


class Collected:
    """A pytest plugin: the marks of all conformance tests, none of which is run.

    tests     by version and rule: names of the tests, as file and function
    modes     by version and rule: the modes that tests are kept to; "" for a test that runs in both, or knows no mode
    unmarked  conformance tests without a rule
    """

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, dict[str, None]]] = {
            version: defaultdict(dict) for version in VERSIONS}
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
    """The marks, by collecting without running."""
    collected = Collected()
    output = io.StringIO()
    folders = [str(folder) for folder in FOLDERS]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *folders], plugins=[collected])
    if code != pytest.ExitCode.OK:
        raise SystemExit(f"the tests could not be collected:\n{output.getvalue()[-4000:]}")
    return collected


def lines_of(kind: str, version: str) -> dict[str, str]:
    """What a file says about rules: "untestable", "deviations" or "missing"; nothing where there is no such file."""
    path = HERE / f"{kind}_{version.replace('-', '_').replace('.', '_')}.toml"
    return tomllib.loads(path.read_text()) if path.exists() else {}


class Table:
    """Every rule of a version with what is known about it. `problems` are the reasons to fail.

    missing   rules that the broker does not keep yet, each with what it lacks: neither tested nor hidden
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
                self.problems.append(f"{rule}: said to be untestable, but there are tests")
            if tested and rule in self.missing:
                self.problems.append(f"{rule}: said to be missing, but there are tests")
            if not tested and rule not in self.untestable and rule not in self.missing:
                self.problems.append(f"{rule}: neither a test nor a reason")
            missing = [mode for mode in BOTH if not modes[rule] & {mode, ""}]
            if tested and missing:
                self.problems.append(f"{rule}: not tested in mode {', '.join(missing)}")
        sections = {rule for rule in self.tests if rule.startswith("section.")}
        for rule in (*self.rules, *sections):
            if version == "0-9-1" and rule in self.deviations and not set(BOTH) <= modes[rule]:
                self.problems.append(f"{rule}: a deviation wants a test of its own for each mode")
        for rule in {*self.untestable, *self.deviations, *self.missing} - known - sections:
            self.problems.append(f"{rule}: a line about a rule that does not exist")
        for rule in self.tests:
            if rule not in known and not rule.startswith("section."):
                self.problems.append(f"{rule}: tests for a rule that does not exist ({next(iter(self.tests[rule]))})")
        self.sections = {rule: tests for rule, tests in sorted(self.tests.items()) if rule.startswith("section.")}

    def totals(self) -> str:
        tested = [rule for rule in self.rules if rule in self.tests]
        return (f"{len(self.rules)} rules: {len(tested)} tested, {len(self.untestable)} cannot be tested,"
                f" {len(self.rules) - len(tested) - len(self.untestable)} missing;"
                f" {len(self.deviations)} deviate by default")

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
                what = f"no test: {self.untestable[rule]}" if rule in self.untestable else (
                    f"MISSING: {self.missing.get(rule, '')}".rstrip(": "))
            lines.append(f"{rule:{width}}  {what}")
        return "\n".join([*lines, "", f"AMQP {self.version}: {self.totals()}", *self.problems])

    def page(self) -> str:
        """For the documentation."""
        lines = [
            f"# Conformance with AMQP {self.version}",
            "",
            "Made by `python -m tests.conformance.table` from the tests; do not edit.",
            "",
            f"{self.totals()}.",
            "",
            f"{NAMES[self.version]} Where the default deviates from the specification, the column says what it does; a"
            " virtual host with `compat.strict = true` follows the specification.",
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
                checked = f"**missing:** {self.missing.get(rule, '')}"
            lines.append(f"| `{rule}` | {checked} | {self.deviations.get(rule, '')} |")
        if self.sections:
            lines += ["", "## Besides the rules", "",
                      "Sections of the specification, and fields, that have no rule but are tested all the same:", "",
                      "| section or field | checked by | by default |", "| --- | --- | --- |"]
        for section, tests in self.sections.items():
            checked = "<br>".join(f"`{name}`" for name in tests)
            lines.append(f"| `{section.removeprefix('section.')}` | {checked} | {self.deviations.get(section, '')} |")
        return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="The tables of the rules of AMQP 0-9-1, 0-9 and 1.0.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a page is out of date")
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
