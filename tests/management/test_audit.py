"""The audit log: what is recorded, what is hidden, how it is bounded and searched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.errors import BrokerError, PreconditionFailed, ResourceError
from leveret.management.audit.log import AuditLog
from leveret.management.audit.records import AuditRecord, bounded, redacted
from leveret.management.audit.store import AuditStore, Filter
from leveret.management.audit.subjects import MAX_BINDINGS, MAX_BINDINGS_SIZE
from leveret.management.operations.operation import Operator
from tests.management.harness import Harness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness()
    harness.managed.audit.open(tmp_path / "audit.sqlite", 1 << 20, 0)
    yield harness
    harness.managed.audit.close()
    harness.close()


def search(harness: Harness, **arguments: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = harness.call("audit.search", **arguments)["items"]
    return found


def test_a_change_has_the_definitions_before_and_after_it(harness: Harness) -> None:
    harness.call("queues.add", name="q", arguments={"x-max-length": 5})
    harness.call("queues.pause", name="q")
    harness.call("queues.delete", name="q")
    deleted, paused, added = search(harness)
    definition = {
        "type": "classic",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "arguments": {"x-max-length": 5},
        "paused": False,
    }
    no_bindings = {"bindings": [], "more_bindings": False}
    assert (added["action"], added["kind"], added["vhost"], added["name"]) == ("queues.add", "queue", "/", "q")
    assert (added["before"], added["after"]) == (None, definition)
    assert (paused["before"], paused["after"]) == (definition, definition | {"paused": True})
    assert (deleted["before"], deleted["after"]) == (definition | {"paused": True} | no_bindings, None)
    assert added["source"] == "control socket"
    assert added["time"] <= deleted["time"]


def test_a_deleted_object_is_recorded_with_its_bindings(harness: Harness) -> None:
    harness.call("queues.add", name="q")
    for name in ("from", "to"):
        harness.call("exchanges.add", name=name, type="direct")
    harness.call("bindings.add", source="from", destination="q", routing_key="k", arguments={"a": 1})
    harness.call("bindings.add", source="from", destination="to", kind="exchange", routing_key="e")
    harness.call("bindings.add", source="to", destination="q")
    harness.call("exchanges.delete", name="to")
    harness.call("queues.delete", name="q")
    queue, exchange = search(harness, action="delete")
    binding = {"source": "from", "destination": "q", "destination_type": "queue", "routing_key": "k", "arguments": {"a": 1}}
    assert queue["before"]["bindings"] == [binding]
    assert [(item["source"], item["destination"], item["routing_key"]) for item in exchange["before"]["bindings"]] == [
        ("to", "q", ""),
        ("from", "to", "e"),
    ]
    assert exchange["before"]["type"] == "direct"


def test_the_record_of_a_deleted_queue_has_a_limited_number_of_bindings(harness: Harness) -> None:
    harness.call("queues.add", name="q")
    for number in range(MAX_BINDINGS + 1):
        harness.call("bindings.add", source="amq.direct", destination="q", routing_key=str(number))
    harness.call("queues.delete", name="q")
    before = search(harness)[0]["before"]
    assert (len(before["bindings"]), before["more_bindings"], before["type"]) == (MAX_BINDINGS, True, "classic")
    harness.call("queues.add", name="large")
    for number in range(3):
        arguments = {"x": str(number) * (MAX_BINDINGS_SIZE // 2 - 1000)}
        harness.call("bindings.add", source="amq.headers", destination="large", arguments=arguments)
    harness.call("queues.delete", name="large")
    before = search(harness)[0]["before"]
    assert (len(before["bindings"]), before["more_bindings"]) == (2, True)


def test_what_changes_nothing_is_not_recorded(harness: Harness) -> None:
    harness.call("queues.add", name="q")
    harness.call("queues.add", name="q")
    harness.call("queues.show", name="q")
    with pytest.raises(BrokerError):
        harness.call("queues.delete", name="missing")
    assert len(search(harness)) == 1


CHANGES: list[tuple[str, dict[str, Any], str, str]] = [
    ("exchanges.add", {"name": "x"}, "exchange", "x"),
    ("bindings.add", {"source": "amq.topic", "destination": "q", "routing_key": "a.#"}, "binding", "amq.topic -> q"),
    ("queues.purge", {"name": "q"}, "queue", "q"),
    ("users.add", {"name": "u", "password": "hunter2"}, "user", "u"),
    ("permissions.set", {"user": "u", "configure": "", "write": "", "read": ".*"}, "permission", "u"),
    ("topic_permissions.set", {"user": "u", "exchange": "amq.topic", "write": "a", "read": "b"}, "topic_permission", "u"),
    ("user_limits.set", {"user": "u", "name": "max-channels", "value": 5}, "user_limit", "u"),
    ("vhosts.add", {"name": "v"}, "vhost", "v"),
    ("vhosts.change", {"name": "v", "description": "d"}, "vhost", "v"),
    ("vhosts.trace", {"name": "v", "on": True}, "vhost", "v"),
    ("vhost_limits.set", {"vhost": "v", "name": "max-queues", "value": 5}, "vhost_limit", "max-queues"),
    ("policies.set", {"name": "p", "pattern": "^q", "definition": {"max-length": 9}}, "policy", "p"),
    ("operator_policies.set", {"name": "p", "pattern": "^q", "definition": {"max-length": 9}}, "operator_policy", "p"),
    ("global_parameters.set", {"name": "g", "value": {"a": 1}}, "global_parameter", "g"),
    ("messages.delete", {"queue": "q"}, "messages", "q"),
]


@pytest.mark.parametrize(("call", "arguments", "kind", "name"), CHANGES, ids=[change[0] for change in CHANGES])
def test_changes_of_each_kind(harness: Harness, call: str, arguments: dict[str, Any], kind: str, name: str) -> None:
    harness.call("queues.add", name="q")
    harness.call("messages.publish", routing_key="q", payload="x")
    for user in {"u"} & {arguments.get("user")}:
        harness.call("users.add", name=user)
    for vhost in {"v"} & {
        arguments.get("vhost"),
        arguments.get("name") if call in ("vhosts.change", "vhosts.trace") else None,
    }:
        harness.call("vhosts.add", name=vhost)
    harness.call(call, **arguments)
    record = search(harness)[0]
    assert (record["action"], record["kind"], record["name"]) == (call, kind, name)
    assert record["before"] != record["after"]


def test_passwords_and_hashes_are_never_recorded(harness: Harness, tmp_path: Path) -> None:
    harness.call("users.add", name="u", password="hunter2")
    harness.call("users.change", name="u", password="hunter3")
    hash = harness.call("users.hash_password", password="hunter4")["password_hash"]
    harness.call("users.set", name="u", password_hash=hash, tags="")
    harness.call("global_parameters.set", name="up", value={"uri": "amqp://me:hunter5@host", "password": "hunter6"})
    records = search(harness)
    assert [record["action"] for record in records] == ["global_parameters.set", "users.set", "users.change", "users.add"]
    assert records[2]["after"]["new_password"] is True
    assert records[0]["after"] == {"uri": "amqp://(hidden)@host", "password": "(hidden)"}
    harness.managed.audit.close()
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"hunter" not in content
    assert hash.encode() not in content


def test_the_user_and_source_of_a_request(harness: Harness) -> None:
    operator = Operator("alice", "HTTP 192.0.2.1:5000")
    harness.loop.run_until_complete(harness.admin.call("queues.add", {"name": "q"}, operator))
    (record,) = search(harness)
    assert (record["user"], record["source"]) == ("alice", "HTTP 192.0.2.1:5000")


def test_an_import_is_recorded_object_by_object(harness: Harness) -> None:
    changes = [{"call": "queues.add", "arguments": {"name": f"q{number}"}} for number in range(3)]
    harness.call("definitions.apply", changes=changes)
    harness.call("definitions.check", changes=changes)
    assert [record["name"] for record in search(harness)] == ["q2", "q1", "q0"]


def test_changes_by_pattern_are_recorded_object_by_object(harness: Harness) -> None:
    for name in ("a1", "a2"):
        harness.call("queues.add", name=name)
    harness.call("queues.change_matching", action="pause", pattern="^a")
    harness.call("queues.change_matching", action="pause", pattern="^a", dry_run=False)
    assert [record["name"] for record in search(harness, action="pause")] == ["a2", "a1"]


def test_deletions_by_pattern_are_recorded_object_by_object(harness: Harness) -> None:
    for name in ("a1", "a2"):
        harness.call("queues.add", name=name)
    harness.call("objects.delete", kind="queues", pattern="^a", dry_run=False)
    assert [record["name"] for record in search(harness, action="delete")] == ["a2", "a1"]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"user": "alice"}, ["a-queue"]),
        ({"action": "Exchanges"}, ["an-exchange"]),
        ({"kind": "queue"}, ["b-queue", "a-queue"]),
        ({"object": "A-QUEUE"}, ["a-queue"]),
        ({"vhost": "v"}, []),
        ({"since": "2001-01-01T00:00:00Z", "until": "2001-01-02"}, []),
        ({"since": "1"}, ["an-exchange", "b-queue", "a-queue"]),
        ({"page": 2, "page_size": 2}, ["a-queue"]),
    ],
)
def test_searches(harness: Harness, conditions: dict[str, Any], expected: list[str]) -> None:
    harness.loop.run_until_complete(harness.admin.call("queues.add", {"name": "a-queue"}, Operator("alice")))
    harness.call("queues.add", name="b-queue")
    harness.call("exchanges.add", name="an-exchange")
    assert [record["name"] for record in search(harness, **conditions)] == expected


def test_pages_are_counted(harness: Harness) -> None:
    for number in range(5):
        harness.call("queues.add", name=f"q{number}")
    found = harness.call("audit.search", page_size=2)
    assert (found["page_count"], found["total_count"], len(found["items"])) == (3, 5, 2)


@pytest.mark.parametrize("conditions", [{"since": "yesterday"}, {"page": 0}, {"page_size": 501}])
def test_invalid_searches(harness: Harness, conditions: dict[str, Any]) -> None:
    with pytest.raises(PreconditionFailed):
        search(harness, **conditions)


def test_without_a_file_there_is_no_search() -> None:
    harness = Harness()
    harness.call("queues.add", name="q")
    with pytest.raises(ResourceError, match=r"there is no audit log; the setting is management\.audit"):
        search(harness)
    harness.close()


# The file


def make_record(number: int, **changes: Any) -> AuditRecord:
    fields: dict[str, Any] = {
        "id": number,
        "time": 1000 * number,
        "user": "u",
        "source": "s",
        "action": "queues.add",
        "kind": "queue",
        "vhost": "/",
        "name": f"q{number}",
        **changes,
    }
    return AuditRecord(**fields)


def test_records_survive_a_restart(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    for number in (1, 2):
        log = AuditLog()
        log.open(tmp_path / "audit.sqlite", 1 << 20, 0)
        log.add(make_record(0, name=f"q{number}"))
        log.close()
    log.open(tmp_path / "audit.sqlite", 1 << 20, 0)
    records, total = loop.run_until_complete(log.search(Filter(), 0, 10))
    log.close()
    loop.close()
    assert ([(record.id, record.name) for record in records], total) == ([(2, "q2"), (1, "q1")], 2)


def test_the_oldest_records_are_deleted_beyond_the_size(tmp_path: Path) -> None:
    store = AuditStore(tmp_path / "audit.sqlite", 300_000, 0)
    for first in range(1, 4001, 100):
        store.add([make_record(number, after={"x": "y" * 200}) for number in range(first, first + 100)])
    records, total = store.search(Filter(), 0, 1)
    store.close()
    assert records[0].id == 4000
    assert 300 < total < 1000
    assert (tmp_path / "audit.sqlite").stat().st_size < 1_000_000


def test_old_records_are_deleted(tmp_path: Path) -> None:
    store = AuditStore(tmp_path / "audit.sqlite", 1 << 20, 3600)
    store.add([make_record(1)])
    store.add([make_record(2, time=1 << 42)])
    records, _ = store.search(Filter(), 0, 10)
    store.close()
    assert [record.id for record in records] == [2]


def test_a_file_that_is_no_database_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "audit.sqlite"
    path.write_bytes(b"not a database" * 1000)
    with caplog.at_level(logging.ERROR):
        AuditLog().open(path, 1 << 20, 0)
    assert "no audit log: cannot use" in caplog.text
    assert path.read_bytes().startswith(b"not a database")


def test_names_with_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    store = AuditStore(tmp_path / "audit.sqlite", 1 << 20, 0)
    store.add([make_record(1, name="q\udcff", before={"k\udcff": "\udcff"})])
    records, _ = store.search(Filter(), 0, 10)
    store.close()
    assert records[0].name == "q\\xff"


# Values


def test_secrets_are_hidden_at_any_depth() -> None:
    value = {"a": [{"client_secret": "x", "uri": ["amqps://u:p@h/%2F", "http://host/a@b"]}], "passwords_allowed": True}
    assert redacted(value) == {
        "a": [{"client_secret": "(hidden)", "uri": ["amqps://(hidden)@h/%2F", "http://host/a@b"]}],
        "passwords_allowed": True,
    }


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("amqp://me:p/w@h", "amqp://(hidden)@h"),
        ("amqp://me:p?w@h/v", "amqp://(hidden)@h/v"),
        ("amqp://me:p#w@h", "amqp://(hidden)@h"),
        ("amqp://me:p@w@h", "amqp://(hidden)@h"),
        ("amqp://token@h", "amqp://(hidden)@h"),
        ("amqps://h?password=pw&verify=none", "(hidden)"),
        ("from amqp://a:b@h to amqp://c:d@i", "from amqp://(hidden)@i"),
    ],
)
def test_credentials_of_uris_are_hidden(uri: str, shown: str) -> None:
    assert redacted({"uri": uri}) == {"uri": shown}


def test_values_that_are_nested_deeply_are_hidden() -> None:
    value: Any = "secret"
    for _ in range(100):
        value = [value]
    assert "secret" not in str(redacted(value)) and "(hidden)" in str(redacted(value))


def test_a_large_state_is_left_out() -> None:
    assert bounded({"x": "y" * 100_000}) == {"omitted": "100008 bytes; at most 65536 are kept"}
