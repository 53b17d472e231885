"""The permissions that client operations need: the table of docs/security.md against a real broker.

There is a user for every combination of the three permissions. Each operation works for users with at least the required
permissions, and closes the channel with 403 for all others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.broker import LeveretProcess, leveret_only

OPERATIONS = ("configure", "write", "read")
COMBINATIONS = [frozenset(some) for count in range(4) for some in itertools.combinations(OPERATIONS, count)]
PATTERN = r"^(res|amq\\.gen|amq\\.default$)"


def user_name(granted: frozenset[str]) -> str:
    return "-".join(sorted(granted)) or "nothing"


def config() -> str:
    users = ['[users.root]\npassword = "x"\npermissions."/" = { configure = ".*", write = ".*", read = ".*" }\n']
    for granted in COMBINATIONS:
        patterns = ", ".join(f'{one} = "{PATTERN if one in granted else ""}"' for one in OPERATIONS)
        users.append(f'[users.{user_name(granted)}]\npassword = "x"\npermissions."/" = {{ {patterns} }}\n')
    return "".join(users)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("it has its own users")
    process = LeveretProcess(tmp_path_factory.mktemp("access"), config=config())
    process.password = "x"
    process.start()
    yield process
    process.stop()
    process.check_log()


def connect(process: LeveretProcess, user: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(process.url(user=user)))


@pytest.fixture
def root(process: LeveretProcess) -> Iterator[BlockingChannel]:
    """Yield a channel with all permissions, with `res.q` and `res.f` bound to `res.e` by "k"."""
    with connect(process, "root") as connection:
        channel = connection.channel()
        channel.queue_declare("res.q")
        for name in ("res.e", "res.f"):
            channel.exchange_declare(name)
        channel.queue_bind("res.q", "res.e", "k")
        channel.exchange_bind("res.f", "res.e", "k")
        yield channel
        for name in ("res.q", "res.new"):
            channel.queue_delete(name)
        for name in ("res.e", "res.f", "res.new"):
            channel.exchange_delete(name)


Operation = Callable[[BlockingChannel], object]
DEAD_LETTER = {"x-dead-letter-exchange": "res.e"}

NEEDS: dict[str, tuple[str, Operation]] = {
    "exchange.declare": ("configure", lambda channel: channel.exchange_declare("res.new")),
    "exchange.declare passive": ("", lambda channel: channel.exchange_declare("res.e", passive=True)),
    "exchange.declare alternate": (
        "configure write read",
        lambda channel: channel.exchange_declare("res.new", arguments={"alternate-exchange": "res.e"}),
    ),
    "exchange.delete": ("configure", lambda channel: channel.exchange_delete("res.f")),
    "exchange.bind": ("write read", lambda channel: channel.exchange_bind("res.f", "res.e", "other")),
    "exchange.unbind": ("write read", lambda channel: channel.exchange_unbind("res.f", "res.e", "k")),
    "queue.declare": ("configure", lambda channel: channel.queue_declare("res.new")),
    "queue.declare server-named": ("configure", lambda channel: channel.queue_declare("", exclusive=True)),
    "queue.declare passive": ("", lambda channel: channel.queue_declare("res.q", passive=True)),
    "queue.declare dead-letter": (
        "configure write read",
        lambda channel: channel.queue_declare("res.new", arguments=DEAD_LETTER),
    ),
    "queue.delete": ("configure", lambda channel: channel.queue_delete("res.q")),
    "queue.bind": ("write read", lambda channel: channel.queue_bind("res.q", "res.e", "other")),
    "queue.unbind": ("write read", lambda channel: channel.queue_unbind("res.q", "res.e", "k")),
    "queue.purge": ("read", lambda channel: channel.queue_purge("res.q")),
    "basic.publish": ("write", lambda channel: channel.basic_publish("res.e", "k", b"x")),
    "basic.publish default exchange": ("write", lambda channel: channel.basic_publish("", "res.q", b"x")),
    "basic.consume": ("read", lambda channel: channel.basic_consume("res.q", lambda *_: None)),
    "basic.get": ("read", lambda channel: channel.basic_get("res.q")),
}


@pytest.mark.parametrize("granted", COMBINATIONS, ids=user_name)
@pytest.mark.parametrize("name", list(NEEDS))
def test_an_operation_needs_its_permissions_and_no_others(
    process: LeveretProcess, root: BlockingChannel, name: str, granted: frozenset[str]
) -> None:
    needed, operation = NEEDS[name]
    with connect(process, user_name(granted)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        if granted >= set(needed.split()):
            operation(channel)
            assert channel.is_open
        else:
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
                operation(channel)


def test_names_outside_the_expressions_are_refused(process: LeveretProcess, root: BlockingChannel) -> None:
    root.queue_declare("other")
    with connect(process, user_name(frozenset(OPERATIONS))) as connection:
        operations: tuple[Callable[[BlockingChannel], object], ...] = (
            lambda channel: channel.queue_delete("other"),
            lambda channel: channel.basic_get("other"),
            lambda channel: channel.queue_declare("another"),
            lambda channel: channel.basic_publish("amq.fanout", "", b"x"),
        )
        for operation in operations:
            channel = connection.channel()
            channel.confirm_delivery()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
                operation(channel)
    root.queue_delete("other")


def test_missing_entities_are_refused_like_existing_ones(process: LeveretProcess) -> None:
    """A user without permission for a name cannot find out whether it exists."""
    with connect(process, "nothing") as connection:
        operations: tuple[Callable[[BlockingChannel], object], ...] = (
            lambda channel: channel.queue_delete("nowhere"),
            lambda channel: channel.basic_get("nowhere"),
            lambda channel: channel.queue_purge("nowhere"),
            lambda channel: channel.exchange_delete("no"),
        )
        for operation in operations:
            channel = connection.channel()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
                operation(channel)


def test_a_server_named_queue_belongs_to_its_declarer_alone(process: LeveretProcess) -> None:
    """Declaring it grants no permission that the expressions do not grant."""
    with connect(process, "configure") as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
            channel.basic_get(queue)
