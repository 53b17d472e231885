"""A crash during the removal of a deleted object: it stays deleted, completely."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from leveret.broker import metadata
from leveret.broker.broker import VhostSettings
from leveret.broker.errors import PreconditionFailed
from leveret.broker.jobs import STEP_WORK
from leveret.broker.vhost import QUEUE_WORK, Vhost
from leveret.storage.memory import MemoryRow
from tests.broker.queues.test_queues_on_disk import DiskWorld
from tests.broker.support import HeldLog, World

MANY = 5_000
LEFT = {metadata.BINDING, metadata.REMOVAL}


def define(vhost: Vhost, world: World) -> None:
    """A queue with messages and bindings, between exchanges that are bound to each other."""
    queue = vhost.declare_queue("q", None, durable=True)
    vhost.declare_exchange("source", "topic", durable=True)
    target = vhost.declare_exchange("target", "topic", durable=True)
    for number in range(MANY):
        vhost.bind(queue, "target", f"k.{number}", {})
        vhost.bind(target, "source", f"k.{number}", {"x": number})
        queue.push(world.message(str(number), key="q", persistent=True))


def again(vhost: Vhost) -> None:
    """The deleted object, with one binding at each place."""
    queue = vhost.declare_queue("q", None, durable=True)
    vhost.declare_exchange("source", "topic", durable=True)
    target = vhost.declare_exchange("target", "topic", durable=True)
    vhost.bind(queue, "target", "k.1", {})
    vhost.bind(target, "source", "k.1", {"x": 1})


def started(log: HeldLog) -> World:
    """The broker after a crash, once it has completed the removal."""
    held, recovery = log.recovery()
    world = World(log=held, recovery=recovery)
    world.run()
    held.flush()
    assert not world.broker.jobs.removals.pending
    return world


def live(log: HeldLog) -> int:
    """Return the entries that are still in the log."""
    return sum(entry is not None for row in log.rows.values() if isinstance(row, MemoryRow) for entry in row.entries)


def crashes(world: World) -> list[World]:
    """Starts after a crash at each point of the removal."""
    world.end_turn()
    found = [started(world.held_log)]
    count = 0
    while world.posted:
        world.posted.pop(0)()
        world.end_turn()
        count += 1
        if count % 3 == 1:
            found.append(started(world.held_log))
    found.append(started(world.held_log))
    assert len(found) > 3
    return found


def kinds(world: World) -> set[str]:
    return {kind for kind, _ in world.held_log.metadata}


@pytest.fixture
def world() -> World:
    world = World()
    define(world.vhost, world)
    world.end_turn()
    return world


def bindings(vhost: Vhost) -> set[tuple[str, str, str]]:
    return {(exchange.name, binding.destination.name, binding.routing_key) for exchange, binding in vhost.bindings()}


def test_a_queue_stays_deleted(world: World) -> None:
    world.vhost.delete_queue("q", None)
    for after in crashes(world):
        assert "q" not in after.vhost.queues
        assert {source for source, _, _ in bindings(after.vhost)} == {"source"}
        assert live(after.held_log) == 0 and metadata.REMOVAL not in kinds(after)
        assert sum(kind == metadata.BINDING for kind, _ in after.held_log.metadata) == MANY


def test_an_exchange_stays_deleted(world: World) -> None:
    world.vhost.delete_exchange("target")
    for after in crashes(world):
        assert "target" not in after.vhost.exchanges and not bindings(after.vhost)
        assert after.vhost.queues["q"].ready_count == MANY
        assert metadata.BINDING not in kinds(after)


def test_a_vhost_stays_deleted() -> None:
    world = World()
    vhost = world.broker.add_vhost("v", VhostSettings())
    define(vhost, world)
    world.end_turn()
    world.broker.remove_vhost("v")
    for after in crashes(world):
        assert list(after.broker.vhosts) == ["/"]
        assert {kind for kind, key in after.held_log.metadata if kind != metadata.COUNTER} == {
            metadata.VHOST,
            metadata.VHOST_NUMBER,
        }
        assert live(after.held_log) == 0


def test_a_vhost_with_many_queues_is_deleted_over_several_turns() -> None:
    world = World()
    vhost = world.broker.add_vhost("v", VhostSettings())
    queues = 2 * STEP_WORK // QUEUE_WORK
    for number in range(queues):
        vhost.declare_queue(f"q{number}", None, durable=True).push(world.message("a", key="q", persistent=True))
        vhost.declare_exchange(f"x{number}", "direct", durable=True)
    world.run()
    ended: list[bool] = []
    world.broker.remove_vhost("v", lambda: ended.append(True))
    assert 0 < len(vhost.queues) < queues and not ended
    with pytest.raises(PreconditionFailed, match="vhost 'v' is being deleted"):
        world.broker.add_vhost("v", VhostSettings())
    for after in crashes(world):
        assert list(after.broker.vhosts) == ["/"]
        assert {kind for kind, key in after.held_log.metadata if kind != metadata.COUNTER} == {
            metadata.VHOST,
            metadata.VHOST_NUMBER,
        }
        assert live(after.held_log) == 0
    assert ended == [True] and not vhost.queues
    assert not world.broker.add_vhost("v", VhostSettings()).queues


def deleted_queue(world: World) -> Vhost:
    world.vhost.delete_queue("q", None)
    world.vhost.delete_exchange("target")
    world.vhost.delete_exchange("source")
    return world.vhost


def deleted_vhost(world: World) -> Vhost:
    world.broker.remove_vhost("/")
    return world.broker.add_vhost("/", VhostSettings())


@pytest.mark.parametrize("delete", [deleted_queue, deleted_vhost])
def test_a_new_object_of_the_same_name_inherits_nothing(world: World, delete: Callable[[World], Vhost]) -> None:
    again(delete(world))
    for after in crashes(world):
        assert bindings(after.vhost) == {("target", "q", "k.1"), ("source", "target", "k.1")}
        assert after.vhost.queues["q"].ready_count == 0 and live(after.held_log) == 0
        assert sum(kind == metadata.BINDING for kind, _ in after.held_log.metadata) == 2


def test_bindings_between_predeclared_exchanges_are_deleted_with_their_vhost() -> None:
    world = World()
    old = world.broker.add_vhost("v", VhostSettings())
    for number in range(MANY):
        old.bind(old.exchanges["amq.fanout"], "amq.topic", f"k.{number}", {})
    world.end_turn()
    world.broker.remove_vhost("v")
    new = world.broker.add_vhost("v", VhostSettings())
    new.bind(new.exchanges["amq.fanout"], "amq.topic", "k.1", {})
    for after in crashes(world):
        assert bindings(after.broker.vhosts["v"]) == {("amq.topic", "amq.fanout", "k.1")}


def test_an_auto_delete_exchange_is_deleted_with_its_last_binding() -> None:
    world = World()
    define(world.vhost, world)
    world.vhost.declare_exchange("auto", "direct", durable=True, auto_delete=True)
    world.vhost.bind(world.vhost.queues["q"], "auto", "k", {})
    world.end_turn()
    world.vhost.delete_queue("q", None)
    for after in crashes(world):
        assert "auto" not in after.vhost.exchanges


def of_earlier_version(log: HeldLog) -> None:
    """Take the numbers out of the definitions."""
    for (kind, key), value in list(log.metadata.items()):
        if kind == metadata.VHOST_NUMBER:
            del log.metadata[kind, key]
        elif kind in (metadata.EXCHANGE, metadata.BINDING):
            fields = metadata.unpack(value)
            for name in ("number", "source", "destination"):
                fields.pop(name, None)
            log.metadata[kind, key] = metadata.pack(fields)


def test_definitions_of_earlier_versions_are_recovered_and_numbered(world: World) -> None:
    world.vhost.bind(world.vhost.queues["q"], "amq.topic", "k", {})
    world.end_turn()
    expected = bindings(world.vhost)
    of_earlier_version(world.held_log)
    first = started(world.held_log)
    assert bindings(first.vhost) == expected
    second = started(first.held_log)
    assert bindings(second.vhost) == expected
    assert not [kind for kind, _ in second.held_log.metadata if kind == metadata.REMOVAL]
    numbers = [exchange.id for exchange in second.vhost.exchanges.values() if exchange.name in ("source", "target")]
    assert len({*numbers, second.vhost.number, second.vhost.queues["q"].id}) == 4 and 0 not in numbers
    deleted_queue(second)
    again(second.vhost)
    for after in crashes(second):
        assert bindings(after.vhost) == {("target", "q", "k.1"), ("source", "target", "k.1")}


def test_leftovers_of_a_vhost_from_an_earlier_version_are_removed(world: World) -> None:
    log = world.held_log
    of_earlier_version(log)
    del log.metadata[metadata.VHOST, metadata.make_key("/")]
    after = started(log)
    assert not after.vhost.queues and not bindings(after.vhost) and live(after.held_log) == 0
    assert not {metadata.QUEUE, metadata.EXCHANGE, metadata.BINDING, metadata.REMOVAL} & kinds(after)


def test_nothing_is_removed_if_definitions_were_dropped(world: World) -> None:
    log = world.held_log
    del log.metadata[metadata.VHOST_NUMBER, metadata.make_key("/")]
    del log.metadata[metadata.QUEUE, metadata.make_key("/", "q")]
    held, recovery = log.recovery()
    recovery.dropped = [(metadata.QUEUE, metadata.make_key("/", "q"))]
    after = World(log=held, recovery=recovery)
    after.run()
    assert sum(kind == metadata.BINDING for kind, _ in after.held_log.metadata) == 2 * MANY
    assert len(bindings(after.vhost)) == MANY


def test_the_store_forgets_remaining_entries(tmp_path: Path) -> None:
    before = DiskWorld(tmp_path / "before")
    define(before.vhost, before)
    before.run()
    held: list[Callable[[], None]] = []
    before.broker.jobs.call_soon = held.append
    before.vhost.delete_queue("q", None)
    before.run()
    assert before.broker.jobs.removals.pending
    shutil.copytree(tmp_path / "before", tmp_path / "crashed")
    crashed = DiskWorld(tmp_path / "crashed")
    assert not crashed.recovery.clean
    assert sum(len(left.seqs) for left in crashed.recovery.queues.values()) == 0  # no other queue gets them
    crashed.broker.jobs.call_soon = crashed.calls.put
    crashed.broker.jobs.schedule()
    for _ in range(2):
        crashed.run()
    assert "q" not in crashed.vhost.queues and len(bindings(crashed.vhost)) == MANY
    crashed.close()
    after = DiskWorld(tmp_path / "crashed")
    assert not after.recovery.queues and metadata.REMOVAL not in {kind for kind, _ in after.recovery.metadata}
    assert sum(kind == metadata.BINDING for kind, _ in after.recovery.metadata) == MANY
    after.close()
    held.clear()
    before.broker.jobs.call_soon = before.calls.put
    before.close()
