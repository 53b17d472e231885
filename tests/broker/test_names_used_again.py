"""Names that are reused while the removal of their previous owner is in progress."""

from __future__ import annotations

import pytest

from leveret.broker import metadata
from leveret.broker.broker import VhostSettings
from leveret.broker.errors import PreconditionFailed
from leveret.broker.vhost import Vhost
from tests.broker.support import World

MANY = 5_000


@pytest.fixture
def world() -> World:
    return World()


def restarted(world: World) -> World:
    """The broker after a crash, once all removals are complete."""
    world.run()
    assert not world.broker.jobs.removals.pending
    log, recovery = world.held_log.recovery()
    return World(log=log, recovery=recovery)


def fill(world: World, name: str = "busy") -> None:
    """A durable queue whose deletion takes several turns."""
    queue = world.queue(name, durable=True)
    for number in range(MANY):
        world.push(queue, str(number), persistent=True)
    world.end_turn()


def define(vhost: Vhost) -> None:
    """Durable definitions of each kind, and a message."""
    queue = vhost.declare_queue("q", None, durable=True)
    vhost.declare_exchange("source", "fanout", durable=True)
    target = vhost.declare_exchange("target", "direct", durable=True)
    vhost.bind(queue, "target", "k", {})
    vhost.bind(target, "source", "", {})


def kinds(world: World) -> set[str]:
    return {kind for kind, _ in world.held_log.metadata}


def test_a_vhost_added_again_keeps_its_definitions(world: World) -> None:
    old = world.broker.add_vhost("v", VhostSettings())
    define(old)
    for number in range(MANY):
        old.queues["q"].push(world.message(str(number), key="q", persistent=True))
    world.end_turn()
    world.broker.remove_vhost("v")
    world.end_turn()
    assert world.broker.jobs.removals.pending
    new = world.broker.add_vhost("v", VhostSettings())
    define(new)
    new.queues["q"].push(world.message("new", key="q", persistent=True))
    found = restarted(world).broker.vhosts["v"]
    assert found.queues["q"].ready_count == 1
    assert [queue.name for queue in found.route(world.message(exchange="source", key="k").address).queues] == ["q"]


def test_a_removed_vhost_leaves_no_definitions(world: World) -> None:
    old = world.broker.add_vhost("v", VhostSettings())
    define(old)
    for number in range(MANY):
        old.queues["q"].push(world.message(str(number), key="q", persistent=True))
    world.end_turn()
    world.broker.remove_vhost("v")
    world.run()
    assert not {metadata.QUEUE, metadata.EXCHANGE, metadata.BINDING} & kinds(world)


def test_a_durable_queue_declared_again_as_a_transient_one_does_not_return(world: World) -> None:
    define(world.vhost)
    fill(world, "first")
    world.vhost.delete_queue("first", None)
    world.vhost.delete_queue("q", None)
    again = world.queue("q")
    world.vhost.bind(again, "target", "k", {})
    world.run()
    assert world.route("target", "k") == ["q"]
    found = restarted(world)
    assert "q" not in found.vhost.queues and metadata.BINDING in kinds(world)
    assert found.route("target", "k") == []


def test_a_durable_queue_declared_again_as_an_exclusive_one_does_not_return(world: World) -> None:
    define(world.vhost)
    fill(world, "first")
    world.vhost.delete_queue("first", None)
    world.vhost.delete_queue("q", None)
    world.queue("q", durable=True, exclusive=True, owner=world)
    assert "q" not in restarted(world).vhost.queues


def test_a_durable_exchange_declared_again_as_a_transient_one_does_not_return(world: World) -> None:
    define(world.vhost)
    fill(world, "first")
    world.vhost.delete_queue("first", None)
    world.vhost.delete_exchange("target")
    again = world.vhost.declare_exchange("target", "direct")
    world.vhost.bind(world.vhost.queues["q"], "target", "k", {})
    world.vhost.bind(again, "source", "", {})
    world.run()
    assert world.route("source", "k") == ["q"]
    found = restarted(world)
    assert "target" not in found.vhost.exchanges and found.vhost.bindings() == []
    assert metadata.BINDING not in kinds(world)


def test_a_deleted_queue_does_not_write_its_definition_again(world: World) -> None:
    queue = world.queue("q", durable=True)
    world.vhost.delete_queue("q", None)
    world.run()
    queue.expiry.note_stored(queue)
    world.run()
    assert metadata.QUEUE not in kinds(world)


def deleting(world: World, name: str) -> None:
    """Delete a queue whose bindings stay for some turns."""
    fill(world)
    world.vhost.delete_queue("busy", None)
    world.vhost.delete_queue(name, None)
    assert world.broker.jobs.removals.pending


def test_a_consistent_hash_exchange_routes_nothing_to_a_deleted_queue(world: World) -> None:
    world.vhost.declare_exchange("x", "x-consistent-hash")
    for name in ("a", "b"):
        world.vhost.bind(world.queue(name), "x", "1", {})
    keys = [str(number) for number in range(20)]
    assert {tuple(world.route("x", key)) for key in keys} == {("a",), ("b",)}
    deleting(world, "a")
    assert all(world.route("x", key) == ["b"] for key in keys)
    world.run()
    assert all(world.route("x", key) == ["b"] for key in keys)


def test_a_deleted_destination_is_no_use_of_an_exchange(world: World) -> None:
    world.vhost.declare_exchange("x", "direct")
    world.vhost.bind(world.queue("a"), "x", "k", {})
    world.vhost.bind(world.queue("b"), "x", "k", {})
    deleting(world, "a")
    with pytest.raises(PreconditionFailed, match="in use"):
        world.vhost.delete_exchange("x", if_unused=True)
    world.vhost.delete_queue("b", None)
    assert world.vhost.delete_exchange("x", if_unused=True)
    world.run()
    assert world.vhost.sources == {} and "x" not in world.vhost.exchanges


def test_an_auto_delete_exchange_is_deleted_with_its_last_queue(world: World) -> None:
    world.vhost.declare_exchange("x", "direct", auto_delete=True)
    for number in range(10):
        world.vhost.bind(world.queue(f"q{number}"), "x", "k", {})
    deleting(world, "q0")
    for number in range(1, 10):
        world.vhost.delete_queue(f"q{number}", None)
    world.run()
    assert "x" not in world.vhost.exchanges


def test_an_event_without_a_binding_is_not_created(world: World) -> None:
    world.vhost.bind(world.queue("listener"), "amq.leveret.events", "published.#", {})
    assert world.vhost.events.bound
    deleting(world, "listener")
    world.run()
    assert not world.vhost.events.bound
