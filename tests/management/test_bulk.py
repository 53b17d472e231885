"""Purge, pause and resume of all queues whose names match a pattern, on a broker in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret.broker.errors import PreconditionFailed
from leveret.management.operations.bulk import MAX_OBJECTS
from tests.management.harness import Harness
from tests.management.test_messages_in_place import declare, payloads, publish


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.close()


def change(harness: Harness, action: str, pattern: str, **arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = harness.call("queues.change_matching", action=action, pattern=pattern, **arguments)
    return found


def names(result: dict[str, Any]) -> list[str]:
    return [item["name"] for item in result["queues"]]


@pytest.fixture
def queues(harness: Harness) -> None:
    """The queues 'a-1' and 'a-2' with messages, 'a-empty', 'b-1' with messages, and the stream 'a-stream'."""
    for name in ("a-1", "a-2", "a-empty", "b-1"):
        declare(harness, name)
    declare(harness, "a-stream", x_queue_type="stream")
    for name in ("a-1", "a-2", "a-2", "b-1", "a-stream"):
        publish(harness, name, "x")


def test_a_dry_run_is_the_default_and_changes_nothing(harness: Harness, queues: None) -> None:
    assert change(harness, "purge", "^a-") == {
        "queues": [{"name": "a-1", "messages": 1}, {"name": "a-2", "messages": 2}],
        "refused": [],
        "after": None,
    }
    assert names(change(harness, "pause", "^a-")) == ["a-1", "a-2", "a-empty", "a-stream"]
    assert (payloads(harness, "a-2"), harness.call("queues.show", name="a-1")["paused"]) == (["x", "x"], False)


def test_matching_queues_are_purged(harness: Harness, queues: None) -> None:
    assert names(change(harness, "purge", "^a-", dry_run=False)) == ["a-1", "a-2"]
    assert [payloads(harness, name) for name in ("a-1", "a-2", "a-stream", "b-1")] == [[], [], ["x"], ["x"]]
    assert names(change(harness, "purge", "^a-")) == []


def test_matching_queues_are_paused_and_resumed(harness: Harness, queues: None) -> None:
    harness.call("queues.pause", name="b-1")
    paused = change(harness, "pause", "-1$", dry_run=False)
    assert names(paused) == ["a-1"]
    assert names(change(harness, "resume", "^a")) == ["a-1"]
    assert names(change(harness, "resume", "", dry_run=False)) == ["a-1", "b-1"]
    assert not any(item["paused"] for item in harness.call("queues.list"))


def test_a_request_changes_a_limited_number_of_queues(harness: Harness) -> None:
    for number in range(MAX_OBJECTS + 3):
        declare(harness, f"q{number}")
    first = change(harness, "pause", "^q", dry_run=False)
    assert names(first) == [f"q{number}" for number in range(MAX_OBJECTS)]
    rest = change(harness, "pause", "^q", dry_run=False, after=first["after"])
    assert (names(rest), rest["after"]) == ([f"q{MAX_OBJECTS}", f"q{MAX_OBJECTS + 1}", f"q{MAX_OBJECTS + 2}"], None)


def test_an_invalid_pattern_is_refused(harness: Harness) -> None:
    with pytest.raises(PreconditionFailed, match="pattern '\\('"):
        change(harness, "purge", "(")
