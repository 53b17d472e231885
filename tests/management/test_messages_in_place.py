"""Messages of a queue in their places: browse, search, move, copy, delete and resend, on a broker in memory."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from leveret.broker.errors import BrokerError, NotImplementedByBroker, PreconditionFailed
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.queue import Queue
from leveret.management.operations.message_search import MAX_JSON
from tests.management.harness import Harness


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.close()


def declare(harness: Harness, name: str, **arguments: Any) -> Queue:
    harness.call("queues.add", name=name, arguments={key.replace("_", "-"): value for key, value in arguments.items()})
    return harness.broker.vhosts["/"].queues[name]


def publish(harness: Harness, queue: str, *payloads: str, **properties: Any) -> None:
    for payload in payloads:
        harness.call("messages.publish", routing_key=queue, payload=payload, properties={"delivery_mode": 2, **properties})


def browse(harness: Harness, queue: str, **arguments: Any) -> list[str]:
    return [item["payload"] for item in harness.call("messages.browse", queue=queue, **arguments)["messages"]]


def payloads(harness: Harness, queue: str) -> list[str]:
    return browse(harness, queue, count=1000)


def ids(harness: Harness, queue: str) -> list[int]:
    return [item["id"] for item in harness.call("messages.browse", queue=queue)["messages"]]


def page_out(harness: Harness, queue: Queue) -> None:
    """Page out everything but the first entry."""

    async def committed() -> None:
        await asyncio.sleep(0)

    harness.loop.run_until_complete(committed())
    for _ in queue.paging.page_down(1):
        pass
    assert queue.paging.paged_memory() > 0


@pytest.fixture(params=["in memory", "paged out"])
def filled(harness: Harness, request: pytest.FixtureRequest) -> Queue:
    """A queue with the messages 0 to 9."""
    queue = declare(harness, "source")
    publish(harness, "source", *map(str, range(10)))
    if request.param == "paged out":
        page_out(harness, queue)
    return queue


# Browse


def test_browsing_changes_nothing(harness: Harness, filled: Queue) -> None:
    before = harness.call("queues.show", name="source")
    found = harness.call("messages.browse", queue="source")
    assert [item["payload"] for item in found["messages"]] == [str(number) for number in range(10)]
    assert [item["redelivered"] for item in found["messages"]] == [False] * 10
    assert (found["examined"], found["cursor"]) == (10, None)
    assert harness.call("queues.show", name="source") == before


def test_offset_count_and_cursor(harness: Harness, filled: Queue) -> None:
    first = harness.call("messages.browse", queue="source", offset=3, count=4)
    assert [item["payload"] for item in first["messages"]] == ["3", "4", "5", "6"]
    publish(harness, "source", "later")
    rest = harness.call("messages.browse", queue="source", cursor=first["cursor"])
    assert [item["payload"] for item in rest["messages"]] == ["7", "8", "9"]
    assert rest["cursor"] is None
    assert browse(harness, "source", offset=100) == []


def test_each_message_counts_once_as_examined(harness: Harness) -> None:
    declare(harness, "source")
    publish(harness, "source", *("ab" * 100))
    first = harness.call("messages.browse", queue="source", count=70)
    rest = harness.call("messages.browse", queue="source", count=200, cursor=first["cursor"])
    assert (first["examined"], rest["examined"]) == (70, 130)
    found = harness.call("messages.browse", queue="source", where=[{"field": "body", "value": "b"}], count=5)
    assert found["examined"] == 10


def test_priorities_come_in_the_order_of_delivery(harness: Harness) -> None:
    declare(harness, "ranked", x_max_priority=5)
    for priority in (1, 5, 3, 5):
        publish(harness, "ranked", str(priority), priority=priority)
    assert browse(harness, "ranked") == ["5", "5", "3", "1"]
    assert browse(harness, "ranked", offset=1) == ["5", "3", "1"]
    found = harness.call("messages.browse", queue="ranked", count=2)
    assert browse(harness, "ranked", cursor=found["cursor"]) == ["3", "1"]


def test_entries_in_memory_before_and_behind_paged_out_ones(harness: Harness) -> None:
    queue = declare(harness, "source")
    publish(harness, "source", "a", "b", "c")
    page_out(harness, queue)
    publish(harness, "source", "d", "e")
    assert browse(harness, "source") == ["a", "b", "c", "d", "e"]
    assert browse(harness, "source", offset=2, count=2) == ["c", "d"]


def test_payloads_are_truncated_and_encoded(harness: Harness) -> None:
    declare(harness, "source")
    publish(harness, "source", "äbc")
    (item,) = harness.call("messages.browse", queue="source", truncate=1)["messages"]
    assert (item["payload"], item["payload_encoding"], item["payload_bytes"]) == ("ww==", "base64", 4)
    (item,) = harness.call("messages.browse", queue="source", encoding="base64")["messages"]
    assert item["payload"] == "w6RiYw=="


def test_expired_messages_are_not_shown(harness: Harness) -> None:
    declare(harness, "source")
    publish(harness, "source", "stays")
    publish(harness, "source", "expires", expiration="1")
    harness.loop.run_until_complete(asyncio.sleep(0.005))
    assert browse(harness, "source") == ["stays"]


@pytest.mark.parametrize("cursor", ["x", "1-2-3", "1-2-3-x"])
def test_an_invalid_cursor(harness: Harness, filled: Queue, cursor: str) -> None:
    with pytest.raises(PreconditionFailed, match="invalid cursor"):
        browse(harness, "source", cursor=cursor)


def test_a_cursor_of_a_queue_that_was_declared_again(harness: Harness, filled: Queue) -> None:
    found = harness.call("messages.browse", queue="source", count=1)
    harness.call("queues.delete", name="source")
    declare(harness, "source")
    with pytest.raises(PreconditionFailed, match="was deleted and declared again"):
        browse(harness, "source", cursor=found["cursor"])
    with pytest.raises(PreconditionFailed, match="was deleted and declared again"):
        harness.call("messages.delete", queue="source", ids=[1], queue_id=found["queue_id"])


# Search


@pytest.fixture
def mixed(harness: Harness) -> None:
    declare(harness, "mixed")
    publish(harness, "mixed", '{"order": {"id": 7, "items": ["a", "b"]}}', headers={"kind": "json", "n": 5}, type="order")
    publish(harness, "mixed", "plain text with order-17", headers={"kind": "text"}, correlation_id="abc")
    publish(harness, "mixed", "something else", message_id="m-1", priority=3)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"field": "headers.kind", "value": "text"}, [1]),
        ({"field": "headers.n", "value": 5}, [0]),
        ({"field": "headers.n", "value": "5"}, [0]),
        ({"field": "headers.kind", "match": "exists"}, [0, 1]),
        ({"field": "headers.kind", "match": "regex", "value": "^(json|yaml)$"}, [0]),
        ({"field": "headers.kind", "match": "missing"}, [2]),
        ({"field": "headers.kind", "match": "prefix", "value": "tex"}, [1]),
        ({"field": "death.queue", "match": "missing"}, [0, 1, 2]),
        ({"field": "body", "match": "prefix", "value": "plain"}, [1]),
        ({"field": "body.order.missing", "match": "missing"}, [0]),
        ({"field": "correlation_id", "match": "contains", "value": "b"}, [1]),
        ({"field": "priority", "value": 3}, [2]),
        ({"field": "routing_key", "value": "mixed"}, [0, 1, 2]),
        ({"field": "exchange", "value": "other"}, []),
        ({"field": "body", "match": "contains", "value": "order"}, [0, 1]),
        ({"field": "body", "match": "regex", "value": "order-[0-9]+$"}, [1]),
        ({"field": "body", "value": "something else"}, [2]),
        ({"field": "body.order.id", "value": 7}, [0]),
        ({"field": "body.order.items.1", "value": "b"}, [0]),
        ({"field": "body.order.missing", "match": "exists"}, []),
        ({"field": "body.order.items[1]", "value": "b"}, [0]),
        ({"field": 'body["order"]["items"][0]', "value": "a"}, [0]),
        ({"field": "body.order.items[2]", "match": "exists"}, []),
        ({"field": "body[0]", "match": "exists"}, []),
        ({"field": "body.order.id", "match": "greater", "value": 6.5}, [0]),
        ({"field": "body.order.id", "match": "greater_or_equal", "value": 8}, []),
        ({"field": "body.order.id", "match": "less", "value": "8"}, []),
        ({"field": "body.order.items[0]", "match": "less", "value": "b"}, [0]),
        ({"field": "body.order.id", "match": "not_equals", "value": 8}, [0]),
        ({"field": "headers.n", "match": "less_or_equal", "value": 5}, [0]),
        ({"field": "headers.kind", "match": "not_equals", "value": "json"}, [1]),
        ({"field": "body", "match": "not_equals", "value": "something else"}, [0, 1]),
    ],
)
def test_conditions(harness: Harness, mixed: None, condition: dict[str, Any], expected: list[int]) -> None:
    everything = ids(harness, "mixed")
    found = harness.call("messages.browse", queue="mixed", where=[condition])
    assert [everything.index(item["id"]) for item in found["messages"]] == expected
    assert found["examined"] == 3


@pytest.mark.parametrize(
    ("body", "wanted", "is_equal"),
    [
        ("true", True, True),
        ("true", 1, False),
        ("1", True, False),
        ("0", False, False),
        ("1.0", 1, True),
        ("null", None, True),
        ("null", False, False),
        ("[1, true]", [1.0, True], True),
        ("[1, true]", [1, 1], False),
        ("[1]", [1, 2], False),
        ('{"a": {"b": true}}', {"a": {"b": True}}, True),
        ('{"a": {"b": true}}', {"a": {"b": 1}}, False),
        ('{"a": 1}', {"b": 1}, False),
    ],
)
def test_values_are_equal_as_in_json(harness: Harness, body: str, wanted: object, is_equal: bool) -> None:
    declare(harness, "values")
    publish(harness, "values", f'{{"value": {body}}}')
    for match, expected in (("equals", is_equal), ("not_equals", not is_equal)):
        where = [{"field": "body.value", "match": match, "value": wanted}]
        assert len(browse(harness, "values", where=where)) == expected


def test_all_conditions_must_be_met(harness: Harness, mixed: None) -> None:
    where = [{"field": "body", "match": "contains", "value": "order"}, {"field": "headers.kind", "value": "text"}]
    assert browse(harness, "mixed", where=where) == ["plain text with order-17"]


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ({"field": "payload"}, "unknown field 'payload'; expected one of exchange, routing_key"),
        ({"field": "body", "match": "contains", "value": 5}, "invalid value of the condition on 'body'; expected a text"),
        ({"field": "body", "match": "regex", "value": "(?=x)"}, "uses a lookahead"),
        ({"field": "body", "match": "less", "value": "x"}, "invalid match 'less' on 'body'; expected that of a value"),
        ({"field": "body.a", "match": "less", "value": True}, "expected a number or a text"),
        ({"field": "body.a..b"}, "invalid path 'body.a..b': position 6: expected .NAME"),
        ({"field": "body[x]"}, "position 4: expected .NAME"),
        ({"field": 'body["\\x"]'}, "position 4: expected .NAME"),
        ({"field": "body." + "a" * 1000}, "a path has 1005 characters; expected at most 1000"),
    ],
)
def test_invalid_conditions(harness: Harness, mixed: None, condition: dict[str, Any], words: str) -> None:
    with pytest.raises(PreconditionFailed, match=re.escape(words)):
        browse(harness, "mixed", where=[condition])


def test_a_search_ends_at_its_limit_and_continues(harness: Harness, filled: Queue) -> None:
    where = [{"field": "body", "match": "regex", "value": "[2468]"}]
    found = harness.call("messages.browse", queue="source", where=where, examine=5)
    assert [item["payload"] for item in found["messages"]] == ["2", "4"]
    assert found["examined"] == 5
    rest = harness.call("messages.browse", queue="source", where=where, cursor=found["cursor"])
    assert ([item["payload"] for item in rest["messages"]], rest["cursor"]) == (["6", "8"], None)


def test_a_search_returns_as_many_as_are_wanted(harness: Harness, filled: Queue) -> None:
    where = [{"field": "body", "match": "regex", "value": "[2468]"}]
    found = harness.call("messages.browse", queue="source", where=where, count=3)
    assert [item["payload"] for item in found["messages"]] == ["2", "4", "6"]
    assert browse(harness, "source", where=where, cursor=found["cursor"]) == ["8"]


def test_json_that_is_too_large_is_skipped_and_counted(harness: Harness) -> None:
    declare(harness, "source")
    for size in (0, MAX_JSON, 0, MAX_JSON, 0):
        publish(harness, "source", json.dumps({"n": 1, "more": "x" * size}))
    where = [{"field": "body.n", "value": 1}]
    found = harness.call("messages.browse", queue="source", where=where, truncate=1)
    assert (len(found["messages"]), found["examined"], found["skipped"]) == (3, 5, 2)
    first = harness.call("messages.browse", queue="source", where=where, truncate=1, count=2)
    rest = harness.call("messages.browse", queue="source", where=where, truncate=1, cursor=first["cursor"])
    assert [(page["examined"], page["skipped"]) for page in (first, rest)] == [(3, 1), (2, 1)]
    missing = [{"field": "body.other", "match": "missing"}]
    assert len(browse(harness, "source", where=missing)) == 3
    text = [{"field": "body", "match": "contains", "value": '"n": 1'}]
    assert len(browse(harness, "source", where=text)) == 5
    result = harness.call("messages.delete", queue="source", where=where)
    assert (result["messages"], result["skipped"]) == (3, 2)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("kind = 'text'", ["plain text with order-17"]),
        ("n BETWEEN 4 AND 6 OR amqp.message_id = 'm-1'", ['{"order": {"id": 7, "items": ["a", "b"]}}', "something else"]),
        ("JMSPriority = 3", ["something else"]),
        ("kind <> 'text'", ['{"order": {"id": 7, "items": ["a", "b"]}}']),
        ("kind LIKE 'x%'", []),
    ],
)
def test_a_selector(harness: Harness, mixed: None, selector: str, expected: list[str]) -> None:
    assert browse(harness, "mixed", selector=selector) == expected


def test_a_selector_sees_dead_letters_as_consumers_do(harness: Harness) -> None:
    declare(harness, "target")
    declare(harness, "source", x_dead_letter_exchange="", x_dead_letter_routing_key="target")
    publish(harness, "source", "dies", headers={"kind": "x"})
    harness.call("messages.get", queue="source", mode="reject_requeue_false")
    assert browse(harness, "target", selector="kind = 'x' AND amqp.annotation.x-first-death-reason = 'rejected'") == [
        "dies"
    ]


def test_a_selector_beside_conditions(harness: Harness, filled: Queue) -> None:
    publish(harness, "source", "12", "13", headers={"n": 1})
    where = [{"field": "body", "match": "regex", "value": "[02468]$"}]
    assert browse(harness, "source", where=where, selector="n IS NULL") == ["0", "2", "4", "6", "8"]
    assert browse(harness, "source", where=where, selector="n = 1") == ["12"]
    result = harness.call("messages.delete", queue="source", selector="n = 1")
    assert (result["messages"], payloads(harness, "source")) == (2, [str(number) for number in range(10)])


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        ("kind = ", "invalid selector: position 7: expected"),
        ("kind = 'x' AND )", "invalid selector: position 15: expected .*, found"),
        (" OR ".join(f"kind LIKE '%_a{number}%'" for number in range(5)), "expected at most 4"),
        ("n = 1" + " " * 4096, "expected at most 4096"),
    ],
)
def test_invalid_selectors(harness: Harness, mixed: None, selector: str, words: str) -> None:
    with pytest.raises(PreconditionFailed, match=words):
        browse(harness, "mixed", selector=selector)
    with pytest.raises(PreconditionFailed, match=words):
        browse(harness, "mixed", selector=selector, state="unacked")


def test_ids_exclude_a_selector(harness: Harness, filled: Queue) -> None:
    with pytest.raises(PreconditionFailed, match="both ids and conditions"):
        harness.call("messages.delete", queue="source", ids=[1], selector="n = 1")


def test_messages_that_match_are_counted(harness: Harness, filled: Queue) -> None:
    where = [{"field": "body", "match": "regex", "value": "[2468]"}]
    counted = harness.call("messages.count", queue="source", where=where)
    assert counted == {
        "queue_id": filled.id, "messages": 4, "bytes": 4, "examined": 10, "skipped": 0, "cursor": None,
    }  # fmt: skip
    first = harness.call("messages.count", queue="source", where=where, examine=5)
    rest = harness.call("messages.count", queue="source", where=where, cursor=first["cursor"])
    assert [(page["messages"], page["examined"]) for page in (first, rest)] == [(2, 5), (2, 5)]
    assert harness.call("messages.count", queue="source", selector="n = 1")["messages"] == 0


# Move and copy


def test_selected_messages_move_to_a_queue(harness: Harness, filled: Queue) -> None:
    declare(harness, "target")
    chosen = ids(harness, "source")
    result = harness.call("messages.move", queue="source", ids=[chosen[7], chosen[2], chosen[5]], to_queue="target")
    assert (result["messages"], result["missing"]) == (3, 0)
    assert payloads(harness, "target") == ["2", "5", "7"]
    assert payloads(harness, "source") == ["0", "1", "3", "4", "6", "8", "9"]
    (first,) = harness.call("messages.browse", queue="target", count=1)["messages"]
    assert (first["exchange"], first["routing_key"], first["redelivered"]) == ("", "target", False)


def test_all_messages_that_match_move(harness: Harness, filled: Queue) -> None:
    declare(harness, "target")
    where = [{"field": "body", "match": "regex", "value": "[13579]"}]
    result = harness.call("messages.move", queue="source", where=where, to_queue="target")
    assert (result["messages"], result["examined"], result["cursor"]) == (5, 10, None)
    assert payloads(harness, "target") == ["1", "3", "5", "7", "9"]
    assert payloads(harness, "source") == ["0", "2", "4", "6", "8"]


def test_messages_that_move_to_the_end_of_their_queue_move_once(harness: Harness, filled: Queue) -> None:
    result = harness.call("messages.move", queue="source", to_queue="source")
    assert result["messages"] == 10
    assert payloads(harness, "source") == [str(number) for number in range(10)]


def test_a_move_in_parts(harness: Harness, filled: Queue) -> None:
    declare(harness, "target")
    first = harness.call("messages.move", queue="source", to_queue="target", examine=4)
    rest = harness.call("messages.move", queue="source", to_queue="target", cursor=first["cursor"])
    assert (first["messages"], rest["messages"], rest["cursor"]) == (4, 6, None)
    assert payloads(harness, "target") == [str(number) for number in range(10)]


def test_copies_leave_the_messages(harness: Harness, filled: Queue) -> None:
    declare(harness, "target")
    assert harness.call("messages.copy", queue="source", to_queue="target")["messages"] == 10
    assert payloads(harness, "target") == payloads(harness, "source")


def test_an_exchange_routes_moved_messages(harness: Harness, filled: Queue) -> None:
    for name in ("one", "two"):
        declare(harness, name)
        harness.call("bindings.add", source="amq.fanout", destination=name)
    first = ids(harness, "source")[0]
    assert harness.call("messages.move", queue="source", ids=[first], to_exchange="amq.fanout")["messages"] == 1
    assert (payloads(harness, "one"), payloads(harness, "two")) == (["0"], ["0"])


def test_headers_route_moved_messages(harness: Harness, mixed: None) -> None:
    declare(harness, "texts")
    harness.call("bindings.add", source="amq.headers", destination="texts", arguments={"x-match": "all", "kind": "text"})
    result = harness.call("messages.move", queue="mixed", to_exchange="amq.headers")
    assert (result["messages"], result["unroutable"]) == (1, 2)
    assert len(payloads(harness, "mixed")) == 2


def test_messages_that_a_full_queue_refuses_stay(harness: Harness, filled: Queue) -> None:
    declare(harness, "target", x_max_length=3, x_overflow="reject-publish")
    result = harness.call("messages.move", queue="source", to_queue="target")
    assert (result["messages"], result["refused"]) == (3, 7)
    assert payloads(harness, "target") == ["0", "1", "2"]
    assert len(payloads(harness, "source")) == 7


def test_a_missing_message_is_counted(harness: Harness, filled: Queue) -> None:
    declare(harness, "target")
    result = harness.call("messages.move", queue="source", ids=[4711], to_queue="target")
    assert (result["messages"], result["missing"]) == (0, 1)


@pytest.mark.parametrize(
    "target", [{}, {"to_queue": "source", "to_exchange": ""}, {"to_queue": "source", "to_origin": True}]
)
def test_exactly_one_target_is_expected(harness: Harness, filled: Queue, target: dict[str, Any]) -> None:
    with pytest.raises(PreconditionFailed, match="expected one of to_queue, to_exchange, to_origin and to_origin_exchange"):
        harness.call("messages.move", queue="source", **target)


@pytest.mark.parametrize("target", [{"to_queue": "nowhere"}, {"to_exchange": "nowhere"}])
def test_a_missing_target_moves_nothing(harness: Harness, filled: Queue, target: dict[str, Any]) -> None:
    with pytest.raises(BrokerError, match="nowhere"):
        harness.call("messages.move", queue="source", **target)
    assert len(payloads(harness, "source")) == 10


def test_the_ttl_of_the_old_queue_does_not_follow(harness: Harness) -> None:
    declare(harness, "source", x_message_ttl=60_000)
    target = declare(harness, "target")
    publish(harness, "source", "one")
    harness.call("messages.move", queue="source", to_queue="target")
    entry = target.get(False)
    assert entry is not None
    assert entry.overlay is not None
    assert entry.overlay.expires_at < 0


# Delete


def test_selected_messages_are_deleted(harness: Harness, filled: Queue) -> None:
    chosen = ids(harness, "source")
    assert harness.call("messages.delete", queue="source", ids=chosen[1:9])["messages"] == 8
    assert payloads(harness, "source") == ["0", "9"]
    assert harness.call("queues.show", name="source")["ready"] == 2


def test_deleted_messages_are_not_dead_lettered(harness: Harness) -> None:
    declare(harness, "dead")
    declare(harness, "source", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    publish(harness, "source", "one", "two")
    where = [{"field": "body", "value": "one"}]
    assert harness.call("messages.delete", queue="source", where=where)["messages"] == 1
    assert (payloads(harness, "source"), payloads(harness, "dead")) == (["two"], [])


# Dead letters


@pytest.fixture
def dead(harness: Harness) -> int:
    """Return the id of a dead letter in the queue 'dead', which was rejected in 'work'."""
    declare(harness, "dead")
    declare(harness, "work", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    publish(harness, "work", '{"amount": "x"}', headers={"attempt": 1}, content_type="application/json")
    harness.call("messages.get", queue="work", mode="reject_requeue_false")
    (number,) = ids(harness, "dead")
    return number


def test_dead_letters_return_to_their_origin(harness: Harness, dead: int) -> None:
    assert harness.call("messages.move", queue="dead", to_origin=True)["messages"] == 1
    (item,) = harness.call("messages.browse", queue="work")["messages"]
    assert item["properties"]["headers"]["x-death"][0]["queue"] == "work"
    assert payloads(harness, "dead") == []


def test_messages_without_an_origin_stay(harness: Harness, filled: Queue) -> None:
    result = harness.call("messages.move", queue="source", to_origin=True)
    assert (result["messages"], result["unroutable"]) == (0, 10)


def test_a_changed_copy_replaces_a_dead_letter(harness: Harness, dead: int) -> None:
    properties = {"content_type": "application/json", "headers": {"attempt": 2}, "delivery_mode": 2}
    result = harness.call("messages.resend", queue="dead", id=dead, payload='{"amount": 5}', properties=properties)
    assert result["messages"] == 1
    (item,) = harness.call("messages.browse", queue="work")["messages"]
    assert (item["payload"], item["properties"]) == ('{"amount": 5}', properties)
    assert payloads(harness, "dead") == []


def test_a_dead_letter_is_resent_as_it_is_to_an_exchange(harness: Harness, dead: int) -> None:
    declare(harness, "other")
    harness.call("messages.resend", queue="dead", id=dead, exchange="", routing_key="other")
    (item,) = harness.call("messages.browse", queue="other")["messages"]
    assert (item["payload"], item["properties"]["headers"]["attempt"]) == ('{"amount": "x"}', 1)


def test_a_dead_letter_stays_if_no_queue_gets_its_copy(harness: Harness, dead: int) -> None:
    result = harness.call("messages.resend", queue="dead", id=dead, exchange="", routing_key="nowhere")
    assert (result["messages"], result["unroutable"]) == (0, 1)
    assert len(payloads(harness, "dead")) == 1


# Other queue types


def test_streams_are_browsed_by_offset(harness: Harness) -> None:
    declare(harness, "stream", x_queue_type="stream")
    publish(harness, "stream", *map(str, range(5)))
    found = harness.call("messages.browse", queue="stream", offset=2, count=2)
    assert [(item["id"], item["payload"]) for item in found["messages"]] == [(2, "2"), (3, "3")]
    assert browse(harness, "stream", cursor=found["cursor"]) == ["4"]
    assert browse(harness, "stream", where=[{"field": "body", "value": "3"}]) == ["3"]


def test_messages_of_a_stream_are_copied_and_stay(harness: Harness) -> None:
    declare(harness, "stream", x_queue_type="stream")
    declare(harness, "target")
    publish(harness, "stream", *map(str, range(5)))
    assert harness.call("messages.copy", queue="stream", ids=[1, 3], to_queue="target")["messages"] == 2
    assert payloads(harness, "target") == ["1", "3"]
    for call, arguments in (("move", {"to_queue": "target"}), ("delete", {}), ("resend", {"id": 1})):
        with pytest.raises(NotImplementedByBroker, match="is a stream"):
            harness.call(f"messages.{call}", queue="stream", **arguments)


# Export and import


def test_large_tables_are_returned_in_small_pages(harness: Harness) -> None:
    declare(harness, "source")
    publish(harness, "source", *map(str, range(50)), headers={"large": "x" * 100_000})
    pages = [harness.call("messages.export", queue="source")]
    while pages[-1]["cursor"]:
        pages.append(harness.call("messages.export", queue="source", cursor=pages[-1]["cursor"]))
    assert max(len(page["messages"]) for page in pages) < 25
    found = [message for page in pages for message in page["messages"]]
    assert [message["payload"] for message in found] == [str(number) for number in range(50)]
    assert found[0]["properties"] == {"headers": {"large": "x" * 100_000}, "delivery_mode": 2}


def test_an_export_without_types_has_the_properties_of_a_browse(harness: Harness) -> None:
    declare(harness, "source")
    publish(harness, "source", "x", headers={"big": 1 << 40, "list": [1]}, timestamp=1)
    (typed,) = harness.call("messages.export", queue="source")["messages"]
    (plain,) = harness.call("messages.export", queue="source", typed=False)["messages"]
    assert plain["properties"] == harness.call("messages.browse", queue="source")["messages"][0]["properties"]
    assert typed["payload"] == plain["payload"] == "x"


def test_payloads_over_the_limit_are_left_out(harness: Harness) -> None:
    declare(harness, "source")
    publish(harness, "source", "12345")
    (message,) = harness.call("messages.export", queue="source", truncate=4)["messages"]
    assert (message["payload"], message["payload_bytes"], message["payload_encoding"]) == ("", 5, "base64")
    with pytest.raises(PreconditionFailed, match="101 ids; expected at most 100"):
        harness.call("messages.export", queue="source", ids=list(range(101)))
    with pytest.raises(PreconditionFailed, match="both ids and conditions"):
        harness.call("messages.export", queue="source", ids=[1], selector="a = 1")


def test_an_import_in_an_alarm_publishes_nothing_more(harness: Harness) -> None:
    declare(harness, "target")
    harness.admin.managed.alarm = lambda: "memory"
    result = harness.call("messages.import", messages=[{"payload": "x"}] * 3, queue="target")
    assert (result["processed"], result["imported"]) == (0, 0)
    assert result["stopped"] == "publishers are blocked: memory alarm"
    assert payloads(harness, "target") == []


def test_invalid_imports_are_refused_as_a_whole(harness: Harness) -> None:
    with pytest.raises(PreconditionFailed, match="1001 messages; expected at most 1000"):
        harness.call("messages.import", messages=[{}] * 1001)
    with pytest.raises(PreconditionFailed, match="a queue and an exchange or routing_key"):
        harness.call("messages.import", messages=[], queue="q", exchange="e")


def test_properties_larger_than_a_frame_are_refused(harness: Harness) -> None:
    declare(harness, "target")
    headers = {str(number): "x" * 20_000 for number in range(8)}
    result = harness.call("messages.import", messages=[{"properties": {"headers": headers}}, {}], queue="target")
    assert result["imported"] == 1
    assert "expected at most 131072" in result["refused"][0]["reason"]


# Exchanges that delay or drop messages


@pytest.fixture
def later(harness: Harness) -> ClassicQueue:
    """A queue behind the delayed exchange `later`."""
    arguments: dict[str, Any] = {"x-delayed-type": "fanout", "x-deduplication-window": 3_600_000}
    harness.call("exchanges.add", name="later", type="x-delayed-message", arguments=arguments)
    queue = declare(harness, "target", x_message_ttl=3_600_000)
    harness.call("bindings.add", source="later", destination="target")
    assert isinstance(queue, ClassicQueue)
    return queue


@pytest.mark.parametrize("operation", ["messages.move", "messages.copy"])
def test_a_delayed_exchange_delays_messages(harness: Harness, later: ClassicQueue, operation: str) -> None:
    declare(harness, "source")
    headers = {"x-delay": 3_600_000, "x-deduplication-header": "same"}
    publish(harness, "source", "delayed", "delayed again", headers=headers)
    publish(harness, "source", "at once")
    now = harness.broker.timers.now()
    assert harness.call(operation, queue="source", to_exchange="later")["messages"] == 3
    assert payloads(harness, "target") == ["at once"] and later.delayed_count == 2
    found = harness.call("messages.browse", queue="target", state="delayed")["messages"]
    assert [item["payload"] for item in found] == ["delayed", "delayed again"]
    assert [item["properties"]["headers"]["x-delay"] for item in found] == [-3_600_000] * 2
    assert later.delays is not None
    overlays = [entry.overlay for entry in later.delays.recent.values()]
    assert len(overlays) == 2
    for overlay in overlays:
        assert overlay is not None
        assert overlay.visible_at >= now + 3_600_000
        assert overlay.expires_at >= now + 7_200_000
    assert len(payloads(harness, "source")) == (3 if operation == "messages.copy" else 0)


def test_a_message_is_delayed_once(harness: Harness, later: ClassicQueue) -> None:
    """A consumer of a delayed message sees its header negated, which an operator moves with the message."""
    declare(harness, "source")
    publish(harness, "source", "again", headers={"x-delay": -5})
    assert harness.call("messages.move", queue="source", to_exchange="later")["messages"] == 1
    assert payloads(harness, "target") == ["again"]


def test_an_edited_message_is_delayed(harness: Harness, later: ClassicQueue) -> None:
    declare(harness, "source")
    publish(harness, "source", "plain")
    [number] = ids(harness, "source")
    properties = {"headers": {"x-delay": 3_600_000}}
    answer = harness.call("messages.resend", queue="source", id=number, exchange="later", properties=properties)
    assert answer["messages"] == 1
    assert later.delayed_count == 1 and payloads(harness, "source") == payloads(harness, "target") == []
