"""The exchange type x-recent-history: which messages a newly bound destination gets."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.consumer import NO_CLIENT
from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues.history import MAX_BYTES, NAME, NO_STORE
from leveret.broker.routing import push
from leveret.broker.transactions.branches import DONE
from tests.broker.support import World
from tests.broker.test_branches import begin, commit, rollback


def commit_at_once(world: World, branch: str) -> list[int]:
    return commit(world, branch, one_phase=True)


def history(world: World, name: str = "news", length: Any = 20, alternate: str | None = None) -> None:
    arguments = {"x-recent-history-length": length, "alternate-exchange": alternate}
    arguments = {key: value for key, value in arguments.items() if value is not None}
    world.vhost.declare_exchange(name, "x-recent-history", durable=True, arguments=arguments)


def publish(world: World, *bodies: str, exchange: str = "news", key: str = "", **options: Any) -> None:
    for body in bodies:
        world.publish(exchange, key, body, **options)


def bind(world: World, queue: str, exchange: str = "news", key: str = "") -> None:
    world.vhost.bind(world.vhost.queues[queue], exchange, key, {})
    world.run()


def contents(world: World, name: str = "q") -> list[str]:
    return world.contents(world.vhost.queues[name])


def newcomer(world: World, exchange: str = "news", name: str = "newcomer") -> list[str]:
    """Return the messages that a new queue gets when it is bound."""
    world.queue(name)
    bind(world, name, exchange)
    found = contents(world, name)
    world.vhost.delete_queue(name, None)
    world.run()
    return found


def test_each_new_queue_gets_the_latest_messages_in_order(world: World) -> None:
    history(world, length=3)
    assert newcomer(world) == []
    publish(world, *"abcde", key="any")
    assert newcomer(world) == ["c", "d", "e"]
    world.queue()
    bind(world, "q")
    publish(world, "f")
    assert contents(world) == ["c", "d", "e", "f"]
    assert newcomer(world) == ["d", "e", "f"]


def test_the_default_is_20_messages(world: World) -> None:
    history(world, length=None)
    publish(world, *map(str, range(30)))
    assert newcomer(world) == [str(number) for number in range(10, 30)]


def test_another_binding_of_a_queue_gives_it_nothing(world: World) -> None:
    history(world)
    publish(world, "a")
    world.queue()
    bind(world, "q")
    bind(world, "q", key="other")
    bind(world, "q", key="other")
    assert contents(world) == ["a"]


@pytest.mark.parametrize("length", [0, -1, 501, "many", True, 1.5])
def test_a_bad_length_is_refused(world: World, length: Any) -> None:
    with pytest.raises(PreconditionFailed, match="'x-recent-history-length'"):
        history(world, length=length)
    assert "news" not in world.vhost.exchanges
    history(world, length=500)


def test_a_header_excludes_a_message(world: World) -> None:
    history(world)
    publish(world, "secret", headers={NO_STORE: True})
    publish(world, "kept", headers={NO_STORE: False})
    publish(world, "mentioned", headers={"other": NO_STORE})
    assert newcomer(world) == ["kept", "mentioned"]


def test_the_size_of_a_history_is_limited(world: World) -> None:
    history(world)
    half = MAX_BYTES // 2 - 100
    publish(world, "a" * half, "b" * half)
    assert [body[0] for body in newcomer(world)] == ["a", "b"]
    publish(world, "c" * half)
    assert [body[0] for body in newcomer(world)] == ["b", "c"]
    publish(world, "d" * MAX_BYTES)
    assert [body[0] for body in newcomer(world)] == ["b", "c"]


def test_an_expired_message_is_not_given(world: World) -> None:
    history(world)
    publish(world, "short", ttl=1000)
    publish(world, "long", ttl=9000)
    publish(world, "at once", ttl=0)
    world.sleep(1000)
    assert newcomer(world) == ["long"]


def test_a_message_is_given_again_after_all_queues_settled_it(world: World) -> None:
    """A persistent one is stored again: the log has released its record."""
    history(world)
    for name in ("first", "second"):
        queue = world.queue(name, durable=True)
        bind(world, name)
        if name == "first":
            publish(world, "a", persistent=True)
        world.run()
        entry = queue.get(False)
        assert entry is not None and entry.row is not None and entry.row is entry.message.row
        queue.settle(entry)
        world.run()


def test_an_exchange_that_is_bound_gets_them_for_its_queues(world: World) -> None:
    history(world)
    history(world, "copies")
    world.vhost.declare_exchange("by.key", "direct")
    for name in ("red", "blue"):
        world.queue(name)
        bind(world, name, "by.key", name)
    world.vhost.bind(world.vhost.exchanges["copies"], "by.key", "red", {})
    publish(world, "a", "b", key="red")
    publish(world, "c", key="blue")
    world.vhost.bind(world.vhost.exchanges["by.key"], "news", "", {})
    world.run()
    assert contents(world, "red") == ["a", "b"] and contents(world, "blue") == ["c"]
    # A history behind the exchange has them, too.
    assert newcomer(world, "copies") == ["a", "b"]


def test_a_cycle_of_histories_keeps_each_message_once(world: World) -> None:
    history(world)
    history(world, "copies")
    publish(world, "a", "b")
    world.vhost.bind(world.vhost.exchanges["news"], "copies", "", {})
    world.vhost.bind(world.vhost.exchanges["copies"], "news", "", {})
    world.run()
    assert newcomer(world, "news") == ["a", "b"] and newcomer(world, "copies") == ["a", "b"]


def test_a_transaction_is_kept_when_it_commits(world: World) -> None:
    history(world)
    queues = world.vhost.route(world.message(exchange="news").address).queues
    for body, end in (("aborted", rollback), ("committed", commit_at_once)):
        begin(world, body).publish(world.message(body, exchange="news"), queues)
        assert newcomer(world) == []
        assert end(world, body) == [DONE]
    assert newcomer(world) == ["committed"]


def test_a_dead_letter_keeps_its_headers(world: World) -> None:
    history(world)
    queue = world.queue(dead_letter_exchange="news")
    publish(world, "a", exchange="", key="q")
    entry = queue.get(False)
    assert entry is not None
    queue.reject(entry)
    for name in ("first", "second"):
        world.queue(name)
        bind(world, name)
        dead = world.vhost.queues[name].get(True)
        assert dead is not None and dead.overlay is not None
        deaths = dead.overlay.headers["x-death"]
        assert isinstance(deaths, list) and deaths[0]["queue"] == "q"  # type: ignore[index, call-overload]


def test_a_full_queue_gets_as_many_as_it_takes(world: World) -> None:
    history(world)
    publish(world, *"abc")
    world.queue(max_length=2, overflow="reject-publish")
    bind(world, "q")
    assert contents(world) == ["a", "b"]


def test_the_history_is_no_destination(world: World) -> None:
    """The alternate exchange gets a message that no bound queue gets, and the history keeps it."""
    world.vhost.declare_exchange("rest", "fanout")
    history(world, alternate="rest")
    assert world.publish("news", "", "a") == [NAME]
    world.queue()
    bind(world, "q", "rest")
    assert world.publish("news", "", "b") == [NAME, "q"]
    assert contents(world) == ["b"]
    world.queue("bound")
    bind(world, "bound")
    assert contents(world, "bound") == ["a", "b"]


def test_a_delayed_exchange_behind_a_history(world: World) -> None:
    """The queues come first in the result, whichever exchange has found them; only the delayed one waits."""
    history(world)
    world.vhost.declare_exchange("later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    world.vhost.bind(world.vhost.exchanges["later"], "news", "", {})
    world.queue("delayed")
    bind(world, "delayed", "later")
    message = world.message("a", exchange="news", headers={"x-delay": 1000})
    route = world.vhost.route(message.address)
    queues = world.vhost.route_message(route, message, [], NO_CLIENT)
    assert [queue.name for queue in queues] == ["delayed", NAME]
    assert push(route, message, queues) is None
    assert contents(world, "delayed") == []
    world.sleep(1000)
    assert contents(world, "delayed") == ["a"] and newcomer(world) == ["a"]


def test_a_new_exchange_of_the_name_has_no_history(world: World) -> None:
    history(world)
    route = world.vhost.route(world.message(exchange="news").address)
    publish(world, "a")
    world.vhost.delete_exchange("news")
    history(world)
    for queue in route.queues:  # of the deleted exchange
        queue.push(world.message("late", exchange="news"))
    assert newcomer(world) == []
