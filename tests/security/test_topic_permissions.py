"""Topic permissions: expressions, storage, and enforcement over each protocol against a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from leveret.broker.errors import NotAllowed, NotFound, PreconditionFailed
from leveret.management.control_client import CallFailed, call
from leveret.security.permissions import READ, WRITE, TopicPermission, allows_topic
from leveret.security.users import DeclaredUser, User, UserStore
from leveret.wire.amqp10.messaging import Source, Target
from leveret.wire.amqp10.transport import Attach
from tests.security.metadata import Metadata
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.peers.amqp10 import Peer

VARIABLES = {"username": "alice", "vhost": "/", "client_id": "c.1"}


@pytest.mark.parametrize(
    ("pattern", "key", "allowed"),
    [
        (".*", "anything", True),
        ("", "", True),
        ("", "a", False),
        ("^a", "a.b", True),
        ("^a", "b.a", False),
        ("b", "a.b.c", True),
        ("^{username}\\.", "alice.x", True),
        ("^{username}\\.", "bob.x", False),
        ("^{vhost}$", "/", True),
        # Values match literally.
        ("^{client_id}$", "c.1", True),
        ("^{client_id}$", "cx1", False),
        # An unknown variable is text.
        ("^{other}$", "{other}", True),
        ("^{other}$", "other", False),
        ("(", "(", False),
    ],
)
def test_expressions(pattern: str, key: str, allowed: bool) -> None:
    assert allows_topic(TopicPermission(pattern, "^$"), WRITE, key, VARIABLES) is allowed
    assert allows_topic(TopicPermission("^$", pattern), READ, key, VARIABLES) is allowed


def test_an_expression_that_grows_beyond_the_limit_matches_nothing() -> None:
    assert not allows_topic(TopicPermission(".*{username}"), WRITE, "a" * 2000, {"username": "a" * 2000})


def test_a_store_keeps_topic_permissions() -> None:
    metadata = Metadata()
    store = UserStore(metadata.put)
    store.add(User(name="alice"))
    store.set_topic_permission("alice", "/", "x", TopicPermission("^w", "^r"))
    store.set_topic_permission("alice", "/", "y", TopicPermission("", ""))
    store.set_topic_permission("alice", "other", "x", TopicPermission("^o", "^o"))
    reloaded = UserStore(metadata.put)
    reloaded.load(metadata)
    for one in (store, reloaded):
        assert one.may_topic("alice", "/", WRITE, "x", "w")
        assert not one.may_topic("alice", "/", READ, "x", "w")
        assert one.may_topic("alice", "/", WRITE, "unrestricted", "w")
        assert not one.may_topic("unknown", "/", WRITE, "unrestricted", "w")
        assert one.may_every_topic("alice", "/", "unrestricted")
        assert not one.may_every_topic("alice", "/", "x")
        assert not one.may_every_topic("unknown", "/", "unrestricted")
    store.clear_topic_permissions("alice", "/", "x")
    assert store.may_topic("alice", "/", READ, "x", "w")
    assert not store.may_topic("alice", "/", READ, "y", "w")
    with pytest.raises(NotFound, match="no topic permissions for exchange 'x' in vhost '/'"):
        store.clear_topic_permissions("alice", "/", "x")
    store.clear_topic_permissions("alice", "/")
    with pytest.raises(NotFound, match="no topic permissions in vhost '/'"):
        store.clear_topic_permissions("alice", "/")
    store.forget_vhost("other")
    user = store.get("alice")
    assert user is not None
    assert user.topic_permissions == {}


def test_refused_changes() -> None:
    store = UserStore()
    store.declare({"declared": DeclaredUser(user=User(name="declared"))})
    store.add(User(name="alice"))
    with pytest.raises(NotAllowed, match="declared in"):
        store.set_topic_permission("declared", "/", "x", TopicPermission())
    with pytest.raises(NotFound, match="user 'unknown' does not exist"):
        store.set_topic_permission("unknown", "/", "x", TopicPermission())
    with pytest.raises(PreconditionFailed, match=r"exchange 'x': read topic permission '\('"):
        store.set_topic_permission("alice", "/", "x", TopicPermission("", "("))


def test_a_record_of_format_2_has_none() -> None:
    record = msgspec.json.encode({"format": 2, "name": "alice", "permissions": {}})
    store = UserStore()
    store.load({("user", "alice"): record})
    assert store.may_topic("alice", "/", WRITE, "x", "w")


# Enforcement


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("it has its own users")
    process = LeveretProcess(tmp_path_factory.mktemp("topics"))
    process.start()
    call(process.data_dir, "users.add", {"name": "alice", "password": "x"})
    call(process.data_dir, "permissions.set", {"user": "alice", "configure": ".*", "write": ".*", "read": ".*"})
    process.user, process.password = "alice", "x"
    restrict(process, "^{username}\\.", "^(open|{client_id})\\.")
    yield process
    process.stop()
    process.check_log()


def restrict(process: LeveretProcess, write: str, read: str) -> None:
    call(
        process.data_dir,
        "topic_permissions.set",
        {"user": "alice", "exchange": "amq.topic", "write": write, "read": read},
    )


@pytest.fixture
def connection(process: LeveretProcess) -> Iterator[pika.BlockingConnection]:
    with pika.BlockingConnection(pika.URLParameters(process.url())) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.exchange_declare("fan", "fanout")
        yield connection


def publish(key: str, exchange: str = "amq.topic", **headers: list[str]) -> Callable[[BlockingChannel], object]:
    return lambda channel: channel.basic_publish(exchange, key, b"x", pika.BasicProperties(headers=headers or None))


REFUSED: dict[str, Callable[[BlockingChannel], object]] = {
    "publish": publish("bob.x"),
    "publish-empty": publish(""),
    "publish-cc": publish("alice.x", CC=["bob.x"]),
    "publish-bcc": publish("alice.x", BCC=["bob.x"]),
    "bind": lambda channel: channel.queue_bind("q", "amq.topic", "closed.#"),
    "unbind": lambda channel: channel.queue_unbind("q", "amq.topic", "closed.#"),
    "bind-exchange": lambda channel: channel.exchange_bind("fan", "amq.topic", "closed.#"),
    "unbind-exchange": lambda channel: channel.exchange_unbind("fan", "amq.topic", "closed.#"),
}

ALLOWED: dict[str, Callable[[BlockingChannel], object]] = {
    "publish": publish("alice.x"),
    "publish-cc": publish("alice.x", CC=["alice.y"]),
    "publish-elsewhere": publish("bob.x", "amq.direct"),
    "bind": lambda channel: channel.queue_bind("q", "amq.topic", "open.#"),
    "bind-elsewhere": lambda channel: channel.queue_bind("q", "amq.direct", "closed"),
    "bind-exchange": lambda channel: channel.exchange_bind("fan", "amq.topic", "open.#"),
    "bind-to": lambda channel: channel.exchange_bind("amq.topic", "fan", "closed.#"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_over_amqp_0_9_1(connection: pika.BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"403.*to topic .* in exchange 'amq\.topic'"):
        REFUSED[name](channel)


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed_over_amqp_0_9_1(connection: pika.BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    ALLOWED[name](channel)
    assert channel.is_open


def test_copies_are_refused_at_the_publish_in_a_transaction(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel.tx_select()
    publish("alice.x", CC=["bob.x"])(channel)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
        channel.queue_declare("q", passive=True)


def test_a_change_applies_to_open_channels(process: LeveretProcess, connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    publish("alice.x")(channel)
    restrict(process, "^changed$", "")
    try:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
            publish("alice.x")(channel)
        publish("changed")(connection.channel())
    finally:
        restrict(process, "^{username}\\.", "^(open|{client_id})\\.")


def test_a_first_permission_applies_to_open_channels(process: LeveretProcess, connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    call(process.data_dir, "topic_permissions.clear", {"user": "alice", "exchange": "amq.topic"})
    try:
        publish("bob.x")(channel)
        publish("bob.y")(channel)
    finally:
        restrict(process, "^{username}\\.", "^(open|{client_id})\\.")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
        publish("bob.z")(channel)


def open_peer(process: LeveretProcess, container: str) -> Peer:
    peer = Peer(process.host, process.port)
    assert peer.login(response=b"\0alice\0x") == 0
    peer.open(container)
    return peer


def test_amqp_1_0_publishes(process: LeveretProcess) -> None:
    peer = open_peer(process, "device-1")
    session = peer.begin()
    session.receiver("/exchanges/amq.topic/open.#")
    session.sender("/exchanges/amq.direct/bob.x").send()
    session.sender("/exchanges/amq.topic/alice.x").send()
    session.sync()
    refused = session.sender("/exchanges/amq.topic/bob.x")
    refused.send()
    assert "unauthorized-access" in refused.detached_with()
    peer.close()


@pytest.mark.parametrize(("key", "allowed"), [("open.a", True), ("device-1.a", True), ("device-2.a", False)])
def test_amqp_1_0_subscriptions(process: LeveretProcess, key: str, allowed: bool) -> None:
    peer = open_peer(process, "device-1")
    session = peer.begin()
    address = f"/exchanges/amq.topic/{key}"
    if allowed:
        session.receiver(address)
        session.sync()
    else:
        link = session.attach("r", True, source=Source(address), target=Target("here"))
        attached = session.take(Attach, lambda item: item.name == "r")
        assert attached.source is None
        assert "unauthorized-access" in link.detached_with(attached.handle)
    peer.close()


def test_operations(process: LeveretProcess) -> None:
    listed = call(process.data_dir, "topic_permissions.list", {"user": "alice"})
    assert listed == [
        {
            "user": "alice",
            "vhost": "/",
            "exchange": "amq.topic",
            "write": "^{username}\\.",
            "read": "^(open|{client_id})\\.",
            "source": "metadata",
        }
    ]
    assert call(process.data_dir, "topic_permissions.list", {"vhost": "other"}) == []
    fields = {"user": "alice", "exchange": "x", "write": "", "read": ""}
    with pytest.raises(CallFailed, match="vhost 'other' does not exist"):
        call(process.data_dir, "topic_permissions.set", {**fields, "vhost": "other"})
    call(process.data_dir, "topic_permissions.set", fields)
    call(process.data_dir, "topic_permissions.clear", {"user": "alice", "exchange": "x"})
    assert call(process.data_dir, "topic_permissions.list") == listed
