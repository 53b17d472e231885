"""Operations on a queue in steps, interrupted by a purge or deletion."""

from __future__ import annotations

import pytest

from leveret.broker.broker import VhostSettings
from leveret.broker.queues.classic.queue import ClassicQueue
from tests.broker.support import Taker, World
from tests.support.queues import classic

MANY = 5_000


def dropping(world: World) -> tuple[ClassicQueue, ClassicQueue]:
    """A queue that expires entries in steps, and its dead-letter queue."""
    dead = world.queue("dead")
    queue = world.queue(dead_letter_exchange="", dead_letter_routing_key="dead")
    for number in range(MANY):
        world.push(queue, str(number), ttl=5)
    world.end_turn()
    world.clock.time += 1000
    Taker(queue)
    world.end_turn()
    assert queue.dispatcher.frozen and 0 < dead.ready_count < MANY
    return queue, dead


@pytest.mark.parametrize("deleted", [False, True])
def test_purged_or_deleted_entries_do_not_expire(deleted: bool) -> None:
    world = World()
    queue, dead = dropping(world)
    expired = dead.ready_count
    count = world.vhost.delete_queue("q", None) if deleted else queue.purge()
    assert count == MANY - expired
    world.run()
    assert dead.ready_count == expired
    assert queue.ready.memory == 0 and queue.ready_count == 0 and not queue.dispatcher.frozen


def test_entries_after_a_purge_are_delivered() -> None:
    world = World()
    queue, _ = dropping(world)
    taker = next(iter(queue.consumers))
    assert isinstance(taker, Taker)
    queue.purge()
    world.push(queue, "later")
    world.run()
    assert taker.bodies() == ["later"]


def moving(world: World) -> ClassicQueue:
    """A deleted queue of a strict vhost, whose entries are dead-lettered in steps."""
    vhost = world.broker.add_vhost("v", VhostSettings(strict=True))
    vhost.declare_queue("dead", None)
    queue = vhost.declare_queue(
        "q", None, durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    for number in range(MANY):
        queue.push(world.message(str(number), key="q", persistent=True))
    world.end_turn()
    vhost.delete_queue("q", None)
    assert vhost.pending_dead_letters.queues and 0 < vhost.queues["dead"].ready_count < MANY
    return classic(queue)


def test_a_vhost_can_be_deleted_while_a_deleted_queue_is_dead_lettered(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    queue = moving(world)
    world.broker.remove_vhost("v")
    world.run()
    assert not caplog.records
    assert not queue.vhost.pending_dead_letters.queues and queue.ready.memory == 0
    assert not world.held_log.kept and not any(kind == "remains" for kind, _ in world.held_log.metadata)


def test_a_deleted_queue_is_dead_lettered_by_one_job(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    vhost = world.vhost
    world.broker.add_vhost("/", VhostSettings(strict=True))
    dead = world.queue("dead")
    queue = world.queue(durable=True, dead_letter_exchange="", dead_letter_routing_key="dead")
    for number in range(MANY):
        world.push(queue, str(number), persistent=True)
    world.end_turn()
    backlog = queue.ready.backlog
    world.broker.page_above = queue.ready.memory // 2
    world.broker.page_down()
    world.run()
    assert backlog.chunks and len(backlog.head) > 500
    # A read is under way when the queue is deleted.
    queue.ready.load(queue, backlog)
    vhost.delete_queue("q", None)
    world.run()
    assert not caplog.records
    assert world.contents(dead) == [str(number) for number in range(MANY)]
    assert not vhost.pending_dead_letters.queues and queue.ready.memory == 0


def test_a_failure_at_the_end_of_a_removal_does_not_keep_the_others_waiting() -> None:
    world = World()
    queue = world.queue()
    for number in range(MANY):
        world.push(queue, str(number))
    queue.purge()
    done: list[int] = []

    def fail() -> None:
        raise ValueError

    assert world.broker.jobs.removals.after(fail)
    assert world.broker.jobs.removals.after(lambda: done.append(1))
    world.run()
    assert done == [1] and not world.broker.jobs.removals.pending
