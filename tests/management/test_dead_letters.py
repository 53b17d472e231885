"""Dead letters in groups, and their replay to where they come from, on a broker in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret.broker.errors import PreconditionFailed
from leveret.management.operations.dead_letters import MAX_GROUPS, MAX_LENGTH
from tests.management.harness import Harness
from tests.management.test_messages_in_place import browse, declare, payloads, publish


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.close()


def reject(harness: Harness, queue: str) -> None:
    """Dead-letter the first message of a queue."""
    harness.call("messages.get", queue=queue, mode="reject_requeue_false")


@pytest.fixture
def dead(harness: Harness) -> None:
    """A queue 'dead' with messages that were rejected in 'orders' and in 'bills', and one that is no dead letter."""
    declare(harness, "dead")
    for name in ("orders", "bills"):
        declare(harness, name, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    harness.call("exchanges.add", name="shop", type="topic")
    harness.call("bindings.add", source="shop", kind="queue", destination="orders", routing_key="order.*")
    for number in range(3):
        error = "timeout" if number < 2 else "no stock"
        publish_by(harness, "shop", f"order.{number}", f"order {number}", headers={"x-exception-message": error})
        reject(harness, "orders")
    publish(harness, "bills", "bill")
    reject(harness, "bills")
    publish(harness, "dead", "stray")


def publish_by(harness: Harness, exchange: str, key: str, payload: str, **properties: Any) -> None:
    harness.call(
        "messages.publish",
        exchange=exchange,
        routing_key=key,
        payload=payload,
        properties={"delivery_mode": 2, **properties},
    )


def groups(harness: Harness, **arguments: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = harness.call("messages.dead_letters", queue="dead", **arguments)["groups"]
    return found


def test_groups_by_the_last_death(harness: Harness, dead: None) -> None:
    keys = ("reason", "queue", "exchange", "header", "messages")
    assert [tuple(group[key] for key in keys) for group in groups(harness)] == [
        ("rejected", "orders", "shop", None, 3),
        ("rejected", "bills", "", None, 1),
        (None, None, None, None, 1),
    ]
    assert len(payloads(harness, "dead")) == 5


def test_a_header_tells_groups_apart(harness: Harness, dead: None) -> None:
    found = groups(harness, header="x-exception-message")
    assert [(group["queue"], group["header"], group["messages"]) for group in found] == [
        ("orders", "timeout", 2),
        ("orders", "no stock", 1),
        ("bills", None, 1),
        (None, None, 1),
    ]


def test_the_conditions_of_a_group_select_its_messages_alone(harness: Harness, dead: None) -> None:
    found = [browse(harness, "dead", where=group["where"]) for group in groups(harness, header="x-exception-message")]
    assert found == [["order 0", "order 1"], ["order 2"], ["bill"], ["stray"]]
    where = [{"field": "body", "match": "contains", "value": "order 2"}]
    (group,) = groups(harness, where=where)
    assert group["messages"] == 1
    assert browse(harness, "dead", where=[*where, *group["where"]]) == ["order 2"]


def test_long_values_with_the_same_beginning_are_one_group(harness: Harness) -> None:
    declare(harness, "dead")
    for end in ("a", "b", ""):
        publish(harness, "dead", end, headers={"trace": "x" * MAX_LENGTH + end})
    publish(harness, "dead", "short", headers={"trace": "x" * (MAX_LENGTH - 1)})
    long, short = groups(harness, header="trace")
    assert (long["messages"], long["header"]) == (3, "x" * MAX_LENGTH)
    assert browse(harness, "dead", where=long["where"]) == ["a", "b", ""]
    assert browse(harness, "dead", where=short["where"]) == ["short"]


@pytest.mark.parametrize("deaths", ["text", [], [5], [{"queue": 7, "reason": {"a": [1]}}], [{}]])
def test_deaths_that_a_publisher_invents(harness: Harness, deaths: Any) -> None:
    declare(harness, "dead")
    publish(harness, "dead", "odd", headers={"x-death": deaths})
    (group,) = groups(harness, header="x-death")
    assert browse(harness, "dead", where=group["where"]) == ["odd"]
    for target in ("to_origin", "to_origin_exchange"):
        assert harness.call("messages.move", queue="dead", **{target: True})["unroutable"] == 1


def test_a_request_returns_a_limited_number_of_groups(harness: Harness) -> None:
    declare(harness, "dead")
    for number in range(MAX_GROUPS + 5):
        publish(harness, "dead", "x", headers={"n": number})
    found = harness.call("messages.dead_letters", queue="dead", header="n")
    assert (len(found["groups"]), found["others"]) == (MAX_GROUPS, 5)


def test_the_name_of_the_header_is_limited(harness: Harness, dead: None) -> None:
    with pytest.raises(PreconditionFailed, match="has 256 characters; expected at most 255"):
        groups(harness, header="x" * 256)


def test_groups_end_at_a_limit_and_continue(harness: Harness, dead: None) -> None:
    first = harness.call("messages.dead_letters", queue="dead", examine=3)
    assert [(group["queue"], group["messages"]) for group in first["groups"]] == [("orders", 3)]
    rest = harness.call("messages.dead_letters", queue="dead", cursor=first["cursor"])
    assert [group["queue"] for group in rest["groups"]] == ["bills", None]
    assert (first["examined"], rest["examined"], rest["cursor"]) == (3, 2, None)


def test_a_preview_counts_and_moves_nothing(harness: Harness, dead: None) -> None:
    harness.call("queues.delete", name="bills")
    result = harness.call("messages.preview", queue="dead", to_origin=True)
    assert (result["messages"], result["unroutable"], result["examined"]) == (3, 2, 5)
    assert (len(payloads(harness, "dead")), payloads(harness, "orders")) == (5, [])
    declare(harness, "full", x_max_length=0, x_overflow="reject-publish")
    result = harness.call("messages.preview", queue="dead", to_queue="full")
    assert (result["messages"], result["refused"]) == (0, 5)


def test_dead_letters_replay_through_the_exchange_that_they_came_by(harness: Harness, dead: None) -> None:
    declare(harness, "copy")
    harness.call("bindings.add", source="shop", kind="queue", destination="copy", routing_key="order.1")
    result = harness.call("messages.move", queue="dead", to_origin_exchange=True)
    assert (result["messages"], result["unroutable"]) == (4, 1)
    assert payloads(harness, "orders") == ["order 0", "order 1", "order 2"]
    assert (payloads(harness, "copy"), payloads(harness, "bills")) == (["order 1"], ["bill"])
    assert payloads(harness, "dead") == ["stray"]


def test_dead_letters_stay_if_their_exchange_takes_no_messages(harness: Harness, dead: None) -> None:
    harness.call("exchanges.delete", name="shop")
    assert harness.call("messages.move", queue="dead", to_origin_exchange=True)["unroutable"] == 4
    harness.call("exchanges.add", name="shop", type="fanout", internal=True)
    harness.call("bindings.add", source="shop", kind="queue", destination="orders", routing_key="")
    assert harness.call("messages.move", queue="dead", to_origin_exchange=True)["unroutable"] == 4
    assert payloads(harness, "dead") == ["order 0", "order 1", "order 2", "stray"]


def test_one_target_is_expected(harness: Harness, dead: None) -> None:
    with pytest.raises(PreconditionFailed, match="no single target"):
        harness.call("messages.preview", queue="dead", to_origin=True, to_origin_exchange=True)
