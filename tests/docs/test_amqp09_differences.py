"""The table of differences between AMQP 0-9 and 0-9-1 equals the two versions, method by method and field by field."""

from __future__ import annotations

import re

from leveret.wire.amqp0.specs import V0_9, V0_9_1
from tests.docs.pages import DOCS


def rows() -> dict[str, tuple[str, str]]:
    """Return both columns of the table by the cells before them."""
    page = (DOCS / "amqp-0-9.md").read_text("utf-8")
    section = page[page.index("### On the wire") : page.index("If the text contradicts itself")]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return {name.strip(): (old.strip(), new.strip()) for name, old, new in lines}


ROWS = rows()


def named(text: str) -> set[str]:
    return set(re.findall(r"`([a-z-]+)`", text))


def test_classes() -> None:
    new, old = ({spec.name for spec in version.classes.values()} for version in (V0_9, V0_9_1))
    assert (named(ROWS["classes"][0]), named(ROWS["classes"][1])) == (old - new, new - old)


def test_methods_of_the_classes_that_both_have() -> None:
    told: dict[str, tuple[set[str], set[str]]] = {}
    for name, (old, new) in ROWS.items():
        if match := re.match(r"methods of `([a-z-]+)`", name):
            told[match[1]] = (named(old), named(new))
    found: dict[str, tuple[set[str], set[str]]] = {}
    for at, version, other in ((0, V0_9_1, V0_9), (1, V0_9, V0_9_1)):
        theirs = {spec.name for spec in other.classes.values()}
        for method in version.by_name.values():
            of_class, name = method.name.split(".")
            if of_class in theirs and method.name not in other.by_name:
                found.setdefault(of_class, (set(), set()))[at].add(name)
    assert told == found


def test_fields_of_the_methods_that_both_have() -> None:
    for name in V0_9.by_name.keys() & V0_9_1.by_name.keys():
        new, old = V0_9.by_name[name], V0_9_1.by_name[name]
        assert [field.type for field in new.fields] == [field.type for field in old.fields], name
        if new.method_id != old.method_id:
            assert f"60.{old.method_id}" in ROWS[f"`{name}`"][0] and f"60.{new.method_id}" in ROWS[f"`{name}`"][1]
        others = {
            mine.spec_name: theirs.spec_name
            for mine, theirs in zip(new.fields, old.fields, strict=True)
            if mine.spec_name != theirs.spec_name
        }
        others.pop("nowait", None)  # it is called no-wait
        if others.pop("ticket", None) is not None:
            assert named(ROWS["methods with an access ticket"][1]) == {"ticket"}
        if others:
            row = next(row for left, row in ROWS.items() if f"`{name}`" in left)
            assert named(row[1]) == others.keys(), name
            assert all(theirs.startswith("reserved") or theirs in named(row[0]) for theirs in others.values()), name


def test_properties_and_constants() -> None:
    new, old = ([field.spec_name for field in version.classes[60].properties] for version in (V0_9, V0_9_1))
    assert {(mine, theirs) for mine, theirs in zip(new, old, strict=True) if mine != theirs} <= {("cluster-id", "reserved")}
    mine, theirs = (
        {constant.name for constant in version.constants.values() if not constant.extension} for version in (V0_9, V0_9_1)
    )
    assert named(ROWS["frames"][1]) | named(ROWS["reply codes"][1]) == mine - theirs
    assert named(ROWS["reply codes"][0]) == theirs - mine


def test_the_sender_of_a_method_is_the_same() -> None:
    for name in V0_9.by_name.keys() & V0_9_1.by_name.keys():
        new, old = V0_9.by_name[name], V0_9_1.by_name[name]
        assert sorted(new.spec_receivers) == sorted(old.spec_receivers), name
        assert (new.content, new.sync) == (old.content, old.sync), name
