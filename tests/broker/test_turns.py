"""What the end of one turn does is bounded: the rest follows in the next ones."""

from __future__ import annotations

from leveret.broker.broker import OUTPUT_WORK
from leveret.broker.consumer import Output
from leveret.broker.jobs import STEP_WORK
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


def test_one_queue_hands_out_a_step_in_a_turn(world: World) -> None:
    queue = world.queue()
    world.push(queue, *(["m"] * (STEP_WORK * 2 + 10)))
    taker = Taker(queue, credit=STEP_WORK * 4)
    world.broker.end_turn()
    assert len(taker.bodies()) == STEP_WORK
    world.run()
    assert len(taker.bodies()) == STEP_WORK * 2 + 10


def test_more_input_may_cause_more_output(world: World) -> None:
    queue = world.queue()
    world.push(queue, *(["m"] * (STEP_WORK * 3)))
    taker = Taker(queue, credit=STEP_WORK * 4)
    world.broker.inputs += 1
    world.broker.end_turn()
    assert len(taker.bodies()) == STEP_WORK * 2
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
        len(outputs) - STEP_WORK // OUTPUT_WORK)
    world.run()
    assert all(output.flushed == 1 for output in outputs)


def test_one_message_that_pushes_out_many_drops_them_over_several_turns(world: World) -> None:
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


def test_overflow_goes_from_queue_to_queue_without_recursion(world: World) -> None:
    """A chain of queues that keep nothing: a dead letter goes through all of them, however long it is."""
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
    [entry] = last.backlog.head
    assert entry.overlay is not None and len(entry.overlay.headers["x-death"]) == length
    world.run()
    assert sum(queue.ready_count for queue in world.vhost.queues.values()) == 1


def test_bytes_of_hidden_entries_are_counted_as_they_come_and_go(world: World) -> None:
    queue = world.queue(max_length_bytes=10, overflow="reject-publish")
    queue.hidden.add(1, 4)
    queue.hidden.add(2, 5)
    assert not world.push(queue, "mm")
    queue.hidden.discard(1)
    queue.hidden.discard(1)
    assert (len(queue.hidden), queue.hidden.bytes) == (1, 5)
    assert world.push(queue, "mm")
