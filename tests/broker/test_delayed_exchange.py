"""The exchange type x-delayed-message: which queues get a message, and when."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.consumer import NO_CLIENT
from leveret.broker.delay import MAX_DELAY, delay_of
from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges.registry import TYPES
from leveret.broker.exchanges.routing_types import ROUTING_TYPES
from leveret.broker.routing import push
from tests.broker.support import World
from tests.broker.test_branches import again as started_again
from tests.broker.test_branches import begin, commit, prepared
from tests.broker.test_sink_transactions import USER, prepare_transaction
from tests.broker.test_sink_transactions import commit as commit_batch


def delayed(world: World, name: str = "later", kind: str = "direct", **arguments: Any) -> None:
    named = {"x-delayed-type": kind, **arguments}
    world.vhost.declare_exchange(name, "x-delayed-message", durable=True, arguments=named)


def publish(world: World, exchange: str = "later", key: str = "q", delay: Any = 1000, **options: Any) -> list[str]:
    """Publish a message; return the names of its queues."""
    message = world.message(exchange=exchange, key=key, headers={"x-delay": delay}, **options)
    route = world.vhost.route(message.address)
    queues = world.vhost.route_message(route, message, [], NO_CLIENT)
    assert push(route, message, queues) is None
    return sorted(queue.name for queue in queues)


def counts(world: World, *names: str) -> list[tuple[int, int]]:
    """Return the numbers of delayed and ready messages of queues."""
    queues = [world.vhost.queues[name] for name in names]
    return [(queue.delayed_count, queue.ready_count) for queue in queues]


def bind(world: World, exchange: str, queue: str, key: str = "q") -> None:
    world.vhost.bind(world.vhost.queues[queue], exchange, key, {})


@pytest.mark.parametrize("kind", ROUTING_TYPES)
def test_queues_get_a_message_when_it_is_due(world: World, kind: str) -> None:
    world.queue()
    delayed(world, kind=kind)
    bind(world, "later", "q", "1" if kind == "x-consistent-hash" else "q")
    assert publish(world) == ["q"]
    assert publish(world, delay=0) == ["q"]
    assert counts(world, "q") == [(1, 1)]
    world.sleep(999)
    assert counts(world, "q") == [(1, 1)]
    world.sleep(1)
    assert counts(world, "q") == [(0, 2)]


def test_the_type_decides_about_the_destinations(world: World) -> None:
    world.queue("a")
    world.queue("b")
    delayed(world, kind="topic")
    bind(world, "later", "a", "*.red")
    bind(world, "later", "b", "#")
    assert publish(world, key="light.red") == ["a", "b"]
    assert publish(world, key="light.blue") == ["b"]
    world.vhost.unbind(world.vhost.queues["b"], "later", "#", {})
    assert publish(world, key="light.blue") == []
    assert world.vhost.exchanges["later"].has_topics


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5),
        ("5", 5),
        (b"5", 5),
        (2.9, 2),
        (MAX_DELAY, MAX_DELAY),
        (MAX_DELAY + 1, 0),
        (-5, 0),
        (0.5, 0),
        (float("nan"), 0),
        (True, 0),
        ("-5", 0),
        ("²", 0),
        ("9" * 5000, 0),
        ("", 0),
        (None, 0),
        ([1], 0),
    ],
)
def test_values_of_the_header(value: Any, expected: int) -> None:
    assert delay_of({"x-delay": value}) == expected


@pytest.mark.parametrize("kind", [None, "", "nothing", "x-delayed-message", 5])
def test_a_bad_type_is_refused(world: World, kind: Any) -> None:
    arguments = {} if kind is None else {"x-delayed-type": kind}
    with pytest.raises(PreconditionFailed, match=r"'x-delayed-type'.*expected"):
        world.vhost.declare_exchange("later", "x-delayed-message", arguments=arguments)
    assert "later" not in world.vhost.exchanges and "x-delayed-message" in TYPES


def test_redeclaring(world: World) -> None:
    delayed(world)
    delayed(world)
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-delayed-type'"):
        delayed(world, kind="fanout")


def test_bindings_between_exchanges(world: World) -> None:
    """Only queues behind the delayed exchange get the message later; one that it reaches on another way, too, at once."""
    for name in ("direct", "both", "behind"):
        world.queue(name)
    world.vhost.declare_exchange("source", "fanout")
    world.vhost.declare_exchange("target", "fanout")
    delayed(world, kind="fanout")
    world.vhost.bind(world.vhost.exchanges["later"], "source", "", {})
    world.vhost.bind(world.vhost.exchanges["target"], "later", "", {})
    bind(world, "source", "direct")
    bind(world, "source", "both")
    bind(world, "target", "both")
    bind(world, "target", "behind")
    assert publish(world, "source") == ["behind", "both", "direct"]
    assert counts(world, "direct", "both", "behind") == [(0, 1), (0, 1), (1, 0)]
    world.sleep(1000)
    assert counts(world, "direct", "both", "behind") == [(0, 1), (0, 1), (0, 1)]


def test_two_delayed_exchanges_delay_once(world: World) -> None:
    world.queue()
    delayed(world, "one", "fanout")
    delayed(world, "two", "fanout")
    world.vhost.bind(world.vhost.exchanges["two"], "one", "", {})
    bind(world, "two", "q")
    publish(world, "one")
    world.sleep(1000)
    assert counts(world, "q") == [(0, 1)]


@pytest.mark.parametrize("delays", [True, False])
def test_alternate_exchanges(world: World, delays: bool) -> None:
    """The alternate exchange of a delayed exchange gets its messages later, and so does one that is delayed itself."""
    world.queue()
    if delays:
        world.vhost.declare_exchange("other", "fanout")
        delayed(world, "first", **{"alternate-exchange": "other"})
    else:
        delayed(world, "other", "fanout")
        world.vhost.declare_exchange("first", "direct", arguments={"alternate-exchange": "other"})
    bind(world, "other", "q")
    assert publish(world, "first", "unknown") == ["q"]
    assert counts(world, "q") == [(1, 0)]


def test_the_header_is_negated_and_the_time_to_live_starts_later(world: World) -> None:
    queue = world.queue()
    delayed(world)
    bind(world, "later", "q")
    publish(world, ttl=500)
    world.sleep(1400)
    entry = queue.get(False)
    assert entry is not None and world.vhost.dead_letters.headers_of(entry)["x-delay"] == -1000
    queue.requeue(entry)
    world.sleep(101)
    assert counts(world, "q") == [(0, 0)]


def test_dead_letters(world: World) -> None:
    """A message that was not delayed yet is delayed as a dead letter, and only once."""
    delayed(world, kind="fanout")
    source = world.queue("source", dead_letter_exchange="later")
    target = world.queue("target", dead_letter_exchange="later")
    world.queue("last")
    bind(world, "later", "target")
    world.push(source, "m", headers={"x-delay": 1000})
    entry = source.get(False)
    assert entry is not None
    source.reject(entry)
    assert counts(world, "target") == [(1, 0)]
    world.sleep(1000)
    world.vhost.unbind(world.vhost.queues["target"], "later", "q", {})
    bind(world, "later", "last")
    entry = target.get(False)
    assert entry is not None
    target.reject(entry)
    assert counts(world, "target", "last") == [(0, 0), (0, 1)]


def test_a_full_queue_rejects(world: World) -> None:
    """Delayed messages count in the limits."""
    world.queue(max_length=1, overflow="reject-publish")
    delayed(world)
    bind(world, "later", "q")
    publish(world)
    message = world.message(exchange="later", key="q", headers={"x-delay": 1000})
    route = world.vhost.route(message.address)
    queues = world.vhost.route_message(route, message, [], NO_CLIENT)
    assert push(route, message, queues) is queues[0]


def test_a_start(world: World) -> None:
    """The exchange, its bindings and persistent messages survive."""
    world.queue(durable=True)
    delayed(world, kind="topic")
    bind(world, "later", "q", "#")
    publish(world, persistent=True)
    new = started_again(world)
    new.run()
    new.sleep(999)
    assert new.get(new.vhost.queues["q"]) is None
    new.sleep(1)
    assert new.contents(new.vhost.queues["q"]) == ["m"]
    assert publish(new, key="a.b") == ["q"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_prepared_branch(world: World, restarts: bool) -> None:
    """The delay starts with the publication in the branch, and survives a start between prepare and commit."""
    for name in ("now", "q"):
        world.queue(name, durable=True)
    delayed(world)
    world.vhost.declare_exchange("both", "fanout", durable=True)
    bind(world, "later", "q", "key")
    world.vhost.bind(world.vhost.exchanges["later"], "both", "", {})
    bind(world, "both", "now")
    branch = begin(world)
    message = world.message(exchange="both", key="key", headers={"x-delay": 1000}, persistent=True)
    route = world.vhost.route(message.address)
    queues = world.vhost.route_message(route, message, [], NO_CLIENT)
    branch.publish(message, queues, route.delay)
    prepared(world, branch)
    if restarts:
        world = started_again(world)
    world.sleep(300)
    commit(world)
    assert counts(world, "now", "q") == [(0, 1), (1, 0)]
    world.sleep(699)
    assert counts(world, "q") == [(1, 0)]
    world.sleep(1)
    assert counts(world, "q") == [(0, 1)]


def test_a_sink_transaction(world: World) -> None:
    """The delay starts with the commit of the batch."""
    for name in ("now", "q"):
        world.queue(name, durable=True)
    delayed(world)
    world.vhost.declare_exchange("both", "fanout", durable=True)
    bind(world, "later", "q")
    world.vhost.bind(world.vhost.exchanges["later"], "both", "", {})
    bind(world, "both", "now")
    world.vhost.sink_transactions.open("s", "app", USER)
    message = world.message(exchange="leveret.stage:s:both", key="q", headers={"x-delay": 1000}, persistent=True, ttl=500)
    assert world.vhost.route(message.address).queues[0].push(message)
    prepare_transaction(world, "s", "m")
    world.sleep(300)
    commit_batch(world, 1, "s")
    assert counts(world, "now", "q") == [(0, 1), (1, 0)]
    world.sleep(1000)
    assert counts(world, "now", "q") == [(0, 0), (0, 1)]
    world.sleep(501)
    assert counts(world, "q") == [(0, 0)]
