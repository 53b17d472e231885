"""Deduplication in exchanges of any type, and the exchange type of RabbitMQ's plugin."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker import metadata
from leveret.broker.arguments import CACHE_TTL, DEDUPLICATION_HEADER
from leveret.broker.consumer import NO_CLIENT
from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues.exchange_keys import DUPLICATES
from leveret.broker.routing import destinations_of, is_unroutable, push
from leveret.broker.transactions.branches import DONE
from leveret.broker.transactions.transaction import Transaction
from tests.broker.support import HeldLog, World
from tests.broker.test_branches import begin, commit, rollback

WINDOW = 60_000
PLUGIN = "x-message-deduplication"


def exchange(world: World, name: str = "e", kind: str = "direct", **arguments: Any) -> None:
    named = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    world.vhost.declare_exchange(name, kind, durable=True, arguments=named)


def bound(world: World, queue: str = "q", source: str = "e", key: str = "k", **properties: Any) -> None:
    if queue not in world.vhost.queues:
        world.queue(queue, durable=True, **properties)
    world.vhost.bind(world.vhost.queues[queue], source, key, {})


def publish(
    world: World,
    key: Any,
    body: str = "m",
    *,
    to: str = "e",
    persistent: bool = True,
    more: dict[str, Any] | None = None,
) -> list[str]:
    """Publish a message with a key and more headers as connections do; return the names of its destinations."""
    headers = {**({} if key is None else {DEDUPLICATION_HEADER: key}), **(more or {})}
    message = world.message(body, exchange=to, key="k", persistent=persistent, headers=headers)
    route = world.vhost.route(message.address)
    queues = world.vhost.route_message(route, message, [], NO_CLIENT) if route.dynamic else route.queues
    push(route, message, queues)
    return ["unroutable"] if is_unroutable(queues) else [queue.name for queue in destinations_of(queues)]


def contents(world: World, name: str = "q") -> list[str]:
    return world.contents(world.vhost.queues[name])


def records(world: World) -> list[str]:
    world.run()
    return [key for kind, key in world.held_log.metadata if kind == metadata.DEDUPLICATION]


def again(world: World) -> World:
    world.run()
    log, recovery = world.held_log.recovery(False)
    new = World(log=log, recovery=recovery, time=world.clock.time)
    new.run()
    return new


@pytest.mark.parametrize(
    "kind", ["direct", "fanout", "topic", "headers", "x-random", "x-consistent-hash", "x-recent-history"]
)
def test_exchanges_of_all_types_drop_duplicates(world: World, kind: str) -> None:
    exchange(world, kind=kind, deduplication_window=WINDOW)
    bound(world, key="1" if kind == "x-consistent-hash" else "k")
    assert publish(world, "a", "first") == ["q"]
    assert publish(world, "a", "second") == [DUPLICATES]
    assert publish(world, "b", "third") == ["q"]
    assert publish(world, None) == publish(world, None) == ["q"]
    world.sleep(WINDOW - 1)
    assert publish(world, "a") == [DUPLICATES]
    world.sleep(1)
    assert publish(world, "a", "fourth") == ["q"]
    assert contents(world) == ["first", "third", "m", "m", "fourth"]


def test_the_exchange_of_the_plugin(world: World) -> None:
    """Without a time, only the number of keys limits how long they last."""
    exchange(world, kind=PLUGIN, cache_size=2, cache_persistence="memory")
    bound(world, key="whatever")
    bound(world, "other", key="")
    assert publish(world, "a") == ["q", "other"]
    world.sleep(10 * WINDOW)
    assert publish(world, "a") == [DUPLICATES]
    for key in ("b", "c"):
        assert publish(world, key) == ["q", "other"]
    assert publish(world, "a") == ["q", "other"]


def test_times_of_the_plugin(world: World) -> None:
    exchange(world, kind=PLUGIN, cache_size=10, cache_ttl=1000)
    bound(world)
    publish(world, "a")
    publish(world, "long", more={CACHE_TTL: 5000})
    world.sleep(1000)
    assert publish(world, "a") == ["q"] and publish(world, "long") == [DUPLICATES]
    exchange(world, "endless", kind=PLUGIN, cache_size=10)
    bound(world, source="endless")
    publish(world, "short", to="endless", more={CACHE_TTL: 1})
    world.sleep(1)
    assert publish(world, "short", to="endless") == ["q"]


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("direct", {"cache_size": 10}),
        ("direct", {"cache_ttl": 10}),
        ("direct", {"deduplication_header": "id"}),
        (PLUGIN, {"cache_size": "many"}),
        (PLUGIN, {"cache_ttl": 0}),
        (PLUGIN, {"cache_ttl": 1000, "deduplication_window": 1000}),
    ],
)
def test_bad_arguments_are_refused(world: World, kind: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(PreconditionFailed, match="'x-"):
        exchange(world, kind=kind, **arguments)
    assert "e" not in world.vhost.exchanges


def test_an_unroutable_message_leaves_no_key(world: World) -> None:
    """Its publisher sends it again when a queue is bound."""
    world.vhost.declare_exchange("rest", "fanout", durable=True)
    exchange(world, deduplication_window=WINDOW)
    assert publish(world, "a") == ["unroutable"]
    bound(world)
    assert publish(world, "a") == ["q"] and publish(world, "a") == [DUPLICATES]
    exchange(world, "history", kind="x-recent-history", deduplication_window=WINDOW)
    assert publish(world, "a", to="history") == ["unroutable"]
    bound(world, "late", "history")
    assert publish(world, "a", to="history") == ["late"]


def test_a_message_that_a_full_queue_rejects_leaves_no_key(world: World) -> None:
    exchange(world, deduplication_window=WINDOW)
    bound(world, max_length=1, overflow="reject-publish")
    publish(world, "a")
    publish(world, "b", "again")
    contents(world)
    assert publish(world, "b", "again") == ["q"] and contents(world) == ["again"]
    assert publish(world, "a") == [DUPLICATES]
    bound(world, "sorted", sort_key="rank")
    publish(world, "c", "fills")
    publish(world, "d", "twice")
    contents(world)
    assert publish(world, "d", "twice") == ["q", "sorted"]
    assert contents(world, "sorted") == ["fills", "twice", "twice"]


def test_a_message_passes_several_exchanges(world: World) -> None:
    """Each has its own keys: a duplicate for one still goes where another one routes it."""
    for name in ("first", "second"):
        exchange(world, name, "fanout", deduplication_window=WINDOW)
        bound(world, f"q.{name}", name)
    world.vhost.declare_exchange("both", "fanout")
    for name in ("first", "second"):
        world.vhost.bind(world.vhost.exchanges[name], "both", "", {})
    assert publish(world, "a", to="first") == ["q.first"]
    assert sorted(publish(world, "a", to="both")) == [DUPLICATES, "q.second"]
    assert publish(world, "a", to="both") == [DUPLICATES, DUPLICATES]


def test_a_delayed_exchange(world: World) -> None:
    exchange(world, kind="x-delayed-message", delayed_type="direct", deduplication_window=WINDOW)
    bound(world)
    publish(world, "a", "first", more={"x-delay": 1000})
    assert publish(world, "a", "second", more={"x-delay": 10}) == [DUPLICATES]
    assert publish(world, "a") == [DUPLICATES]
    world.sleep(1000)
    assert contents(world) == ["first"]


def test_transactions(world: World) -> None:
    exchange(world, deduplication_window=WINDOW)
    bound(world)

    def posted(branch: str, *bodies: str) -> None:
        opened = begin(world, branch)
        for body in bodies:
            message = world.message(body, exchange="e", key="k", persistent=True, headers={DEDUPLICATION_HEADER: "a"})
            route = world.vhost.route(message.address)
            opened.publish(message, world.vhost.queues_of(route, message, []))

    posted("aborted", "lost")
    assert rollback(world, "aborted") == [DONE] and records(world) == []
    posted("committed", "first", "second")
    posted("late", "third")
    assert commit(world, "committed", one_phase=True) == [DONE]
    assert commit(world, "late", one_phase=True) == [DONE]
    assert contents(world) == ["first"] and publish(world, "a") == [DUPLICATES]


def test_a_transaction_that_fails_leaves_no_key(world: World) -> None:
    exchange(world, deduplication_window=WINDOW)
    bound(world)
    message = world.message("a", exchange="e", key="k", persistent=True, headers={DEDUPLICATION_HEADER: "a"})
    transaction = Transaction(world.log)
    transaction.publish(message, world.vhost.queues_of(world.vhost.route(message.address), message, []))
    for _ in transaction.writing():
        pass
    assert publish(world, "a") == [DUPLICATES]
    for _ in transaction.undoing():
        pass
    assert records(world) == [] and publish(world, "a") == ["q"]


def test_a_dead_letter_is_no_duplicate(world: World) -> None:
    exchange(world, deduplication_window=WINDOW)
    bound(world, message_ttl=1000, dead_letter_exchange="e", dead_letter_routing_key="dead")
    bound(world, "dead", key="dead")
    publish(world, "a")
    world.sleep(1000)
    assert contents(world, "dead") == ["m"]


def test_keys_survive_a_start_and_end_with_the_exchange(world: World) -> None:
    exchange(world, deduplication_window=WINDOW)
    bound(world)
    publish(world, "a")
    publish(world, "transient", persistent=False)
    new = again(world)
    assert publish(new, "a") == [DUPLICATES]
    assert publish(new, "transient") == ["q"]
    assert len(records(new)) == 2
    new.vhost.delete_exchange("e")
    assert records(new) == []
    exchange(new, deduplication_window=WINDOW)
    bound(new)
    assert publish(new, "a") == ["q"]


@pytest.mark.parametrize("committed", range(3))
def test_a_key_and_its_message_are_one_commit(committed: int) -> None:
    log = HeldLog(held=True)
    world = World(log=log)
    exchange(world, deduplication_window=WINDOW)
    bound(world)
    log.release_all()
    for key in "abc":
        publish(world, key, key)
        world.end_turn()
    duplicate = world.message("a", exchange="e", key="k", persistent=True, headers={DEDUPLICATION_HEADER: "a"})
    world.vhost.queues_of(world.vhost.route(duplicate.address), duplicate, [])[0].push(duplicate)
    assert duplicate.row is not None and duplicate.slot == -1  # confirmed with the first one
    for _ in range(committed):
        log.release()
        world.end_turn()
    log, recovery = log.recovery(False)
    new = World(log=log, recovery=recovery, time=world.clock.time)
    accepted = [key for key in "abc" if publish(new, key, key) == ["q"]]
    assert contents(new) == [*sorted({*"abc"} - {*accepted}), *accepted]
