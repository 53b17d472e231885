"""The work at the end of one turn is limited: the rest follows in the next turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret.broker.broker import OUTPUT_WORK
from leveret.broker.consumer import Output
from leveret.broker.errors import BrokerError
from leveret.broker.jobs import MAX_AT_ONCE, STEP_WORK
from leveret.broker.leases.batch import Batch
from leveret.broker.leases.leases import Leases
from leveret.broker.message import Entry, Message
from leveret.broker.queues.classic import delayed
from leveret.broker.queues.classic.browsing import ASK_SHIFT, PORTION, VISIT_WORK
from leveret.broker.queues.classic.dispatcher import MAX_DELIVERED
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.queue import Queue
from leveret.broker.streams.queue import StreamQueue
from tests.broker.support import Taker, World


class Writing(Output):
    """A connection that counts how often it wrote."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.flushed = 0

    def mark(self) -> None:
        self.world.broker.outputs.append(self)

    def flush(self) -> None:
        self.flushed += 1


def test_one_queue_delivers_a_limited_number_per_turn(world: World) -> None:
    queue = world.queue()
    world.push(queue, *(["m"] * (MAX_DELIVERED * 2 + 10)))
    taker = Taker(queue, credit=MAX_DELIVERED * 4)
    world.broker.end_turn()
    assert len(taker.bodies()) == MAX_DELIVERED
    world.run()
    assert len(taker.bodies()) == MAX_DELIVERED * 2 + 10


def test_more_input_may_cause_more_output(world: World) -> None:
    queue = world.queue()
    world.push(queue, *(["m"] * (MAX_DELIVERED * 3)))
    taker = Taker(queue, credit=MAX_DELIVERED * 4)
    world.broker.inputs += 1
    world.broker.end_turn()
    assert len(taker.bodies()) == MAX_DELIVERED * 2
    assert world.broker.inputs == 0


def test_many_queues_are_served_over_several_turns(world: World) -> None:
    queues = [world.queue(f"q{number}") for number in range(STEP_WORK // 2)]
    world.run()
    takers = [Taker(queue, credit=1) for queue in queues]
    world.run()
    for queue in queues:
        world.push(queue, "m")
    world.broker.end_turn()
    served = sum(len(taker.bodies()) for taker in takers)
    assert 0 < served <= STEP_WORK // 2
    world.run()
    assert all(taker.bodies() == ["m"] for taker in takers)


def test_many_connections_are_written_to_over_several_turns(world: World) -> None:
    outputs = [Writing(world) for _ in range(STEP_WORK // OUTPUT_WORK * 2 + 1)]
    for output in outputs:
        output.mark()
    world.broker.end_turn()
    assert [output.flushed for output in outputs] == [1] * (STEP_WORK // OUTPUT_WORK) + [0] * (
        len(outputs) - STEP_WORK // OUTPUT_WORK
    )
    world.run()
    assert all(output.flushed == 1 for output in outputs)


def test_one_message_displaces_many_over_several_turns(world: World) -> None:
    many = STEP_WORK * 3
    queue = world.queue(max_length_bytes=many)
    world.push(queue, *(["m"] * many))
    world.run()
    world.push(queue, "m" * many)
    left = queue.ready_count
    assert many - STEP_WORK - 2 <= left < many
    world.broker.end_turn()
    assert 1 < queue.ready_count < left
    world.run()
    assert world.contents(queue) == ["m" * many]


def test_overflow_moves_from_queue_to_queue_without_recursion(world: World) -> None:
    """A chain of queues of length 0: a dead letter passes through all of them, however many."""
    length = 2000
    for number in range(length):
        world.queue(f"q{number}", max_length=0, dead_letter_exchange="", dead_letter_routing_key=f"q{number + 1}")
    last = world.queue(f"q{length}")
    before = world.broker.work
    world.push(world.vhost.queues["q0"], "m")
    assert world.broker.work - before < STEP_WORK
    turns = 0
    while not last.ready_count:
        world.broker.end_turn()
        turns += 1
    assert turns > 10
    [entry] = last.ready.backlog.head
    assert entry.overlay is not None
    deaths = entry.overlay.headers["x-death"]
    assert isinstance(deaths, list) and len(deaths) == length
    world.run()
    assert sum(queue.ready_count for queue in world.vhost.queues.values()) == 1


def test_bytes_of_hidden_entries_are_counted(world: World) -> None:
    queue = world.queue(max_length_bytes=10, overflow="reject-publish")
    queue.hidden.add(1, 4)
    queue.hidden.add(2, 5)
    assert not world.push(queue, "mm")
    queue.hidden.discard(1)
    queue.hidden.discard(1)
    assert (len(queue.hidden), queue.hidden.bytes) == (1, 5)
    assert world.push(queue, "mm")


class Asked(Taker):
    """A consumer that counts its calls, at a given cost in units of work."""

    cost = 1000

    def __init__(self, queue: Queue, **options: Any) -> None:
        super().__init__(queue, only=b"mine", join=False)
        self.select()
        self.asked = 0
        self.takes = False
        self.priority = options.get("priority", 0)
        queue.add_consumer(self)

    def wants(self, message: Message, entry: Entry | None) -> bool:
        self.asked += 1
        self.queue.broker.work += self.cost
        return self.takes


def test_many_consumers_are_asked_about_one_entry_over_several_turns(world: World) -> None:
    queue = world.queue()
    takers = [Asked(queue) for _ in range(20)]
    world.run()
    world.push(queue, "a")
    world.broker.end_turn()
    assert sum(taker.asked for taker in takers) == STEP_WORK // Asked.cost + 1
    world.run()
    assert [taker.asked for taker in takers] == [1] * len(takers)
    takers[13].takes = True
    world.push(queue, "b")
    world.run()
    assert takers[13].bodies() == ["b"] and world.contents(queue) == ["a"]


def test_many_priorities_of_consumers_are_asked_over_several_turns(world: World) -> None:
    queue = world.queue()
    takers = [Asked(queue, priority=number) for number in range(20)]
    world.run()
    world.push(queue, "a")
    world.broker.end_turn()
    assert 0 < sum(taker.asked for taker in takers) < len(takers)
    world.run()
    assert [taker.asked for taker in takers] == [1] * len(takers)


def test_a_consumer_added_meanwhile_is_asked_too(world: World) -> None:
    queue = world.queue()
    takers = [Asked(queue) for _ in range(20)]
    world.run()
    world.push(queue, "a")
    world.broker.end_turn()
    late = Asked(queue)
    late.takes = True
    world.run()
    assert late.bodies() == ["a"]
    assert all(taker.asked for taker in takers)


def test_the_search_for_an_immediate_consumer_is_limited(world: World) -> None:
    queue = world.queue()
    takers = [Asked(queue) for _ in range(20)]
    world.run()
    assert not queue.can_deliver_now(world.message("a"))
    assert sum(taker.asked for taker in takers) == STEP_WORK // Asked.cost
    takers[0].takes = True
    assert queue.can_deliver_now(world.message("a"))


def test_readers_of_a_stream_are_served_over_several_turns(world: World) -> None:
    stream = world.declare("s", durable=True, queue_type="stream")
    readers = [Taker(stream, credit=10) for _ in range(STEP_WORK + 500)]
    world.run()
    world.push(stream, "a", persistent=True)
    world.broker.end_turn()
    world.broker.end_turn()
    served = sum(len(reader.taken) for reader in readers)
    assert 0 < served <= STEP_WORK + 1
    world.run()
    assert all(reader.bodies() == ["a"] for reader in readers)


def test_a_stream_reader_skips_messages_over_several_turns(world: World) -> None:
    stream = world.declare("s", durable=True, queue_type="stream")
    world.push(stream, *(["m"] * 3000), persistent=True)
    world.push(stream, "mine", persistent=True)
    world.run()
    assert isinstance(stream, StreamQueue)
    reader = Asked(stream)
    reader.cost = 10
    stream.readers[reader].next = 1
    world.broker.end_turn()
    assert 0 < reader.asked <= STEP_WORK // reader.cost + 64
    world.run()
    assert reader.asked == 3001


def test_delayed_entries_become_visible_over_several_turns(world: World) -> None:
    queue = world.queue()
    many = delayed.MAX_RELEASED_AT_ONCE * 2 + 10
    for number in range(many):
        queue.delay(world.message(str(number)), world.clock.now() + 1000)
    world.clock.time += 1001
    world.broker.timers.run(world.clock.now())
    assert queue.ready_count == delayed.MAX_RELEASED_AT_ONCE
    for _ in range(4):
        world.sleep(2)
    assert world.contents(queue) == [str(number) for number in range(many)]
    assert not queue.delayed_count


def test_the_server_is_notified_of_each_step_of_a_job(world: World) -> None:
    steps: list[int] = []
    world.broker.jobs.stepped = lambda: steps.append(world.broker.work)
    queue = world.queue()
    world.push(queue, *(["m"] * (STEP_WORK * 3)))
    Taker(queue, credit=STEP_WORK * 3, no_ack=True)
    world.run()
    assert not steps  # these steps only deliver
    world.push(queue, *(["m"] * (STEP_WORK * 3)))
    queue.purge()
    world.run()
    assert len(steps) >= 2 and all(0 < work <= 2 * STEP_WORK for work in steps)


def test_work_that_comes_late_in_a_turn_waits_for_the_next(world: World) -> None:
    done: list[str] = []

    def pieces(name: str) -> Iterator[int]:
        done.append(name)
        yield 1

    jobs = world.broker.jobs
    assert jobs.run_steps(pieces("early"), lambda: done.append("not called"))
    world.broker.work = MAX_AT_ONCE
    assert not jobs.run_steps(pieces("late"), lambda: done.append("ended"))
    assert done == ["early"]
    world.end_turn()
    world.run()
    assert done == ["early", "late", "ended"]


def test_delayed_entries_leave_memory_over_several_turns(world: World) -> None:
    queue = world.queue(durable=True)
    many = delayed.PAGED_AT_ONCE + 10
    for number in range(many):
        queue.delay(world.message(str(number), persistent=True), world.clock.now() + 1000)
    world.run()
    assert queue.delays is not None
    assert queue.delays.page() == delayed.PAGED_AT_ONCE
    assert len(queue.delays.recent) == 10
    assert queue.delays.page() == 10
    assert not queue.delays.recent


def test_browsers_get_existing_messages_over_several_turns(world: World) -> None:
    queue = world.queue()
    world.push(queue, *(["m"] * (STEP_WORK // 2)))
    takers = [Taker(queue, no_ack=True, join=False) for _ in range(6)]
    for taker in takers:
        taker.browse({})
        queue.add_consumer(taker)
    world.broker.end_turn()
    assert 0 < sum(len(taker.taken) for taker in takers) <= STEP_WORK + 1
    world.run()
    assert [len(taker.taken) for taker in takers] == [STEP_WORK // 2] * 6
    assert queue.ready_count == STEP_WORK // 2


def browse(queue: ClassicQueue, count: int, credit: int = -1) -> list[Taker]:
    takers = [Taker(queue, no_ack=True, credit=credit, join=False) for _ in range(count)]
    for taker in takers:
        taker.browse({})
        queue.add_consumer(taker)
    return takers


def test_checking_many_browsers_is_work(world: World) -> None:
    queue = world.queue()
    takers = browse(queue, 3000)
    world.run()
    world.push(queue, "m")
    world.end_turn()
    assert 0 < sum(len(taker.taken) for taker in takers) <= STEP_WORK // VISIT_WORK
    world.run()
    assert all(len(taker.taken) == 1 for taker in takers)


def test_browsers_without_credit_cause_no_further_work(world: World) -> None:
    queue = world.queue()
    takers = browse(queue, STEP_WORK + 2000, credit=0)
    world.push(queue, "a", "b")
    world.end_turn()
    for _ in range(50):
        if world.posted:
            world.posted.pop(0)()
            world.end_turn()
    assert not world.posted
    takers[-1].give(1)
    world.run()
    assert [len(taker.taken) for taker in takers] == [0] * (len(takers) - 1) + [1]


def test_browsers_get_no_more_if_more_clients_are_read(world: World) -> None:
    queue = world.queue()
    world.push(queue, *(["m"] * 1000))
    takers = browse(queue, 20)
    for _ in range(10):
        world.broker.inputs += 10
        queue.activate()
        world.end_turn()
    assert 0 < sum(len(taker.taken) for taker in takers) <= STEP_WORK + PORTION
    world.run()
    assert [len(taker.taken) for taker in takers] == [1000] * 20


def test_a_late_entry_is_work_for_each_browser(world: World) -> None:
    queue = world.queue()
    browse(queue, 80)
    late, newest = queue.prepare(world.message("late")), queue.prepare(world.message("newest"))
    before = world.broker.work
    queue.insert_new(newest)
    assert world.broker.work == before
    queue.insert_new(late)
    assert world.broker.work == before + (80 >> ASK_SHIFT)


def test_a_batch_is_planned_over_several_turns(world: World) -> None:
    queue = world.queue(durable=True)
    many = STEP_WORK * 5
    world.push(queue, *(["m"] * many), persistent=True)
    world.run()
    lease = queue.make_leases().acquire("l")
    planned: list[int] = []

    def done(batch: Batch | None, error: BrokerError | None) -> None:
        assert batch is not None, error
        planned.append(batch.count)

    Leases.of(queue, "l").lease_batch("l", lease.epoch, 0, many - 1, None, done)
    assert 0 < queue.leased_count <= STEP_WORK * 2 + 400
    assert lease.builder is not None
    world.run()
    assert planned == [many - 1] and queue.ready_count == 1


@pytest.mark.parametrize("priorities", [1, 5 * STEP_WORK])
def test_any_number_of_consumers_is_finally_asked(world: World, priorities: int) -> None:
    queue = world.queue()
    many = 10 * STEP_WORK if priorities == 1 else priorities
    takers = [Asked(queue, priority=number % priorities) for number in range(many)]
    for taker in takers:
        taker.cost = 0
    world.run()
    world.push(queue, "a")
    for _ in range(100):
        world.broker.end_turn()
        if not world.posted:
            break
        world.posted.pop(0)()
    assert all(taker.asked == 1 for taker in takers)
    assert not world.posted
