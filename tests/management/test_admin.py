"""The calls of an operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from leveret.broker.errors import BrokerError, NotAllowed, NotFound, PreconditionFailed, StorageFailed
from leveret.broker.message import Message, make_address
from leveret.config import CompatConfig, Config, VhostConfig, VhostLimitsConfig
from leveret.management import admin as admin_module
from leveret.management.admin import BadCall
from leveret.management.control_socket import MAX_EXAMINED, SlicedList
from leveret.management.operations import links
from leveret.management.operations.operation import Operator
from leveret.management.operations.status import STEP
from leveret.management.operations.table import OPERATIONS
from leveret.management.operations.vhosts import stored_vhosts
from leveret.management.structs import Messages
from leveret.security.permissions import Permission
from leveret.security.users import DeclaredUser, User
from leveret.storage.memory import MemoryRow
from tests.management.harness import FakeSession, Harness


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness(Config(vhosts={"declared": VhostConfig(compat=CompatConfig(strict=True))}))
    yield harness
    harness.close()


def fill(harness: Harness, queue: str, count: int) -> None:
    target = harness.broker.vhosts["/"].queues[queue]
    for _ in range(count):
        target.push(Message(make_address("", queue), b"", b"body", 4, False))
    harness.broker.end_turn()


# Calls in general


def test_every_call_takes_its_arguments_by_name(harness: Harness) -> None:
    for name in OPERATIONS:
        with pytest.raises(BadCall, match=f"{name}: .*unknown field `bogus`"):
            harness.call(name, bogus=1)


def test_unknown_calls_are_refused_with_those_that_exist(harness: Harness) -> None:
    with pytest.raises(
        BadCall, match=r"unknown call 'queues\.lst'; expected one of audit\.search, backup\.end, .*queues\.list"
    ):
        harness.call("queues.lst")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("queues.delete", {}, "the field 'name' is missing"),
        ("queues.delete", {"name": 1}, "Expected `str`"),
        ("queues.list", {"vhost": "nowhere"}, "vhost 'nowhere' does not exist"),
        ("users.add", {"name": "a", "tags": "x"}, "array"),
    ],
)
def test_arguments_that_do_not_fit(harness: Harness, name: str, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(BrokerError, match=words):
        harness.call(name, **arguments)


def test_a_change_is_answered_when_it_is_on_disk(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "COMMIT_TIMEOUT", 0.05)
    monkeypatch.setattr(harness.log, "flush", lambda: None)
    harness.log.state, harness.log.reason = "full", "no space left"
    with pytest.raises(StorageFailed, match="the change is applied, but not on disk yet: no space left"):
        harness.call("queues.add", name="q")


# Queues


def test_queues(harness: Harness) -> None:
    added = harness.call("queues.add", name="q", arguments={"x-max-length": 3})
    assert added == harness.call("queues.show", name="q")
    assert added["arguments"] == {"x-max-length": 3}
    assert harness.call("queues.add", name="q", arguments={"x-max-length": 3}) == added
    with pytest.raises(PreconditionFailed):
        harness.call("queues.add", name="q", durable=False)
    fill(harness, "q", 5)
    listed = [item for item in harness.call("queues.list") if item["vhost"] == "/"]
    assert [(item["name"], item["ready"], item["ready_bytes"], item["durable"]) for item in listed] == [("q", 3, 12, True)]
    assert harness.call("queues.purge", name="q") == {"messages": 3}
    assert harness.call("queues.show", name="q")["ready"] == 0
    fill(harness, "q", 1)
    with pytest.raises(PreconditionFailed, match="has 1 messages"):
        harness.call("queues.delete", name="q", if_empty=True)
    assert harness.call("queues.delete", name="q", if_unused=True) == {"messages": 1}
    for call in ("queues.show", "queues.delete", "queues.purge"):
        with pytest.raises(NotFound, match="no queue 'q' in vhost '/'"):
            harness.call(call, name="q")


def test_an_exclusive_queue_can_be_deleted_and_purged(harness: Harness) -> None:
    harness.broker.vhosts["/"].declare_queue("own", object(), exclusive=True)
    assert harness.call("queues.show", name="own")["exclusive"]
    assert harness.call("queues.purge", name="own") == {"messages": 0}
    harness.call("queues.delete", name="own")
    assert "own" not in harness.broker.vhosts["/"].queues


@pytest.mark.parametrize("name", ["", "amq.mine"])
def test_names_that_queues_cannot_have(harness: Harness, name: str) -> None:
    with pytest.raises(BrokerError):
        harness.call("queues.add", name=name)


def test_names_and_arguments_of_any_bytes_can_be_listed(harness: Harness) -> None:
    vhost = harness.broker.vhosts["/"]
    vhost.declare_queue("q", None, arguments={"octets": b"\xff\xfe", "text": "\udcff", "list": [b"a", {"x": None}]})
    listed = harness.call("queues.list", vhost="/")
    msgspec.json.encode(listed)
    assert listed[0]["arguments"] == {"octets": "\\xff\\xfe", "text": "\\xff", "list": ["a", {"x": None}]}


# Exchanges and bindings


def test_exchanges_and_bindings(harness: Harness) -> None:
    predeclared = {item["name"] for item in harness.call("exchanges.list", vhost="/")}
    assert predeclared == {
        "",
        "amq.direct",
        "amq.fanout",
        "amq.topic",
        "amq.headers",
        "amq.match",
        "leveret.control",
        "amq.leveret.events",
        "amq.rabbitmq.trace",
    }
    assert harness.call("exchanges.add", name="e", type="topic")["durable"]
    harness.call("exchanges.add", name="target", type="fanout", durable=False, auto_delete=True)
    harness.call("queues.add", name="q")
    harness.call("bindings.add", source="e", destination="q", routing_key="a.#")
    harness.call("bindings.add", source="e", destination="target", kind="exchange", arguments={"x": 1})
    listed = sorted(harness.call("bindings.list"), key=lambda item: str(item["destination"]))
    assert listed == [
        {"vhost": "/", "source": "e", "destination": "q", "kind": "queue", "routing_key": "a.#", "arguments": {}},
        {
            "vhost": "/",
            "source": "e",
            "destination": "target",
            "kind": "exchange",
            "routing_key": "",
            "arguments": {"x": 1},
        },
    ]
    with pytest.raises(PreconditionFailed):
        harness.call("exchanges.delete", name="e", if_unused=True)
    with pytest.raises(NotFound, match="no binding 'b' of queue 'q' to exchange 'e'"):
        harness.call("bindings.delete", source="e", destination="q", routing_key="b")
    harness.call("bindings.delete", source="e", destination="q", routing_key="a.#")
    assert len(harness.call("bindings.list")) == 1
    harness.call("exchanges.delete", name="e")
    assert harness.call("bindings.list") == []
    with pytest.raises(NotFound):
        harness.call("exchanges.delete", name="e")


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("bindings.add", {"source": "nowhere", "destination": "q"}),
        ("bindings.add", {"source": "e", "destination": "no"}),
        ("bindings.add", {"source": "e", "destination": "q", "kind": "exchange"}),
    ],
)
def test_bindings_of_missing_objects(harness: Harness, call: str, arguments: dict[str, str]) -> None:
    harness.call("exchanges.add", name="e")
    harness.call("queues.add", name="q")
    with pytest.raises(NotFound):
        harness.call(call, **arguments)


def test_predeclared_exchanges_stay(harness: Harness) -> None:
    for name in ("", "amq.topic"):
        with pytest.raises(BrokerError):
            harness.call("exchanges.delete", name=name)


# Connections


def test_connections_and_channels(harness: Harness) -> None:
    harness.sessions = [FakeSession(1, "alice", "/"), FakeSession(2, "bob", "declared"), FakeSession(3, "alice", "/")]
    assert [item["number"] for item in harness.call("connections.list")] == [1, 2, 3]
    assert [item["number"] for item in harness.call("connections.list", vhost="declared")] == [2]
    assert harness.call("connections.list")[0]["client_properties"] == {"product": "\\xff", "table": {"a": [1, None]}}
    channels = harness.call("channels.list", vhost="declared")
    assert [(item["connection"], item["number"], item["user"]) for item in channels] == [(2, 1, "bob"), (2, 2, "bob")]
    harness.call("connections.close", number=2, reason="enough")
    assert harness.sessions[1].closed_with == "enough"
    with pytest.raises(NotFound, match="no connection 9"):
        harness.call("connections.close", number=9)
    assert harness.call("connections.close_user", user="alice") == {"connections": 2}
    assert harness.sessions[0].closed_with == "closed by the operator"


# Users


def test_users(harness: Harness) -> None:
    assert [(item["name"], item["source"]) for item in harness.call("users.list")] == [("guest", "default")]
    harness.call("users.add", name="alice", password="secret", tags=["administrator"], max_connections=3)
    assert harness.call("users.list") == [
        {
            "name": "alice",
            "tags": ["administrator"],
            "source": "metadata",
            "vhosts": [],
            "max_connections": 3,
            "max_channels": 0,
            "scram": False,
            "loopback_only": False,
            "has_password": True,
            "password_hash": "",
            "hashing_algorithm": "",
            "scram_keys": None,
        }
    ]
    assert harness.users.verify("alice", b"secret")
    assert b"secret" not in harness.log.metadata["user", "alice"]
    harness.call("users.change", name="alice", max_channels=7)
    harness.call("users.change", name="alice", password="new")
    assert harness.users.verify("alice", b"new")
    changed = harness.call("users.list")[0]
    assert (changed["tags"], changed["max_connections"], changed["max_channels"]) == (["administrator"], 3, 7)
    harness.call("users.change", name="alice", tags=[])
    assert harness.call("users.list")[0]["tags"] == []
    harness.sessions = [FakeSession(1, "alice", "/"), FakeSession(2, "bob", "/")]
    assert harness.call("users.delete", name="alice") == {"connections": 1}
    assert [session.closed_with for session in harness.sessions] == ["user 'alice' was deleted", None]
    assert ("user", "alice") not in harness.log.metadata


def test_a_user_without_a_password(harness: Harness) -> None:
    harness.call("users.add", name="machine")
    assert not harness.users.verify("machine", b"")
    with pytest.raises(PreconditionFailed, match="empty"):
        harness.call("users.change", name="machine", password="")


def test_declared_users_are_changed_in_the_configuration(harness: Harness) -> None:
    harness.users.declare({"alice": DeclaredUser(user=User(name="alice"), password=b"x")})
    calls: list[tuple[str, dict[str, Any]]] = [
        ("users.add", {}),
        ("users.change", {"tags": ["management"]}),
        ("users.delete", {}),
    ]
    for call, arguments in calls:
        with pytest.raises(NotAllowed, match=r"declared in leveret\.toml"):
            harness.call(call, name="alice", **arguments)
    with pytest.raises(NotAllowed):
        harness.call("permissions.set", user="alice", configure="", write="", read="")
    with pytest.raises(NotAllowed):
        harness.call("permissions.delete", user="alice")


# Permissions


def test_permissions(harness: Harness) -> None:
    harness.call("users.add", name="alice")
    harness.call("permissions.set", user="alice", configure="^a", write=".*", read="")
    assert harness.users.get("alice") == User(name="alice", permissions={"/": Permission("^a", ".*", "")})
    assert harness.call("permissions.list") == [
        {"user": "alice", "vhost": "/", "configure": "^a", "write": ".*", "read": "", "source": "metadata"}
    ]
    assert harness.call("permissions.list", vhost="declared") == []
    assert harness.call("permissions.list", user="bob") == []
    with pytest.raises(NotFound, match=r"vhost .* does not exist"):
        harness.call("permissions.set", user="alice", vhost="nowhere", configure="", write="", read="")
    with pytest.raises(PreconditionFailed, match="is not a valid RE2 regular expression"):
        harness.call("permissions.set", user="alice", configure="(", write="", read="")
    harness.call("permissions.delete", user="alice")
    assert harness.call("permissions.list") == []
    with pytest.raises(NotFound):
        harness.call("permissions.delete", user="alice")


# Vhosts


def test_vhosts(harness: Harness) -> None:
    sources = {item["name"]: (item["source"], item["strict"]) for item in harness.call("vhosts.list")}
    assert sources == {"/": ("default", False), "declared": ("config", True)}
    harness.call("vhosts.add", name="new", max_queues=1)
    harness.call("queues.add", name="first", vhost="new")
    with pytest.raises(PreconditionFailed, match="max_queues"):
        harness.call("queues.add", name="second", vhost="new")
    harness.call("vhosts.change", name="new", max_queues=2, consumer_timeout=1.5)
    harness.call("queues.add", name="second", vhost="new")
    assert stored_vhosts(harness.log.metadata) == {
        "new": VhostConfig(limits=VhostLimitsConfig(max_queues=2), consumer_timeout=1.5)
    }
    listed = next(item for item in harness.call("vhosts.list") if item["name"] == "new")
    assert (listed["source"], listed["queues"], listed["max_queues"]) == ("metadata", 2, 2)
    harness.call("users.add", name="alice")
    harness.call("permissions.set", user="alice", vhost="new", configure="", write="", read="")
    harness.call("vhosts.delete", name="new")
    assert stored_vhosts(harness.log.metadata) == {}
    assert harness.call("permissions.list") == []
    with pytest.raises(NotFound):
        harness.call("vhosts.delete", name="new")
    with pytest.raises(NotFound):
        harness.call("vhosts.change", name="new", max_queues=3)


@pytest.mark.parametrize(
    ("call", "arguments", "error", "words"),
    [
        ("vhosts.add", {"name": "declared"}, NotAllowed, r"declared in leveret\.toml"),
        ("vhosts.change", {"name": "declared", "strict": False}, NotAllowed, r"declared in leveret\.toml"),
        ("vhosts.delete", {"name": "declared"}, NotAllowed, r"declared in leveret\.toml"),
        ("vhosts.delete", {"name": "/"}, NotAllowed, "always exists"),
        ("vhosts.add", {"name": "/"}, PreconditionFailed, "already exists"),
        ("vhosts.add", {"name": ""}, PreconditionFailed, "1 to 255 bytes"),
        ("vhosts.add", {"name": "ä" * 128}, PreconditionFailed, "1 to 255 bytes"),
        ("vhosts.add", {"name": "x", "max_queues": -2}, PreconditionFailed, "0"),
        (
            "vhosts.add",
            {"name": "x", "default_queue_type": "y"},
            PreconditionFailed,
            "unknown queue type 'y'; expected one",
        ),
        ("users.add", {"name": "x", "max_channels": -2}, PreconditionFailed, "0"),
    ],
)
def test_vhosts_that_cannot_be_changed(
    harness: Harness, call: str, arguments: dict[str, object], error: type[BrokerError], words: str
) -> None:
    with pytest.raises(error, match=words):
        harness.call(call, **arguments)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("vhosts.delete", {"name": "v"}),
        ("queues.delete", {"vhost": "v", "name": "q"}),
        ("queues.purge", {"vhost": "v", "name": "q"}),
        ("exchanges.delete", {"vhost": "v", "name": "x"}),
    ],
)
def test_a_deletion_is_answered_when_it_is_complete_and_on_disk(
    harness: Harness, call: str, arguments: dict[str, object]
) -> None:
    harness.broker.jobs.call_soon = harness.loop.call_soon
    harness.call("vhosts.add", name="v")
    vhost = harness.broker.vhosts["v"]
    queue = vhost.declare_queue("q", None, durable=True)
    vhost.declare_exchange("x", "direct", durable=True)
    for number in range(10_000):
        queue.push(Message(make_address("", "q"), b"", b"m", 1, True))
        vhost.bind(queue, "x", str(number), {})
    harness.broker.end_turn()
    harness.call(call, **arguments)
    assert not harness.broker.jobs.removals.pending and not harness.log.has_pending()
    entries = sum(
        entry is not None for row in harness.log.rows.values() if isinstance(row, MemoryRow) for entry in row.entries
    )
    bindings = sum(kind == "binding" for kind, _ in harness.log.metadata)
    assert entries == (10_000 if call == "exchanges.delete" else 0)
    assert bindings == (10_000 if call == "queues.purge" else 0)


def test_the_default_vhost_can_be_given_settings(harness: Harness) -> None:
    harness.call("vhosts.change", name="/", max_connections=5)
    assert harness.broker.vhosts["/"].settings.max_connections == 5
    assert harness.call("vhosts.list")[0]["source"] == "metadata"


# Status


def test_status(harness: Harness) -> None:
    harness.call("queues.add", name="q")
    fill(harness, "q", 3)
    status = harness.call("status")
    assert (status["version"], status["vhosts"], status["ready"], status["unacked"]) == ("1", 2, 3, 0)
    assert status["log"]["state"] == "ok"


def test_status_of_many_queues_takes_several_turns(harness: Harness) -> None:
    vhost = harness.broker.vhosts["/"]
    before = harness.call("status")["queues"]
    for number in range(3 * STEP):
        vhost.declare_queue(f"q{number}", None)
    call = harness.admin.call("status", {}, Operator())
    call.send(None)
    vhost.delete_queue("q0", None)
    call.send(None)
    call.send(None)
    with pytest.raises(StopIteration) as done:
        call.send(None)
    assert done.value.value.queues == before + 3 * STEP


# Links


def test_looking_for_a_link_among_many_takes_several_turns(harness: Harness) -> None:
    for number in range(2 * links.STEP):
        harness.links.add(f"l{number}")
    call = harness.admin.call("links.release", {"name": "l0"}, Operator())
    for _ in range(2):
        call.send(None)
        assert harness.links.done == []
    assert harness.loop.run_until_complete(call) == Messages(messages=3)


def test_a_part_of_a_list_looks_at_so_many_objects(harness: Harness) -> None:
    for number in range(2 * MAX_EXAMINED):
        harness.links.add(f"l{number}")
    harness.links.add("far", vhost="declared")
    harness.sessions.extend(FakeSession(number, "guest", "/") for number in range(MAX_EXAMINED))
    for number in range(MAX_EXAMINED):
        harness.broker.vhosts["/"].declare_queue(f"q{number}", None)
    for name, arguments, found in (
        ("links.list", {"vhost": "declared"}, 1),
        ("consumers.list", {"vhost": "/"}, 0),
        ("connections.list", {"vhost": "declared"}, 0),
        ("channels.list", {"vhost": "declared"}, 0),
    ):
        items = harness.loop.run_until_complete(harness.admin.call(name, arguments, Operator()))
        assert isinstance(items, Iterator)
        listed = SlicedList(items)
        assert not listed.take()
        assert listed.part() == []
        while not listed.take():
            pass
        assert len(listed.part()) == found


def test_links(harness: Harness) -> None:
    harness.links.add("one")
    harness.links.add("two", container="a")
    harness.links.add("two", container="b")
    harness.links.add("far", vhost="declared")
    assert [item["name"] for item in harness.call("links.list")] == ["one", "two", "two", "far"]
    assert [item["name"] for item in harness.call("links.list", vhost="declared")] == ["far"]
    assert harness.call("links.release", name="one") == {"messages": 3}
    harness.call("links.delete", name="two", container="b")
    assert harness.links.done == [
        ("release", "/", "guest", "c", "one", "sender"),
        ("delete", "/", "guest", "b", "two", "sender"),
    ]
    with pytest.raises(PreconditionFailed, match="2 links have the name 'two': container 'a' of user 'guest'"):
        harness.call("links.delete", name="two")
    with pytest.raises(NotFound, match="link 'far' does not exist in vhost '/'"):
        harness.call("links.delete", name="far")
    with pytest.raises(NotFound, match="vhost 'nowhere' does not exist"):
        harness.call("links.delete", name="far", vhost="nowhere")
    assert len(harness.links.done) == 2
