"""Deep queues: paged-out messages are paged in completely, in order and once."""

from __future__ import annotations

import pytest

from leveret.broker.log import RecoveredQueue
from leveret.broker.message import ENTRY_OVERHEAD, Entry
from leveret.broker.queues.classic.backlog import CHUNK_BYTES, Chunk, PagedRun, recovered_chunk
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.classic.ready_list import LOW_HEAD, MAX_YOUNG, PAGED_AT_ONCE
from tests.broker.support import Keeper, Taker, World, figures

BODIES = [f"{number:04}" for number in range(60)]


@pytest.fixture
def small() -> World:
    return World(page_above=10_000)


def fill(world: World, queue: ClassicQueue, *, persistent: bool = True, bodies: list[str] = BODIES) -> None:
    world.push(queue, *bodies, persistent=persistent)
    world.run()
    world.broker.page_down()


def test_a_deep_queue_keeps_positions_only(small: World) -> None:
    queue = small.queue(durable=True)
    fill(small, queue)
    assert queue.ready.backlog.paged > 40
    assert queue.ready.memory < 15_000
    assert figures(queue) == (60, 240, 0)
    assert small.contents(queue) == BODIES
    assert figures(queue) == (0, 0, 0) and queue.ready.memory == 0


def test_entries_are_paged_only_after_their_commit(small: World) -> None:
    small.held_log.held = True
    queue = small.queue(durable=True)
    fill(small, queue)
    assert queue.ready.backlog.paged == 0
    small.held_log.release_all()
    small.broker.page_down()
    assert queue.ready.backlog.paged > 40
    assert small.contents(queue) == BODIES


def test_consumers_drain_it_in_order_while_more_arrive(small: World) -> None:
    queue = small.queue(durable=True)
    fill(small, queue)
    consumer = Taker(queue)
    small.push(queue, "new1", persistent=True)
    small.run()
    small.push(queue, "new2", persistent=True)
    small.run()
    assert consumer.history == [*BODIES, "new1", "new2"]
    assert figures(queue) == (0, 0, 62) and queue.ready.memory == 0


def test_requeued_entries_return_to_their_place(small: World) -> None:
    queue = small.queue(durable=True)
    fill(small, queue)
    consumer = Taker(queue, credit=20)
    small.run()
    assert len(consumer.taken) == 20
    consumer.requeue_all()
    small.run()
    assert small.contents(queue) == BODIES


def test_transient_messages_stay_in_memory_without_an_overflow_log(small: World) -> None:
    queue = small.queue()
    fill(small, queue, persistent=False)
    assert queue.ready.backlog.paged == 0
    assert small.contents(queue) == BODIES


def test_with_an_overflow_log_they_are_paged_too() -> None:
    world = World(page_above=10_000, overflow=True)
    queue = world.queue()
    fill(world, queue, persistent=False)
    world.run()
    world.broker.page_down()
    assert queue.ready.backlog.paged > 40
    assert figures(queue) == (60, 240, 0)
    assert world.contents(queue) == BODIES
    world.run()
    assert world.overflow is not None and world.overflow.rows == {} and world.log.rows == {}


def test_paging_keeps_pace_with_a_publisher_that_sends_much_in_each_turn() -> None:
    world = World(page_above=10_000, overflow=True)
    queue = world.queue()
    bodies = ["m"] * (4 * PAGED_AT_ONCE)
    for _ in range(4):
        world.push(queue, *bodies)
        world.run()
    backlog = queue.ready.backlog
    assert len(backlog) == 4 * len(bodies)
    assert len(backlog) - backlog.paged <= 2 * len(bodies)


def test_few_young_entries_stay_in_memory_although_the_queue_has_memory_left() -> None:
    share = 8 * LOW_HEAD * ENTRY_OVERHEAD
    world = World(page_above=share)
    queue = world.queue(durable=True)
    fill(world, queue, bodies=["m"] * (9 * LOW_HEAD))
    ready = queue.ready
    head = len(ready.backlog.head)
    assert head > LOW_HEAD and ready.backlog.paged
    for _ in range(3):
        world.push(queue, *["m"] * MAX_YOUNG, persistent=True)
        world.run()
    assert ready.memory < share
    assert len(ready.backlog) - ready.backlog.paged - head <= 2 * MAX_YOUNG


def test_a_mixture_of_both() -> None:
    world = World(page_above=10_000, overflow=True)
    queue = world.queue(durable=True)
    for number, body in enumerate(BODIES):
        world.push(queue, body, persistent=number % 3 == 0)
    world.run()
    for _ in range(5):
        world.broker.page_down()
        world.run()
    assert queue.ready.backlog.paged > 40
    assert {chunk.overflow for chunk in queue.ready.backlog.chunks} == {True, False}
    assert world.contents(queue) == BODIES


def test_purge_of_a_mixture() -> None:
    world = World(page_above=10_000, overflow=True)
    queue = world.queue(durable=True)
    for number, body in enumerate(BODIES):
        world.push(queue, body, persistent=number % 3 == 0)
    for _ in range(5):
        world.run()
        world.broker.page_down()
    assert queue.purge() == 60
    world.run()
    assert world.overflow is not None
    world.overflow.flush()
    assert world.overflow.rows == {} and world.log.rows == {}


def test_each_priority_is_paged(small: World) -> None:
    queue = small.queue(durable=True)
    for body in BODIES:
        small.push(queue, body, persistent=True, priority=int(body) % 3)
    small.run()
    small.broker.page_down()
    assert queue.ready.levels is not None and sum(level.paged for level in queue.ready.levels.values()) > 40
    assert figures(queue) == (60, 240, 0)
    expected = sorted(BODIES, key=lambda body: (-(int(body) % 3), body))
    assert small.contents(queue) == expected


def test_a_later_higher_priority_overtakes_paged_entries(small: World) -> None:
    queue = small.queue(durable=True)
    fill(small, queue)
    small.push(queue, "urgent", persistent=True, priority=9)
    consumer = Taker(queue, credit=2)
    small.run()
    assert consumer.history == ["urgent", "0000"]


def test_page_down_pages_out_entries_in_memory(world: World) -> None:
    queue = world.queue(durable=True)
    world.push(queue, *BODIES, persistent=True)
    world.run()
    assert queue.ready.backlog.paged == 0
    world.broker.page_above = 10_000
    world.broker.page_down()
    assert queue.ready.backlog.paged > 40
    assert figures(queue) == (60, 240, 0)
    assert world.contents(queue) == BODIES


def test_page_down_spares_queues_below_their_share(world: World) -> None:
    queue = world.queue(durable=True)
    world.push(queue, "a", persistent=True)
    world.run()
    world.broker.page_above = 10_000
    world.broker.page_down()
    assert len(queue.ready.backlog.head) == 1


@pytest.mark.parametrize("persistent", [True, False])
def test_page_down_shortens_the_head_of_a_queue_that_pages_already(persistent: bool) -> None:
    world = World(page_above=30_000, overflow=True)
    queue = world.queue(durable=True)
    fill(world, queue, persistent=persistent)
    world.run()
    world.broker.page_down()
    paged = queue.ready.backlog.paged
    assert paged > 10 and queue.ready.memory > 10_000
    world.broker.page_above = 4_000
    for _ in range(2):
        world.broker.page_down()
        world.run()
    assert queue.ready.backlog.paged > paged and queue.ready.memory <= 4_000
    assert figures(queue) == (60, 240, 0)
    assert world.contents(queue) == BODIES
    assert queue.ready.memory == 0


def test_the_head_stays_while_the_next_entries_are_read(small: World) -> None:
    queue = small.queue(durable=True)
    fill(small, queue)
    consumer = Taker(queue, credit=len(queue.ready.backlog.head) - 3)
    small.end_turn()
    assert queue.ready.backlog.loading and len(queue.ready.backlog.head) == 3
    small.broker.page_above = 1000
    small.broker.page_down()
    consumer.give(-1)
    small.run()
    assert consumer.history == BODIES


def test_the_next_chunk_is_read_early_although_young_entries_use_up_the_memory(small: World) -> None:
    queue = small.queue(durable=True)
    large = "x" * (CHUNK_BYTES // 5)
    fill(small, queue, bodies=[large] * 20)
    backlog = queue.ready.backlog
    consumer = Taker(queue, credit=len(backlog.head))
    small.run()
    count = len(backlog.head)
    assert count > 1 and len(backlog.chunks) > 1
    small.broker.page_above = 8 * CHUNK_BYTES
    small.held_log.held = True
    small.push(queue, *[large] * 30, persistent=True)
    consumer.give(count // 2 - 1)
    small.end_turn()
    assert not backlog.loading
    consumer.give(2)
    small.end_turn()
    assert queue.ready.memory > small.broker.page_above // 2
    assert backlog.loading and backlog.head


def test_the_publisher_is_known_after_paging(small: World) -> None:
    queue = small.queue(durable=True)
    publishers = [7, 7, *(number % 3 for number in range(58))]
    for body, publisher in zip(BODIES, publishers, strict=True):
        small.push(queue, body, persistent=True, publisher=publisher)
    small.run()
    small.broker.page_down()
    assert queue.ready.backlog.paged > 40
    consumer = Taker(queue)
    small.run()
    assert [entry.message.publisher for entry in consumer.taken] == publishers


def test_a_rejecting_channel_does_not_get_it_after_paging() -> None:
    world = World(strict=True)
    queue = world.queue(durable=True)
    consumer = Taker(queue, credit=10)
    world.push(queue, *BODIES, persistent=True)
    world.run()
    for entry in reversed(consumer.taken[:10]):
        queue.refuse(entry, consumer.scope)
        queue.requeue(entry)
    world.broker.page_above = 2000
    world.broker.page_down()
    world.run()
    world.broker.page_down()
    assert queue.ready.backlog.paged > 55
    world.broker.page_above = 64 << 20
    consumer.give(-1)
    world.run()
    assert consumer.history == BODIES
    assert queue.ready_count == 10
    Taker(queue, "other", credit=0).give(-1)
    world.run()
    assert queue.ready_count == 0 and queue.ready.refusals == {}


def test_paged_entries_expire(small: World) -> None:
    queue = small.queue(durable=True, message_ttl=1000)
    fill(small, queue)
    small.sleep(1000)
    assert figures(queue) == (0, 0, 0) and queue.ready.memory == 0
    assert small.log.rows == {}


def test_dead_letters_of_paged_entries_keep_their_messages(small: World) -> None:
    dead = small.queue("dead", durable=True)
    queue = small.queue(durable=True, message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key="dead")
    fill(small, queue)
    small.sleep(1000)
    small.broker.page_down()
    assert dead.ready_count == 60
    assert small.contents(dead) == BODIES
    assert small.log.rows == {}


def test_a_delivered_message_is_still_redelivered_after_paging(small: World) -> None:
    queue = small.queue(durable=True)
    small.push(queue, *BODIES[:5], persistent=True)
    small.run()
    taken = [queue.get(False) for _ in range(5)]
    for entry in reversed(taken):
        assert entry is not None
        queue.requeue(entry)
    small.run()
    small.broker.page_above = 1000
    small.broker.page_down()
    assert queue.ready.backlog.paged >= 3
    while queue.ready_count:
        entry = queue.get(True)
        if entry is None:
            small.run()
            continue
        assert entry.acquired_count == 2


def test_the_delivery_limit_counts_on_after_paging(small: World) -> None:
    queue = small.queue(durable=True, delivery_limit=3)
    small.push(queue, *BODIES[:10], persistent=True)
    for attempt in range(4):
        small.broker.page_above = 10_000
        small.run()
        taken: list[Entry] = []
        while len(taken) < 10:
            entry = queue.get(False)
            if entry is None:
                small.run()
                continue
            assert entry.delivery_count == attempt
            taken.append(entry)
        for acquired in reversed(taken):
            queue.requeue(acquired)
        small.run()
        small.broker.page_above = 1000
        small.broker.page_down()
    assert figures(queue) == (0, 0, 0)


def test_a_queue_in_a_fan_out_pages_without_the_others(small: World) -> None:
    one, two = small.queue("one", durable=True), small.queue("two", durable=True)
    consumer = Taker(two, no_ack=True)
    for body in BODIES:
        message = small.message(body, persistent=True)
        for queue in (one, two):
            queue.push(message)
    small.run()
    small.broker.page_down()
    assert consumer.history == BODIES
    assert one.ready.backlog.paged > 40
    assert small.contents(one) == BODIES


def test_unacked_entries_survive_a_purge_of_paged_ones(small: World) -> None:
    queue = small.queue(durable=True)
    fill(small, queue)
    consumer = Taker(queue, credit=30)
    small.broker.holders[Keeper(consumer)] = None
    small.run()
    queue.purge()
    small.run()
    log, recovery = small.held_log.recovery()
    after = World(log=log, recovery=recovery)
    assert after.contents(after.vhost.queues["q"]) == BODIES[:30]


def test_large_messages_are_not_read_back_beyond_the_share(world: World) -> None:
    share = world.broker.page_above = 4 << 20
    queue = world.queue(durable=True)
    for number in range(100):
        world.push(queue, f"{number:04}".ljust(100_000), persistent=True)
        world.run()
        world.broker.page_down()
        assert queue.ready.memory < 1.5 * share
    assert queue.ready_count == 100
    consumer = Taker(queue, credit=1)
    world.run()
    while queue.ready_count:
        consumer.ack()
        consumer.give(1)
        world.run()
        assert queue.ready.memory < 1.5 * share
    assert [body[:4] for body in consumer.history] == [f"{number:04}" for number in range(100)]


WIDE = (1 << 32, 1 << 40, 1 << 19, 1 << 20)


def positions(chunk: Chunk) -> list[tuple[int, int, int, int]]:
    return list(zip(chunk.seqs, chunk.rows, chunk.slots, chunk.sizes, strict=True))


@pytest.mark.parametrize("part", range(4))
def test_large_numbers_widen_a_chunk(part: int) -> None:
    small = (1, 2, 3, 4)
    large = tuple(WIDE[at] if at == part else (5, 6, 7, 8)[at] for at in range(4))
    chunk = Chunk(False)
    for seq, row, slot, size in (small, large):
        chunk.add(row, slot, seq, size, 0)
    assert positions(chunk) == [small, large]
    assert positions(chunk.part(1, 2)) == [large]
    other = Chunk(False)
    other.add(small[1], small[2], small[0], small[3], 0)
    other.extend(chunk.part(1, 2))
    assert positions(other) == [small, large]
    assert chunk.bytes == other.bytes == small[3] + large[3]


@pytest.mark.parametrize("part", [None, 0, 1, 2, 3])
def test_recovered_positions_are_kept_whatever_their_size(part: int | None) -> None:
    recovered = RecoveredQueue()
    last = tuple(WIDE[at] if at == part else (5, 6, 7, 8)[at] for at in range(4))
    for seq, row, slot, size in ((1, 2, 3, 4), last):
        recovered.seqs.append(seq)
        recovered.rows.append(row)
        recovered.slots.append(slot)
        recovered.sizes.append(size)
    chunk = recovered_chunk(recovered, 0, 2)
    assert positions(chunk) == [(1, 2, 3, 4), last]
    assert chunk.wide == (part is not None)
    assert chunk.bytes == 4 + last[3]


@pytest.mark.parametrize("last", [9, 1 << 40])
@pytest.mark.parametrize("first", [7, 1 << 40])
def test_a_chunk_keeps_the_publisher_of_each_entry(first: int, last: int) -> None:
    publishers = [first, first, 8, last]
    chunk = Chunk(False, first)
    for seq, publisher in enumerate(publishers):
        chunk.add(seq, seq, seq, seq, publisher)
    assert [chunk.publisher_of(index) for index in range(4)] == publishers
    part = chunk.part(1, 4)
    part.extend(chunk)
    assert [part.publisher_of(index) for index in range(7)] == publishers[1:] + publishers
    assert chunk.wide == (max(publishers) >= 1 << 32)


@pytest.mark.parametrize("publishers", [(7, 7), (7, 8), (7, 1 << 48), (1 << 48, 7)])
@pytest.mark.parametrize("several", [False, True])
def test_a_run_of_any_publishers_is_added_to_a_chunk(publishers: tuple[int, int], several: bool) -> None:
    chunk = Chunk(False, 5)
    chunk.add(1, 0, 1, 10, 5)
    if several:
        chunk.add(1, 1, 2, 10, 6)
    before = len(chunk.seqs)
    run = PagedRun(False)
    for index, publisher in enumerate(publishers):
        run.add(2, index, 10 + index, 10, publisher)
    chunk.add_run(run, 0, 1)
    chunk.add_run(run, 1, 2)
    found = [chunk.publisher_of(index) for index in range(len(chunk.seqs))]
    assert found == [5, 6][:before] + list(publishers)
    assert list(chunk.seqs)[before:] == [10, 11]
    assert chunk.wide == (max(publishers) >= 1 << 32)
    other = Chunk(False, 5)
    other.add(3, 0, 20, 10, 6)
    chunk.extend(other)
    assert chunk.publisher_of(len(chunk.seqs) - 1) == 6


def test_a_message_that_becomes_visible_after_younger_ones_were_paged_out(small: World) -> None:
    queue = small.queue(durable=True)
    small.push(queue, *BODIES[:30], persistent=True)
    late = queue.prepare(small.message("late", persistent=True))
    fill(small, queue, bodies=BODIES[30:])
    backlog = queue.ready.backlog
    assert backlog.chunks and not backlog.young
    queue.insert_new(late)
    small.push(queue, "new", persistent=True)
    contents = small.contents(queue)
    assert contents.index("late") <= 30
    contents.remove("late")
    assert contents == [*BODIES, "new"]
