"""The state transitions of entries, and that no other module changes their state."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import leveret
from leveret.broker import settlement
from leveret.broker.message import ACQUIRED, ARCHIVED, AVAILABLE, Entry, Message, make_address
from tests.broker.support import World

STATES = {"AVAILABLE", "ACQUIRED", "ARCHIVED"}
PACKAGE = Path(leveret.__file__).parent


def entry_of(world: World) -> Entry:
    message = Message(make_address("", "q"), b"", b"body", 4, False)
    return Entry(world.vhost.declare_queue("q", None), message, 1)


def test_an_entry_is_acquired_and_requeued(world: World) -> None:
    entry = entry_of(world)
    settlement.acquire(entry, None)
    assert (entry.state, entry.acquired_count, entry.holder) == (ACQUIRED, 1, None)
    settlement.requeue(entry)
    assert (entry.state, entry.acquired_count) == (AVAILABLE, 1)
    settlement.acquire(entry, None)
    settlement.settle(entry)
    assert (entry.state, entry.acquired_count) == (ARCHIVED, 2)


def test_a_restored_entry_counts_as_delivered(world: World) -> None:
    entry = entry_of(world)
    settlement.restore(entry)
    assert (entry.state, entry.acquired_count) == (ACQUIRED, 1)
    entry.acquired_count = 3
    settlement.restore(entry)
    assert entry.acquired_count == 3


def _targets(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Each target of an assignment, with the value assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from ((part, node.value) for part in ast.walk(target) if isinstance(part, ast.expr))
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            yield node.target, node.value


def test_only_settlement_assigns_the_state_of_an_entry() -> None:
    found: list[str] = []
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for target, value in _targets(tree):
            if not isinstance(target, ast.Attribute) or target.attr != "state":
                continue
            of_entry = isinstance(target.value, ast.Name) and target.value.id == "entry"
            a_state = value is not None and any(
                part.id in STATES if isinstance(part, ast.Name) else isinstance(part, ast.Attribute) and part.attr in STATES
                for part in ast.walk(value)
            )
            if of_entry or a_state:
                found.append(path.relative_to(PACKAGE).as_posix())
    # `Entry.__init__` sets the first state.
    assert set(found) == {"broker/message.py", "broker/settlement.py"}
    assert found.count("broker/message.py") == 1
