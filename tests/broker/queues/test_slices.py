"""Operations on any number of objects run in steps, but take effect at once."""

from __future__ import annotations

import pytest

from leveret.broker import metadata
from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import Entry
from leveret.broker.queues import entry_return
from leveret.broker.queues.classic.backlog import MOVED_SHIFT, PIECE
from leveret.broker.queues.classic.queue import DEAD_LETTER_WORK
from leveret.broker.timers import MAX_FIRED
from tests.broker.support import HeldLog, Keeper, Taker, World

MANY = 10_000


@pytest.fixture
def world() -> World:
    return World()


def steps(world: World) -> int:
    """Run posted callbacks until there are none; return the number of steps."""
    count = 0
    while world.posted:
        world.posted.pop(0)()
        world.end_turn()
        count += 1
    return count


def log_of(world: World) -> HeldLog:
    assert isinstance(world.log, HeldLog)
    return world.log


def test_a_purge_is_over_at_once_and_the_log_follows_in_steps(world: World) -> None:
    queue = world.queue(durable=True)
    for number in range(MANY):
        world.push(queue, str(number), persistent=True)
    world.end_turn()
    assert queue.purge() == MANY
    assert (queue.ready_count, queue.ready.memory) == (0, 0)
    assert world.push(queue, "later", persistent=True)
    world.end_turn()
    left = len(log_of(world).kept)
    assert MANY - STEP_WORK - PIECE < left < MANY
    assert world.contents(queue) == ["later"]
    assert steps(world) >= MANY // STEP_WORK - 1
    assert not world.broker.jobs.removals.pending
    assert len(log_of(world).kept) <= 1


def test_a_start_in_the_middle_does_not_find_a_deleted_queue(world: World) -> None:
    queue = world.queue(durable=True)
    world.vhost.declare_exchange("x", "topic", durable=True)
    for number in range(MANY):
        world.vhost.bind(queue, "x", f"a.{number}", {})
    world.push(queue, "m", persistent=True)
    world.end_turn()
    assert world.vhost.delete_queue("q", None) == 1
    assert "q" not in world.vhost.queues and world.route("x", "a.0") == []
    world.end_turn()
    kinds = {kind for kind, _ in log_of(world).metadata}
    assert metadata.BINDING in kinds and metadata.QUEUE not in kinds
    steps(world)
    kinds = {kind for kind, _ in log_of(world).metadata}
    assert not {metadata.QUEUE, metadata.BINDING} & kinds
    assert world.vhost.exchange("x").bindings() == [] and world.vhost.sources == {}


def test_a_queue_declared_again_keeps_its_definition_and_bindings(world: World) -> None:
    queue = world.queue(durable=True)
    world.vhost.declare_exchange("x", "direct", durable=True)
    for number in range(MANY):
        world.vhost.bind(queue, "x", str(number), {})
    world.vhost.delete_queue("q", None)
    again = world.queue(durable=True)
    for number in (0, MANY // 2, MANY - 1):
        world.vhost.bind(again, "x", str(number), {})
    world.end_turn()
    steps(world)
    assert world.route("x", str(MANY - 1)) == world.route("x", "0") == ["q"]
    assert world.route("x", "1") == []
    restarted = World(log=log_of(world).recovery()[0], recovery=log_of(world).recovery()[1])
    assert restarted.route("x", "0") == ["q"] and restarted.route("x", "1") == []


def test_a_deleted_exchange_stops_routing_at_once(world: World) -> None:
    source = world.vhost.declare_exchange("source", "fanout")
    target = world.vhost.declare_exchange("x", "topic", durable=True)
    queue = world.queue(durable=True)
    for number in range(MANY):
        world.vhost.bind(queue, "x", f"a.{number}", {})
    world.vhost.bind(target, "source", "", {})
    world.end_turn()
    world.vhost.delete_exchange("x")
    again = world.vhost.declare_exchange("x", "topic", durable=True)
    world.vhost.bind(queue, "x", "a.5", {})
    assert world.route("x", "a.5") == ["q"] and world.route("x", "a.6") == [] and world.route("source") == []
    steps(world)
    assert world.route("x", "a.5") == ["q"] and len(again.bindings()) == 1 and source.bindings() == []
    kept = [key for kind, key in log_of(world).metadata if kind == metadata.BINDING]
    assert len(kept) == 1
    assert metadata.EXCHANGE in {kind for kind, _ in log_of(world).metadata}


def test_removals_wait_for_a_commit_while_the_log_is_behind(world: World) -> None:
    world.vhost.declare_exchange("x", "topic", durable=True)
    queue = world.queue(durable=True)
    for number in range(MANY):
        world.vhost.bind(queue, "x", f"a.{number}", {})
    world.end_turn()
    log = log_of(world)
    log.held = log.behind = True
    world.vhost.delete_exchange("x")
    steps(world)
    assert sum(kind == metadata.BINDING for kind, _ in log.metadata) == MANY
    log.held = log.behind = False
    log.release_all()
    steps(world)
    assert metadata.BINDING not in {kind for kind, _ in log.metadata}
    assert not world.broker.jobs.removals.pending


def test_unacked_messages_of_a_deleted_queue_are_settled(world: World) -> None:
    queue = world.queue(durable=True)
    taker = Taker(queue)
    keeper = Keeper(taker)
    world.broker.holders[keeper] = None
    for number in range(MANY):
        world.push(queue, str(number), persistent=True)
    world.run()
    assert len(taker.taken) == MANY
    world.vhost.delete_queue("q", None)
    back = taker.taken[-1]
    del taker.taken[-1]
    back.queue.requeue(back)
    steps(world)
    world.end_turn()
    assert taker.gone and not log_of(world).kept


def test_many_expired_messages_are_dead_lettered_over_several_turns(world: World) -> None:
    dead = world.queue("dead")
    queue = world.queue(message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key="dead")
    for number in range(1000):
        world.push(queue, str(number))
    world.end_turn()
    world.sleep(1000)
    turns = 1
    assert 0 < dead.ready_count < 1000
    while queue.ready_count:
        world.sleep(1)
        turns += 1
    assert world.contents(dead) == [str(number) for number in range(1000)]
    assert turns >= 1000 * DEAD_LETTER_WORK // (STEP_WORK + DEAD_LETTER_WORK)


def test_a_consumer_gets_the_first_message_after_the_expired_ones(world: World) -> None:
    queue = world.queue()
    for number in range(MANY):
        world.push(queue, str(number), ttl=5)
    world.push(queue, "fresh")
    world.end_turn()
    world.clock.time += 1000
    taker = Taker(queue)
    world.end_turn()
    assert queue.dispatcher.frozen and 1 < queue.ready_count <= MANY + 1 - STEP_WORK
    world.run()
    assert taker.bodies() == ["fresh"] and not queue.dispatcher.frozen


def test_requeuing_between_many_messages_is_work(world: World) -> None:
    queue = world.queue()
    for number in range(2 * MANY):
        world.push(queue, str(number))
    taker = Taker(queue, credit=2 * MANY)
    world.run()
    entries = list(taker.taken)
    taker.credit = 0

    def work_of_requeuing(entry: Entry) -> int:
        before = world.broker.work
        queue.requeue(entry)
        return world.broker.work - before

    assert {work_of_requeuing(entry) for entry in entries[::2]} == {0}  # each is the last
    assert work_of_requeuing(entries[MANY + 1]) == MANY // 2 >> MOVED_SHIFT > 1
    assert work_of_requeuing(entries[101]) == work_of_requeuing(entries[2 * MANY - 101]) == 0
    taken = {id(entry) for entry in (entries[MANY + 1], entries[101], entries[2 * MANY - 101])}
    entry_return.return_entries(
        world.broker, [entry for entry in entries[1::2] if id(entry) not in taken], lambda entry: entry.queue.requeue(entry)
    )
    assert steps(world) > 2 * MANY // STEP_WORK
    assert world.contents(queue) == [str(number) for number in range(2 * MANY)]


def test_offering_a_deep_queue_is_done_in_several_turns(world: World) -> None:
    queue = world.queue()
    for _ in range(MANY):
        world.push(queue, "other")
    world.push(queue, "x")
    world.end_turn()
    taker = Taker(queue, only=b"x")
    world.end_turn()
    assert taker.bodies() == []
    world.run()
    assert taker.bodies() == ["x"] and queue.ready_count == MANY


def test_timers_that_are_due_together_are_fired_in_several_turns(world: World) -> None:
    for number in range(3 * MAX_FIRED):
        world.queue(f"q{number}", expires=1000)
    world.clock.time += 1000
    world.clock.run(world.clock.time)
    assert len(world.vhost.queues) == 2 * MAX_FIRED
    world.clock.run(world.clock.time)
    world.clock.run(world.clock.time)
    assert not world.vhost.queues
