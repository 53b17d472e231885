"""The operations `definitions.apply` and `definitions.check`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret.broker.errors import PreconditionFailed
from leveret.broker.vhost import Vhost
from leveret.management.admin import BadCall
from leveret.management.operations import batches
from tests.management.harness import Harness


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.close()


def change(call: str, **arguments: Any) -> dict[str, Any]:
    return {"call": call, "arguments": arguments}


def test_a_refused_change_does_not_prevent_the_others(harness: Harness) -> None:
    changes = [
        change("queues.add", name="a"),
        change("queues.add", name="b", arguments={"x-max-length": -1}),
        change("queues.add", name="b", unknown=1),
        change("queues.delete", name="a"),
        change("bindings.add", source="amq.fanout", destination="a"),
        change("policies.set", name="p", pattern="(?=x)", definition={"expires": 3}),
    ]
    refused = harness.call("definitions.apply", changes=changes)["refused"]
    assert [(item["index"], item["condition"]) for item in refused] == [
        (1, "precondition-failed"),
        (2, "bad-call"),
        (3, "bad-call"),
        (5, "precondition-failed"),
    ]
    assert refused[2]["text"].startswith("unknown change 'queues.delete'; expected one of users.set, ")
    assert [queue["name"] for queue in harness.call("queues.list")] == ["a"]
    assert len(harness.call("bindings.list", destination="a")) == 1


CHECKED: list[tuple[dict[str, Any], str]] = [
    (change("users.set", name="u", tags=[], password_hash="bad"), "password hash"),
    (change("vhosts.add", name="v", default_queue_type="none"), "unknown queue type 'none'"),
    (change("permissions.set", user="u", vhost="/", configure="(", write="", read=""), "configure permission"),
    (change("topic_permissions.set", user="u", vhost="/", exchange="x", write="(", read=""), "write topic permission"),
    (change("exchanges.add", name="x", type="none"), "unknown exchange type 'none'"),
    (change("exchanges.add", name="x" * 256), "at most 255"),
    (change("queues.add", name="q", arguments={"x-queue-type": "none"}), "x-queue-type"),
    (change("queues.add", name="q", durable=False, arguments={"x-queue-type": "stream"}), "stream"),
    (change("policies.set", name="p", vhost="new", pattern="(?=x)", definition={"expires": 3}), "pattern '(?=x)'"),
    (change("parameters.set", component="none", name="p", value={}), "component 'none' does not exist"),
    (change("parameters.set", component="operator_policy", name="p", value={"pattern": "x"}), "must be an object"),
]


@pytest.mark.parametrize(("checked", "reason"), CHECKED)
def test_a_check_finds_what_an_import_would_refuse(harness: Harness, checked: dict[str, Any], reason: str) -> None:
    [refused] = harness.call("definitions.check", changes=[checked])["refused"]
    assert reason in refused["text"]


def test_a_check_changes_nothing(harness: Harness) -> None:
    changes = [
        change("users.set", name="u", tags=["a"], password_hash=""),
        change("user_limits.set", user="u", name="max-channels", value=3),
        change("vhosts.add", name="v"),
        change("exchanges.add", name="x", vhost="v"),
        change("queues.add", name="q", vhost="v"),
        change("bindings.add", source="x", destination="q", vhost="v"),
        change("policies.set", name="p", vhost="v", pattern="", definition={"expires": 3}),
        change("global_parameters.set", name="p", value=1),
    ]
    assert harness.call("definitions.check", changes=changes) == {"refused": []}
    assert [vhost["name"] for vhost in harness.call("vhosts.list")] == ["/"]
    assert harness.call("global_parameters.list") == []
    assert harness.call("definitions.apply", changes=changes) == {"refused": []}
    assert harness.call("bindings.list", vhost="v")[0]["source"] == "x"
    assert harness.call("definitions.apply", changes=[]) == {"refused": []}


def test_a_batch_takes_several_turns(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1
        harness.loop.call_soon(count)

    monkeypatch.setattr(batches, "TURN", 0.0)
    harness.loop.call_soon(count)
    harness.call("definitions.apply", changes=[change("queues.add", name=f"q{number}") for number in range(20)])
    assert turns >= 20


def test_an_internal_error_does_not_prevent_the_others(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    declare = Vhost.declare_queue

    def fail(vhost: Vhost, name: str, *given: Any, **options: Any) -> Any:
        if name == "fails":
            raise RuntimeError("unexpected")
        return declare(vhost, name, *given, **options)

    monkeypatch.setattr(Vhost, "declare_queue", fail)
    changes = [change("queues.add", name="fails"), change("queues.add", name="a")]
    [refused] = harness.call("definitions.apply", changes=changes)["refused"]
    assert (refused["index"], refused["condition"]) == (0, "internal-error")
    assert "unexpected" not in refused["text"]
    assert [queue["name"] for queue in harness.call("queues.list")] == ["a"]


def test_limits(harness: Harness) -> None:
    changes = [change("queues.add", name="a")] * (batches.MAX_CHANGES + 1)
    with pytest.raises(PreconditionFailed, match="the batch has 1001 changes; expected at most 1000"):
        harness.call("definitions.apply", changes=changes)
    with pytest.raises(BadCall, match="changes"):
        harness.call("definitions.apply", changes=7)
