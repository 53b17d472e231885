"""Leases: leased messages belong to one reader, can be read repeatedly, and are settled once."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from leveret.broker.errors import AccessRefused, NotFound, PreconditionFailed, ResourceError
from leveret.broker.leases import leases
from leveret.broker.leases.batch import Batch, decode_runs, encode_runs
from leveret.broker.leases.leases import Leases
from leveret.broker.log import Loaded
from leveret.broker.queues.queue import Queue
from tests.broker.leases.support import LeaseReader, ask, plan, read, restart
from tests.broker.support import Keeper, Taker, World, figures
from tests.support.queues import classic

BODIES = [f"{number:04}" for number in range(60)]


@pytest.fixture
def queue(world: World) -> Queue:
    queue = world.queue(durable=True)
    world.push(queue, *BODIES, persistent=True)
    world.run()
    return queue


def acquire(queue: Queue, lease: str = "l", timeout: float | None = None) -> int:
    return queue.make_leases().acquire(lease, timeout).epoch


def test_a_leased_batch_is_read_and_settled(world: World, queue: Queue) -> None:
    epoch = acquire(queue)
    assert plan(world, queue, "l", epoch, 0, 10) == {"batch": 1, "count": 10, "octets": 40}
    assert figures(queue) == (50, 200, 0) and queue.leased_count == 10
    reader = read(world, queue, "l", epoch, 1)
    assert reader.bodies == BODIES[:10]
    assert reader.offsets == list(range(10))
    assert Leases.of(queue, "l").commit("l", epoch, 1) == 1
    assert queue.leased_count == 0 and figures(queue) == (50, 200, 0)
    assert world.contents(queue) == BODIES[10:]
    world.run()
    assert not world.log.rows


def test_leased_messages_are_not_delivered_to_consumers(world: World, queue: Queue) -> None:
    epoch = acquire(queue)
    plan(world, queue, "l", epoch, 0, 10)
    consumer = Taker(queue, credit=5)
    world.run()
    assert consumer.history == BODIES[10:15]
    assert plan(world, queue, "l", epoch, 1, 5) == {"batch": 2, "count": 5, "octets": 20}
    assert read(world, queue, "l", epoch, 2).bodies == BODIES[15:20]
    assert world.contents(queue) == BODIES[20:]


def test_repeating_a_lease_request_returns_the_same_batch(world: World, queue: Queue) -> None:
    epoch = acquire(queue)
    first = plan(world, queue, "l", epoch, 0, 10)
    assert plan(world, queue, "l", epoch, 0, 99) == first
    second = plan(world, queue, "l", epoch, 1, 10)
    assert second == {"batch": 2, "count": 10, "octets": 40}
    assert plan(world, queue, "l", epoch, 0, 10) == first
    assert queue.leased_count == 20


def test_a_plan_is_answered_when_it_is_on_disk(world: World, queue: Queue) -> None:
    epoch = acquire(queue)
    world.run()
    world.held_log.held = True
    one = ask(queue, "l", epoch, 0, 10)
    world.end_turn()
    again = ask(queue, "l", epoch, 0, 10)
    reader = LeaseReader(queue, "l", epoch, 1, 0, 10)
    world.run()
    assert not one.told and not again.told and not reader.bodies
    world.held_log.held = False
    world.held_log.release_all()
    world.run()
    assert one.told and one.batch is again.batch and reader.bodies == BODIES[:10]


def test_there_is_no_batch_without_ready_messages(world: World) -> None:
    queue = world.queue(durable=True)
    epoch = acquire(queue)
    assert plan(world, queue, "l", epoch, 0, 10) is None
    world.push(queue, "a", persistent=True)
    assert plan(world, queue, "l", epoch, 0, 10) == {"batch": 1, "count": 1, "octets": 1}


def test_max_bytes_limits_batches_of_several_messages(world: World, queue: Queue) -> None:
    epoch = acquire(queue)
    assert plan(world, queue, "l", epoch, 0, 100, 1) == {"batch": 1, "count": 1, "octets": 4}
    assert plan(world, queue, "l", epoch, 1, 100, 11) == {"batch": 2, "count": 2, "octets": 8}


def test_slices_are_read_at_the_same_time_and_again(world: World, queue: Queue) -> None:
    epoch = acquire(queue)
    plan(world, queue, "l", epoch, 0, 30)
    readers = [LeaseReader(queue, "l", epoch, 1, first, 10, credit=3) for first in (0, 10, 20, 10)]
    world.run()
    assert [reader.bodies for reader in readers] == [BODIES[at : at + 3] for at in (0, 10, 20, 10)]
    for reader in readers:
        reader.give(-1)
    world.run()
    assert [reader.bodies for reader in readers] == [BODIES[at : at + 10] for at in (0, 10, 20, 10)]
    assert not any(any(reader.redelivered) for reader in readers)


def test_redelivered_marks_messages_that_were_delivered_before(world: World, queue: Queue) -> None:
    consumer = Taker(queue, credit=2)
    world.run()
    consumer.requeue_all()
    queue.remove_consumer(consumer)
    epoch = acquire(queue)
    plan(world, queue, "l", epoch, 0, 4)
    for _ in range(2):
        assert read(world, queue, "l", epoch, 1).redelivered == [True, True, False, False]
    after = restart(world)
    queue = after.vhost.queues["q"]
    # Also after a crash, if it is known which messages may have been delivered.
    assert read(after, queue, "l", epoch, 1).redelivered == [True, True, False, False]
    Leases.of(queue, "l").release("l")
    after.run()
    epoch = acquire(queue)
    plan(after, queue, "l", epoch, 0, 4)
    assert read(after, queue, "l", epoch, 1).redelivered == [True] * 4


def test_record_batches_cover_indices_of_the_lease_batch(world: World) -> None:
    packed = pytest.importorskip("leveret.segments.record_batches")
    queue = world.queue(durable=True, max_priority=3)
    for number, body in enumerate(BODIES):
        world.push(queue, body, persistent=True, priority=number % 2)
    consumer = Taker(queue, credit=2)
    world.run()
    consumer.requeue_all()
    queue.remove_consumer(consumer)
    epoch = acquire(queue)
    plan(world, queue, "l", epoch, 0, 60)
    reader = LeaseReader(queue, "l", epoch, 1, 0, 40, packed=True)
    world.run()
    found = [packed.DeliveredBatch(body) for body in reader.packs]
    assert (found[0].first, found[-1].next) == (0, 40)
    bodies = [bytes(body).decode() for pack in found for body in pack.rows.bodies]
    assert bodies == [*BODIES[1::2], *BODIES[0:20:2]]
    assert [offset for pack in found for offset in pack.rows.offsets] == [int(body) for body in bodies]
    assert found[0].rows.redelivered[:3] == [True, True, False]


def test_a_release_returns_messages_to_their_places(world: World, queue: Queue) -> None:
    epoch = acquire(queue)
    plan(world, queue, "l", epoch, 0, 10)
    plan(world, queue, "l", epoch, 1, 10)
    world.push(queue, "new", persistent=True)
    assert Leases.of(queue, "l").release("l") == 20
    assert queue.leased_count == 20  # until that is on disk
    world.run()
    assert queue.leased_count == 0 and figures(queue) == (61, 243, 0)
    assert world.contents(queue) == [*BODIES, "new"]
    with pytest.raises(NotFound, match="lease 'l' of queue 'q' in vhost '/' does not exist"):
        Leases.of(queue, "l").find_current("l", epoch)
    assert acquire(queue) > epoch


@pytest.mark.parametrize("page_above", [2_000, 1 << 20], ids=["paged", "in-memory"])
def test_returned_messages_take_their_places(page_above: int) -> None:
    world = World(page_above=page_above)
    queue = world.queue(durable=True)
    world.push(queue, *BODIES, persistent=True)
    world.run()
    world.broker.page_down()
    epochs = {name: acquire(queue, name) for name in ("a", "b", "c")}
    for number in range(3):
        for name, epoch in epochs.items():
            plan(world, queue, name, epoch, number, 5)
    consumer = Taker(queue, credit=3)
    world.run()
    for name in ("b", "a", "c"):
        Leases.of(queue, name).release(name)
        world.run()
        consumer.requeue(0)
    world.push(queue, "new", persistent=True)
    world.run()
    assert queue.leased_count == 0
    assert world.contents(queue) == [*BODIES, "new"]


def test_messages_being_returned_are_not_delivered_before_the_commit(world: World, queue: Queue) -> None:
    epoch = acquire(queue)
    plan(world, queue, "l", epoch, 0, 60)
    consumer = Taker(queue)
    world.held_log.held = True
    Leases.of(queue, "l").release("l")
    world.run()
    assert consumer.history == []
    world.held_log.held = False
    world.held_log.release_all()
    world.run()
    assert consumer.history == BODIES


def test_a_commit_can_return_messages(world: World, queue: Queue) -> None:
    epoch = acquire(queue)
    plan(world, queue, "l", epoch, 0, 10)
    assert Leases.of(queue, "l").commit("l", epoch, 1, [7, 2, 2]) == 1
    world.run()
    assert figures(queue) == (52, 208, 0) and queue.leased_count == 0
    assert world.contents(queue) == [BODIES[2], BODIES[7], *BODIES[10:]]


def test_a_commit_can_be_repeated_and_keeps_the_order(world: World, queue: Queue) -> None:
    epoch = acquire(queue)
    for number in range(3):
        plan(world, queue, "l", epoch, number, 10)
    with pytest.raises(PreconditionFailed, match="batch 1 of lease 'l' of queue 'q' in vhost '/' precedes batch 2"):
        Leases.of(queue, "l").commit("l", epoch, 2)
    with pytest.raises(NotFound, match=r"batch 9 of lease .* does not exist or is committed: .* batch is 0"):
        Leases.of(queue, "l").commit("l", epoch, 9)
    with pytest.raises(PreconditionFailed, match="index 10 is out of range"):
        Leases.of(queue, "l").commit("l", epoch, 1, [3, 10])
    assert Leases.of(queue, "l").commit("l", epoch, 1) == 1
    assert Leases.of(queue, "l").commit("l", epoch, 2) == 2
    assert Leases.of(queue, "l").commit("l", epoch, 1) == 2
    assert queue.leased_count == 10 and queue.counters.settled == 20
    with pytest.raises(PreconditionFailed, match="has committed batch 2"):
        ask(queue, "l", epoch, 1, 10)


def test_an_older_epoch_is_refused_everywhere(world: World, queue: Queue) -> None:
    old = acquire(queue)
    plan(world, queue, "l", old, 0, 10)
    reader = LeaseReader(queue, "l", old, 1, 0, 10, credit=3)
    world.run()
    epoch = acquire(queue)
    assert reader.gone and epoch > old
    reader.give(-1)
    world.run()
    assert reader.bodies == BODIES[:3]
    for refused in (
        lambda: ask(queue, "l", old, 1, 10),
        lambda: Leases.of(queue, "l").commit("l", old, 1),
        lambda: read(world, queue, "l", old, 1),
    ):
        with pytest.raises(
            PreconditionFailed, match=f"epoch {old} of lease 'l' .* has expired, the current epoch is {epoch}"
        ):
            refused()
    # The batch is still available to the new one.
    assert plan(world, queue, "l", epoch, 0, 10) == {"batch": 1, "count": 10, "octets": 40}
    assert read(world, queue, "l", epoch, 1).bodies == BODIES[:10]


@pytest.mark.parametrize(
    ("options", "arguments", "text"),
    [
        ({"durable": False}, {}, "not durable"),
        ({"durable": True, "exclusive": True, "owner": "me"}, {}, "exclusive"),
        ({"durable": True, "auto_delete": True}, {}, "auto-delete"),
        ({"durable": True}, {"single_active_consumer": True}, "single active consumer"),
        ({"durable": True}, {"queue_type": "stream"}, "a stream"),
    ],
    ids=["transient", "exclusive", "auto-delete", "single", "stream"],
)
def test_queues_without_leases(world: World, options: dict[str, Any], arguments: dict[str, Any], text: str) -> None:
    queue = world.declare(**options, **arguments)
    with pytest.raises(PreconditionFailed, match=f"queue 'q' in vhost '/' does not support leases: it is .*{text}"):
        acquire(queue)
    assert queue.leases is None


def test_leases_and_batches_have_limits(world: World, queue: Queue) -> None:
    most = leases.MAX_LEASES
    epoch = acquire(queue)
    for number in range(most - 1):
        acquire(queue, f"other {number}")
    with pytest.raises(ResourceError, match=f"maximum of {most} leases"):
        acquire(queue, "one more")
    most = leases.MAX_BATCHES
    world.push(queue, *(f"m{number}" for number in range(most + 1)), persistent=True)
    world.run()
    for number in range(most):
        plan(world, queue, "l", epoch, number, 1)
    with pytest.raises(ResourceError, match=f"maximum of {most} uncommitted batches: commit the first"):
        ask(queue, "l", epoch, most, 1)
    assert plan(world, queue, "l", epoch, most - 1, 1) is not None
    Leases.of(queue, "l").commit("l", epoch, 1)
    assert plan(world, queue, "l", epoch, most, 1) is not None


def test_a_queue_in_exclusive_use_is_not_planned(world: World, queue: Queue) -> None:
    epoch = acquire(queue)
    consumer = Taker(queue, credit=0, join=False)
    consumer.exclusive = True
    queue.add_consumer(consumer)
    with pytest.raises(AccessRefused, match="in exclusive use"):
        ask(queue, "l", epoch, 0, 1)
    with pytest.raises(AccessRefused, match="in exclusive use"):
        acquire(queue)


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"x-lease": "other"}, NotFound, "lease 'other' .*does not exist"),
        ({"x-lease-batch": 2}, NotFound, "batch 2 .* does not exist"),
        ({"x-lease-first": 1}, PreconditionFailed, "a slice of 10 from index 1 is out of range"),
        ({"x-lease-count": 11}, PreconditionFailed, "has 10 messages"),
        ({"x-lease-count": None}, PreconditionFailed, "without 'x-lease-count', expected together with it"),
        ({"x-lease-first": -1}, PreconditionFailed, "'x-lease-first': received '-1'"),
    ],
    ids=["lease", "batch", "first", "count", "missing", "negative"],
)
def test_readers_of_missing_batches_are_refused(
    world: World, queue: Queue, changed: dict[str, Any], error: type[Exception], text: str
) -> None:
    epoch = acquire(queue)
    plan(world, queue, "l", epoch, 0, 10)
    arguments: dict[str, Any] = {
        "x-lease": "l",
        "x-lease-epoch": epoch,
        "x-lease-batch": 1,
        "x-lease-first": 0,
        "x-lease-count": 10,
    }
    Leases.check_reader(queue, arguments, True)
    arguments.update(changed)
    with pytest.raises(error, match=text):
        Leases.check_reader(queue, {name: value for name, value in arguments.items() if value is not None}, True)


def test_a_reader_does_not_acknowledge(world: World, queue: Queue) -> None:
    acquire(queue)
    with pytest.raises(PreconditionFailed, match="consume with no-ack"):
        Leases.check_reader(queue, {"x-lease": "l"}, False)


def test_neither_purge_nor_limits_nor_expiry_affect_leased_messages(world: World) -> None:
    queue = world.queue(durable=True, message_ttl=1000, max_length=5, dead_letter_exchange="")
    world.push(queue, *BODIES[:5], persistent=True)
    world.run()
    epoch = acquire(queue)
    assert plan(world, queue, "l", epoch, 0, 3) == {"batch": 1, "count": 3, "octets": 12}
    world.push(queue, "a", "b", "c", persistent=True)
    world.run()
    assert queue.ready_count == 5
    world.sleep(2000)
    assert queue.ready_count == 0 and queue.leased_count == 3
    world.push(queue, "d", persistent=True)
    assert queue.purge() == 1
    assert read(world, queue, "l", epoch, 1).bodies == BODIES[:3]


def test_expired_messages_are_not_leased(world: World) -> None:
    queue = world.queue(durable=True)
    world.broker.page_above = 2000
    for number, body in enumerate(BODIES):
        world.push(queue, body, persistent=True, ttl=100 if number % 2 else None)
    world.run()
    world.broker.page_down()
    assert queue.ready.backlog.paged
    epoch = acquire(queue)
    world.clock.time += 200  # no timer has run
    planned = plan(world, queue, "l", epoch, 0, 100)
    assert planned is not None and planned["count"] == 30
    assert read(world, queue, "l", epoch, 1).bodies == BODIES[::2]
    assert queue.ready_count == 0


def test_delayed_messages_are_not_leased_after_a_start(world: World) -> None:
    queue = world.queue(durable=True)
    for number, body in enumerate(BODIES[:10]):
        message = world.message(body, persistent=True)
        if number % 2:
            queue.delay(message, world.clock.now() + 5000)
        else:
            queue.push(message)
    after = restart(world, clean=True)
    queue = classic(after.vhost.queues["q"])
    epoch = acquire(queue)
    planned = plan(after, queue, "l", epoch, 0, 100)
    assert planned is not None and planned["count"] == 5
    assert read(after, queue, "l", epoch, 1).bodies == BODIES[0:10:2]
    after.sleep(5000)
    assert after.contents(queue) == BODIES[1:10:2]


def test_batches_follow_priorities_as_consumers_do(world: World) -> None:
    queue = world.queue(durable=True, max_priority=3)
    for number, body in enumerate(BODIES):
        world.push(queue, body, persistent=True, priority=number % 3)
    world.run()
    epoch = acquire(queue)
    plan(world, queue, "l", epoch, 0, 30)
    wanted = [*BODIES[2::3], *BODIES[1::3], *BODIES[0::3]]
    assert read(world, queue, "l", epoch, 1).bodies == wanted[:30]
    after = restart(world)
    queue = classic(after.vhost.queues["q"])
    assert read(after, queue, "l", epoch, 1).bodies == wanted[:30]
    Leases.of(queue, "l").commit("l", epoch, 1, [25])
    after.run()
    assert after.contents(queue) == [wanted[25], *wanted[30:]]


def test_a_paged_backlog_is_planned_without_reading_it() -> None:
    world = World(page_above=10_000)
    queue = world.queue(durable=True)
    world.push(queue, *BODIES, persistent=True)
    world.run()
    world.broker.page_down()
    assert queue.ready.backlog.paged > 40
    loads: list[int] = []
    load = world.log.load

    def counted(rows: array[int], slots: array[int], done: Callable[[list[Loaded]], None]) -> None:
        loads.append(len(rows))
        load(rows, slots, done)

    world.log.load = counted  # type: ignore[method-assign]
    epoch = acquire(queue)
    assert plan(world, queue, "l", epoch, 0, 50) == {"batch": 1, "count": 50, "octets": 200}
    assert sum(loads) <= 10  # the next messages for consumers may be loaded, but none of the lease
    assert queue.ready.memory < 10_000
    world.log.load = load  # type: ignore[method-assign]
    assert read(world, queue, "l", epoch, 1, 20, 20).bodies == BODIES[20:40]
    Leases.of(queue, "l").release("l")
    world.run()
    assert world.contents(queue) == BODIES and queue.ready.memory == 0


def test_a_load_that_a_plan_overtakes_is_void() -> None:
    world = World(page_above=10_000)
    queue = world.queue(durable=True)
    world.push(queue, *BODIES, persistent=True)
    world.run()
    world.broker.page_down()
    while queue.get(True) is not None:
        pass
    assert queue.ready.backlog.loading
    epoch = acquire(queue)
    ready = queue.ready_count
    planned = plan(world, queue, "l", epoch, 0, 10)
    assert planned is not None and planned["count"] == 10
    world.run()
    assert queue.ready_count == ready - 10
    assert world.contents(queue) == BODIES[60 - ready + 10 :]


def test_transient_messages_are_written_when_they_are_planned() -> None:
    world = World(page_above=10_000, overflow=True)
    queue = world.queue(durable=True)
    for number, body in enumerate(BODIES):
        world.push(queue, body, persistent=number % 10 == 0)
    for _ in range(5):
        world.run()
        world.broker.page_down()
    assert any(chunk.overflow for chunk in queue.ready.backlog.chunks)
    epoch = acquire(queue)
    assert plan(world, queue, "l", epoch, 0, 60) == {"batch": 1, "count": 60, "octets": 240}
    assert read(world, queue, "l", epoch, 1).bodies == BODIES
    assert world.overflow is not None
    world.overflow.flush()
    assert not world.overflow.rows
    after = restart(world)
    queue = classic(after.vhost.queues["q"])
    assert read(after, queue, "l", epoch, 1).bodies == BODIES
    Leases.of(queue, "l").commit("l", epoch, 1)
    after.run()
    assert not after.log.rows


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_batches_survive_a_restart(world: World, queue: Queue, clean: bool) -> None:
    other = acquire(queue, "other")
    epoch = acquire(queue, timeout=7)
    plan(world, queue, "l", epoch, 0, 10)
    plan(world, queue, "other", other, 0, 10)
    plan(world, queue, "l", epoch, 1, 10)
    Leases.of(queue, "l").commit("l", epoch, 1)
    after = restart(world, clean)
    queue = after.vhost.queues["q"]
    assert queue.leased_count == 20 and queue.ready_count == 30
    lease = Leases.of(queue, "l").find_current("l", epoch)
    assert lease.committed == 1 and lease.timeout == 7000
    assert plan(after, queue, "l", epoch, 1, 10) == {"batch": 2, "count": 10, "octets": 40}
    assert read(after, queue, "l", epoch, 2).bodies == BODIES[20:30]
    assert read(after, queue, "other", other, 1).bodies == BODIES[10:20]
    assert acquire(queue, "third") > max(epoch, other)
    Leases.of(queue, "other").release("other")
    Leases.of(queue, "l").commit("l", epoch, 2, [0])
    after.run()
    assert after.contents(queue) == [*BODIES[10:21], *BODIES[30:]]


def test_an_uncommitted_batch_does_not_survive_a_crash(world: World, queue: Queue) -> None:
    epoch = acquire(queue)
    world.run()
    world.held_log.held = True
    ask(queue, "l", epoch, 0, 10)
    world.end_turn()
    log, recovery = world.held_log.recovery()
    after = World(log=log, recovery=recovery)
    assert after.vhost.queues["q"].leased_count == 0
    assert after.contents(after.vhost.queues["q"]) == BODIES


def test_an_abandoned_lease_returns_unread_messages(world: World, queue: Queue) -> None:
    epoch = acquire(queue, timeout=10)
    for number in range(3):
        plan(world, queue, "l", epoch, number, 10)
    read(world, queue, "l", epoch, 2, 3, 1)
    world.sleep(9_000)
    plan(world, queue, "l", epoch, 0, 10)
    world.sleep(9_000)
    assert queue.leased_count == 30
    world.sleep(1_000)
    assert queue.leased_count == 10 and queue.ready_count == 50
    with pytest.raises(PreconditionFailed, match="or timed out"):
        Leases.of(queue, "l").commit("l", epoch, 2)
    epoch = acquire(queue)
    assert list(Leases.of(queue, "l").find_current("l", epoch).batches) == [2]
    assert Leases.of(queue, "l").commit("l", epoch, 2) == 2
    assert plan(world, queue, "l", epoch, 2, 20) == {"batch": 3, "count": 20, "octets": 80}
    assert read(world, queue, "l", epoch, 3).bodies == [*BODIES[:10], *BODIES[20:30]]


def test_a_lease_with_a_reader_is_not_abandoned(world: World, queue: Queue) -> None:
    epoch = acquire(queue, timeout=10)
    plan(world, queue, "l", epoch, 0, 10)
    plan(world, queue, "l", epoch, 1, 10)
    reader = LeaseReader(queue, "l", epoch, 1, 0, 10, credit=1)
    world.sleep(60_000)
    assert queue.leased_count == 20
    queue.remove_consumer(reader)
    world.sleep(10_000)
    assert queue.leased_count == 10


def test_whether_a_batch_was_read_survives_a_start(world: World, queue: Queue) -> None:
    epoch = acquire(queue, timeout=10)
    plan(world, queue, "l", epoch, 0, 10)
    plan(world, queue, "l", epoch, 1, 10)
    read(world, queue, "l", epoch, 1, 0, 1)
    after = restart(world)
    queue = after.vhost.queues["q"]
    after.sleep(10_000)
    assert queue.leased_count == 10 and queue.ready_count == 50
    assert queue.leases is not None and [batch.read for batch in queue.leases.find("l").batches.values()] == [True]


def test_that_a_batch_is_read_is_on_disk_before_it_is_delivered(world: World, queue: Queue) -> None:
    epoch = acquire(queue)
    plan(world, queue, "l", epoch, 0, 10)
    world.held_log.held = True
    reader = LeaseReader(queue, "l", epoch, 1, 0, 10)
    world.run()
    assert not reader.bodies
    world.held_log.held = False
    world.held_log.release_all()
    world.run()
    assert reader.bodies == BODIES[:10]


def test_deleting_a_queue_deletes_its_leases(world: World, queue: Queue) -> None:
    epoch = acquire(queue)
    plan(world, queue, "l", epoch, 0, 10)
    plan(world, queue, "l", epoch, 1, 10)
    Leases.of(queue, "l").commit("l", epoch, 1, [1])  # on its way back
    reader = LeaseReader(queue, "l", epoch, 2, 0, 10, credit=1)
    with pytest.raises(PreconditionFailed, match="not empty"):
        world.vhost.delete_queue("q", None, if_empty=True)
    world.vhost.delete_queue("q", None)
    assert reader.gone
    world.run()
    assert not world.log.rows
    queue = world.queue(durable=True)
    with pytest.raises(NotFound):
        Leases.of(queue, "l").find_current("l", epoch)
    after = restart(world)
    assert not [kind for kind, _ in after.held_log.metadata if kind.startswith("lease")]


def test_a_queue_with_only_leased_messages_is_not_empty(world: World, queue: Queue) -> None:
    epoch = acquire(queue)
    plan(world, queue, "l", epoch, 0, 60)
    with pytest.raises(PreconditionFailed, match="not empty"):
        world.vhost.delete_queue("q", None, if_empty=True)


def test_an_unused_queue_with_leased_messages_stays(world: World) -> None:
    queue = world.queue(durable=True, expires=1000)
    world.push(queue, "a", persistent=True)
    epoch = acquire(queue)
    plan(world, queue, "l", epoch, 0, 1)
    world.sleep(5000)
    assert "q" in world.vhost.queues
    Leases.of(queue, "l").commit("l", epoch, 1)
    world.sleep(1000)
    assert "q" not in world.vhost.queues


def test_a_batch_waits_for_loading_and_fails_if_the_queue_is_deleted(world: World) -> None:
    world.broker.page_above = 2000
    queue = world.queue(durable=True, message_ttl=60_000)
    world.push(queue, *BODIES, persistent=True)
    world.run()
    world.broker.page_down()
    epoch = acquire(queue)
    world.end_turn()
    answer = ask(queue, "l", epoch, 0, 60)
    assert not answer.told and queue.leased_count
    with pytest.raises(PreconditionFailed, match=r"batch 1 of lease .* is still being created"):
        ask(queue, "l", epoch, 1, 60)
    same = ask(queue, "l", epoch, 0, 60)
    world.vhost.delete_queue("q", None)
    assert isinstance(answer.error, NotFound) and isinstance(same.error, NotFound)
    world.run()
    assert not world.log.rows


def test_acquiring_again_ends_a_plan_that_waits(world: World) -> None:
    world.broker.page_above = 2000
    queue = world.queue(durable=True, message_ttl=60_000)
    world.push(queue, *BODIES, persistent=True)
    world.run()
    world.broker.page_down()
    epoch = acquire(queue)
    world.end_turn()
    ask(queue, "l", epoch, 0, 60)
    lease = queue.make_leases().acquire("l")
    taken = lease.batches[1].count
    assert 0 < taken < 60
    world.run()
    assert plan(world, queue, "l", lease.epoch, 0, 60) == {"batch": 1, "count": taken, "octets": 4 * taken}
    assert world.contents(queue) == BODIES[taken:]


def test_a_batch_excludes_unacked_entries_between_its_own(world: World, queue: Queue) -> None:
    consumer = Taker(queue, credit=5)
    world.broker.holders[Keeper(consumer)] = None
    world.run()
    consumer.ack(2)
    consumer.requeue(2)
    epoch = acquire(queue)
    plan(world, queue, "l", epoch, 0, 10)
    assert read(world, queue, "l", epoch, 1).bodies == [BODIES[4], *BODIES[5:14]]
    after = restart(world)
    queue = after.vhost.queues["q"]
    assert read(after, queue, "l", epoch, 1).bodies == [BODIES[4], *BODIES[5:14]]
    assert after.contents(queue) == [*BODIES[2:4], *BODIES[14:]]


def test_a_planned_batch_of_a_million_costs_tens_of_bytes_each() -> None:
    batch = Batch(1, 0, 0)
    for seq in range(1, 1_000_001):
        batch.add(4, seq // 300, seq % 300, seq, 200, 0)
    n_bytes = sum(
        array.buffer_info()[1] * array.itemsize
        for piece in batch.pieces
        for array in (piece.seqs, piece.rows, piece.slots, piece.sizes)
    )
    assert n_bytes + 500 * len(batch.pieces) < 40 * batch.count
    assert len(batch.record()["runs"]) < 10


def test_runs_are_read_as_they_were_written() -> None:
    batch = Batch(1, 0, 0)
    for priority, seq in ((9, 5), (9, 6), (9, 200), (4, 1), (4, 2), (4, 7), (0, 3), (0, 1 << 40)):
        batch.add(priority, 1, 1, seq, 1, 0)
    found = [seq for first, count in decode_runs(encode_runs(batch.pieces)) for seq in range(first, first + count)]
    assert found == list(batch.seqs())
