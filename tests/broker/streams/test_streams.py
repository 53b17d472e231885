"""Streams: messages stay, and every reader reads them at its own pace."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.errors import NotImplementedByBroker, PreconditionFailed
from leveret.broker.message import Entry, Overlay
from leveret.broker.streams import chunks
from leveret.broker.streams.queue import StreamQueue
from leveret.broker.streams.tracking import MAX_PUBLISHERS
from leveret.broker.transactions.transaction import Transaction
from tests.broker.support import HeldLog, Taker, World


def stream(world: World, name: str = "s", **arguments: Any) -> StreamQueue:
    queue = world.declare(name, durable=True, queue_type="stream", **arguments)
    assert isinstance(queue, StreamQueue)
    return queue


class Reading(Taker):
    """A consumer of a stream that starts at `start`, with optional filters."""

    def __init__(
        self,
        queue: StreamQueue,
        start: Any = "first",
        *,
        credit: int = -1,
        no_ack: bool = False,
        only: bytes | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(queue, credit=credit, no_ack=no_ack, only=only, join=False)
        self.arguments = {"x-stream-offset": start} | {"x-stream-" + k.replace("_", "-"): v for k, v in arguments.items()}
        queue.add_consumer(self)

    def offsets(self) -> list[object]:
        return [entry.seq - 1 for entry in self.taken if entry.overlay is not None and entry.overlay.shows_offset]


def append(world: World, queue: StreamQueue, *bodies: str, **options: Any) -> None:
    assert world.push(queue, *bodies, **options)
    world.broker.end_turn()


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


def test_every_reader_gets_everything() -> None:
    world = World()
    queue = stream(world)
    early = Reading(queue)
    append(world, queue, "a", "b")
    late = Reading(queue)
    world.broker.end_turn()
    assert early.bodies() == late.bodies() == ["a", "b"]
    assert early.offsets() == late.offsets() == [0, 1]
    early.ack(2)
    append(world, queue, "c")
    assert (early.bodies(), late.bodies()) == (["c"], ["a", "b", "c"])
    assert queue.ready_count == 3
    assert queue.unacked == 4


def test_messages_are_visible_only_once_they_are_on_disk() -> None:
    world = World(log=HeldLog(held=True))
    world.held_log.release_all()
    queue = stream(world)
    world.held_log.release_all()
    reader = Reading(queue)
    append(world, queue, "a")
    assert reader.bodies() == []
    assert queue.ready_count == 0
    world.held_log.release_all()
    assert reader.bodies() == ["a"]
    assert queue.ready_count == 1


def test_a_transaction_shows_all_of_it_in_its_place() -> None:
    world = World(log=HeldLog(held=True))
    world.held_log.release_all()
    queue = stream(world)
    reader = Reading(queue)
    append(world, queue, "before")
    transaction = Transaction(world.log)
    transaction.publish(world.message("one"), [queue])
    transaction.publish(world.message("two"), [queue])
    done: list[bool] = []
    transaction.commit(lambda: done.append(True))
    append(world, queue, "after")
    world.held_log.release_all()
    assert done == [True]
    assert reader.bodies() == ["before", "one", "two", "after"]


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ("first", 0),
        (0, 0),
        (7, 7),
        ("next", 10),
        (None, 10),
        (10, 10),
        (25, 25),
    ],
)
def test_start_positions_of_readers(start: Any, wanted: int) -> None:
    world = World()
    queue = stream(world)
    append(world, queue, *numbers(0, 10))
    reader = Reading(queue, start)
    append(world, queue, *numbers(10, 30))
    assert reader.bodies() == numbers(wanted, 30)
    assert reader.offsets() == list(range(wanted, 30))


def test_times_are_those_of_chunks() -> None:
    world = World()
    queue = stream(world)
    for hour in range(4):
        append(world, queue, f"{hour}a", f"{hour}b")
        world.clock.time += 3_600_000
    assert Reading(queue, "90m").history == []
    world.broker.end_turn()
    since = Reading(queue, "150m")
    last = Reading(queue, "last")
    world.broker.end_turn()
    assert since.bodies() == ["2a", "2b", "3a", "3b"]
    assert last.bodies() == ["3a", "3b"]


def test_a_start_time_includes_messages_of_this_time() -> None:
    world = World()
    queue = stream(world)
    for hour in range(4):
        append(world, queue, f"{hour}a", f"{hour}b")
        world.clock.time += 3_600_000
    reader = Reading(queue, "2h")
    world.broker.end_turn()
    assert reader.bodies() == ["2a", "2b", "3a", "3b"]


@pytest.mark.parametrize("start", ["soon", -1, 1.5, True, "1w", ["first"]], ids=str)
def test_other_places_are_refused(start: Any) -> None:
    queue = stream(World())
    with pytest.raises(PreconditionFailed, match="x-stream-offset"):
        queue.check_consumer({"x-stream-offset": start}, False)


def test_credit_stops_a_reader_and_not_the_others() -> None:
    world = World()
    queue = stream(world)
    slow = Reading(queue, credit=2)
    quick = Reading(queue)
    append(world, queue, *numbers(0, 5))
    assert slow.bodies() == ["0", "1"]
    assert quick.bodies() == numbers(0, 5)
    slow.give(2)
    world.broker.end_turn()
    assert slow.bodies() == numbers(0, 4)
    assert slow.unacked == 4


def test_settling_only_grants_credit() -> None:
    world = World()
    queue = stream(world)
    append(world, queue, *numbers(0, 4))
    reader = Reading(queue)
    world.broker.end_turn()
    entries = list(reader.taken)
    queue.settle(entries[0])
    queue.requeue(entries[1])
    queue.reject(entries[2])
    queue.refuse(entries[3], object())
    queue.requeue(entries[3])
    world.broker.end_turn()
    assert reader.unacked == queue.unacked == 0
    assert len(reader.history) == 4
    assert queue.ready_count == 4


def test_filter_values() -> None:
    world = World()
    queue = stream(world)
    red = Reading(queue, filter="red")
    some = Reading(queue, filter=["red", "blue"], match_unfiltered=True)
    for value in ("red", "green", "blue", None):
        headers = {"x-stream-filter-value": value} if value else None
        append(world, queue, str(value), headers=headers)
    assert red.bodies() == ["red"]
    assert some.bodies() == ["red", "blue", "None"]
    assert red.offsets() == [0]


def test_a_selective_reader() -> None:
    world = World()
    queue = stream(world)
    reader = Reading(queue, only=b"x")
    append(world, queue, "a", "x1", "b", "x2")
    assert reader.bodies() == ["x1", "x2"]


def test_retention_by_size() -> None:
    world = World()
    queue = stream(world, max_length_bytes=3_000_000)
    lost = Reading(queue, credit=1)
    for number in range(10):
        append(world, queue, str(number) + "m" * 999_999)
    assert queue.ready_bytes <= 3_000_000 + (1 << 20)
    assert 0 < queue.ready_count < 10
    assert len(world.held_log.kept) == queue.ready_count
    # A reader that fell behind retention continues with the oldest message.
    lost.ack()
    lost.give(-1)
    world.broker.end_turn()
    assert [body[0] for body in lost.bodies()] == numbers(10 - queue.ready_count, 10)
    assert queue.first_offset == 10 - queue.ready_count


@pytest.mark.parametrize("step", [0, -120_000, 120_000])
def test_retention_by_age(step: int) -> None:
    world = World()
    world.clock.step = step
    queue = stream(world, max_age="1h")
    append(world, queue, "old")
    assert queue.newest_time == world.clock.unix() == world.clock.time + step
    world.sleep(1_800_000)
    append(world, queue, "young")
    world.sleep(1_800_000)
    assert queue.ready_count == 1
    reader = Reading(queue)
    world.broker.end_turn()
    assert (reader.bodies(), reader.offsets()) == (["young"], [1])
    world.sleep(3_600_000)
    assert queue.ready_count == 0
    append(world, queue, "new")
    assert reader.offsets() == [1, 2]


def test_all_messages_are_there_after_a_restart() -> None:
    world = World()
    queue = stream(world)
    append(world, queue, *numbers(0, 5))
    world.clock.time += 3_600_000
    append(world, queue, *numbers(5, 10))
    log, recovery = world.held_log.recovery()
    again = World(log=log, recovery=recovery, time=world.clock.time)
    found = again.vhost.queues["s"]
    assert isinstance(found, StreamQueue)
    assert found.ready_count == 10
    reader, late = Reading(found), Reading(found, "30m")
    again.run()
    append(again, found, "10")
    again.run()
    assert reader.bodies() == numbers(0, 11)
    assert reader.offsets() == list(range(11))
    assert late.bodies() == numbers(5, 11)
    assert all(entry.acquired_count == 1 for entry in reader.taken)


def test_offsets_continue_after_retention_has_removed_everything() -> None:
    world = World()
    queue = stream(world, max_age="1s")
    append(world, queue, "a", "b")
    world.sleep(5000)
    assert queue.ready_count == 0
    log, recovery = world.held_log.recovery()
    again = World(log=log, recovery=recovery, time=world.clock.time)
    found = again.vhost.queues["s"]
    assert isinstance(found, StreamQueue)
    reader = Reading(found, "next")
    append(again, found, "c")
    assert reader.offsets() == [2]


def test_a_deep_stream_is_read_from_disk() -> None:
    world = World(page_above=3_000_000)
    queue = stream(world)
    size = chunks.CHUNK_ENTRIES * 3 + 10
    append(world, queue, *numbers(0, size))
    assert queue.cache.memory() <= 3_000_000 + 4096 * 800
    assert sum(chunk.messages is not None for chunk in queue.chunks) < len(queue.chunks)
    one, two = Reading(queue), Reading(queue, 4000)
    world.run()
    assert one.bodies() == numbers(0, size)
    assert two.bodies() == numbers(4000, size)
    assert queue.cache.memory() <= 3_000_000 + 4096 * 800


def test_a_dead_letter_keeps_its_headers() -> None:
    world = World()
    queue = stream(world)
    entry = queue.prepare(world.message("dead"), Overlay(None, {"x-death": ["why"]}))
    queue.insert_new(entry)
    world.broker.end_turn()
    reader = Reading(queue)
    world.broker.end_turn()
    taken: Entry = reader.taken[0]
    assert taken.overlay is not None
    assert taken.overlay.headers == {"x-death": ["why"]}
    assert taken.overlay.shows_offset and taken.seq == 1


def test_a_delay_has_no_effect() -> None:
    world = World()
    queue = stream(world)
    reader = Reading(queue)
    assert queue.delay(world.message("a"), world.clock.now() + 60_000)
    append(world, queue, "b")
    assert reader.bodies() == ["a", "b"]


def test_deleting_releases_everything() -> None:
    world = World()
    queue = stream(world, max_age="1h")
    reader = Reading(queue, credit=1)
    append(world, queue, "a", "b")
    assert world.vhost.delete_queue("s", None) == 2
    world.broker.end_turn()
    assert reader.gone
    assert world.held_log.kept == {}
    assert [key for key in world.held_log.metadata if key[0] == "stream-chunk"] == []
    queue.settle(reader.taken[0])
    world.sleep(7_200_000)


def test_unsupported_operations() -> None:
    queue = stream(World())
    with pytest.raises(NotImplementedByBroker, match="consume from it"):
        queue.get(False)
    with pytest.raises(NotImplementedByBroker, match="x-max-age"):
        queue.purge()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"durable": False}, "durable=false"),
        ({"durable": True, "exclusive": True}, "exclusive=true"),
        ({"durable": True, "auto_delete": True}, "auto-delete=true"),
        ({"durable": True, "message_ttl": 5}, "x-message-ttl"),
        ({"durable": True, "max_priority": 5}, "x-max-priority"),
        ({"durable": True, "max_age": "5w"}, "x-max-age"),
        ({"durable": True, "dead_letter_exchange": "d"}, "x-dead-letter-exchange"),
    ],
    ids=str,
)
def test_unsupported_arguments(options: dict[str, Any], named: str) -> None:
    with pytest.raises(PreconditionFailed, match=named):
        World().declare("s", queue_type="stream", owner=object(), **options)


def test_a_maximum_age_is_for_streams() -> None:
    with pytest.raises(PreconditionFailed, match="x-max-age"):
        World().queue("q", max_age="1h")


def recovered(world: World) -> tuple[World, StreamQueue]:
    log, recovery = world.held_log.recovery()
    again = World(log=log, recovery=recovery, time=world.clock.time)
    found = again.vhost.queues["s"]
    assert isinstance(found, StreamQueue)
    return again, found


class TestNamedConsumers:
    def test_named_readers_continue_after_their_last_acknowledgement(self) -> None:
        world = World()
        queue = stream(world)
        append(world, queue, *numbers(0, 6))
        reader = Reading(queue, consumer="c")
        world.broker.end_turn()
        first, second, third = reader.taken[:3]
        for entry in (third, first):
            queue.settle(entry)
        queue.remove_consumer(reader)
        again = Reading(queue, consumer="c")
        other = Reading(queue, consumer="d")
        world.broker.end_turn()
        assert again.bodies() == numbers(1, 6)
        assert other.bodies() == numbers(0, 6)
        queue.settle(second)  # of the previous reader, which no longer counts
        queue.remove_consumer(again)
        world.broker.end_turn()
        world, queue = recovered(world)
        final = Reading(queue, "next", consumer="c")
        world.run()
        assert final.bodies() == numbers(1, 6)

    def test_requeued_messages_are_delivered_again(self) -> None:
        world = World()
        queue = stream(world)
        append(world, queue, *numbers(0, 3))
        reader = Reading(queue, consumer="c")
        world.broker.end_turn()
        queue.remove_consumer(reader)
        queue.settle(reader.taken[0])
        queue.requeue(reader.taken[1])
        queue.settle(reader.taken[2])
        again = Reading(queue, consumer="c")
        world.broker.end_turn()
        assert again.bodies() == ["1", "2"]
        assert reader not in queue.readers

    def test_the_newest_of_a_name_counts(self) -> None:
        world = World()
        queue = stream(world)
        append(world, queue, "a", "b")
        old = Reading(queue, consumer="c")
        new = Reading(queue, consumer="c", credit=1)
        world.broker.end_turn()
        old.ack(2)
        new.ack(1)
        world.broker.end_turn()
        third = Reading(queue, consumer="c")
        world.broker.end_turn()
        assert third.bodies() == ["b"]

    def test_settled_links_acknowledge_their_deliveries(self) -> None:
        world = World()
        queue = stream(world)
        append(world, queue, "a", "b")
        Reading(queue, consumer="c", credit=1, no_ack=True)
        world.broker.end_turn()
        again = Reading(queue, consumer="c")
        world.broker.end_turn()
        assert again.bodies() == ["b"]

    @pytest.mark.parametrize("name", ["", 5, "x" * 256], ids=["empty", "number", "long"])
    def test_invalid_names(self, name: Any) -> None:
        with pytest.raises(PreconditionFailed, match="x-stream-consumer"):
            stream(World()).check_consumer({"x-stream-consumer": name}, False)


class TestNamedPublishers:
    def test_messages_sent_before_are_not_appended_again(self) -> None:
        world = World()
        queue = stream(world)
        for body, sequence in (("a", 1), ("b", 2), ("a again", 1), ("b again", 2), ("d", 4), ("c", 3)):
            append(world, queue, body, headers={"x-stream-publisher": "p", "x-stream-sequence": sequence})
        append(world, queue, "other", headers={"x-stream-publisher": "q", "x-stream-sequence": 1})
        append(world, queue, "none", headers={"x-stream-publisher": "p"})
        world, queue = recovered(world)
        append(world, queue, "d again", headers={"x-stream-publisher": "p", "x-stream-sequence": 4})
        append(world, queue, "e", headers={"x-stream-publisher": "p", "x-stream-sequence": 5})
        reader = Reading(queue)
        world.run()
        assert reader.bodies() == ["a", "b", "d", "other", "none", "e"]
        assert reader.offsets() == list(range(6))

    def test_a_duplicate_is_not_confirmed_before_the_first(self) -> None:
        world = World(log=HeldLog(held=True))
        world.held_log.release_all()
        queue = stream(world)
        world.held_log.release_all()
        first, second = (
            world.message(body, persistent=True, headers={"x-stream-publisher": "p", "x-stream-sequence": 1})
            for body in "ab"
        )
        queue.push(first)
        queue.push(second)
        assert second.row is first.row is not None
        world.held_log.release_all()
        third = world.message("c", persistent=True, headers={"x-stream-publisher": "p", "x-stream-sequence": 1})
        queue.push(third)
        assert third.row is None
        assert queue.ready_count == 1

    def test_in_a_transaction(self) -> None:
        world = World()
        queue = stream(world)
        transaction = Transaction(world.log)
        for body in "abc":
            transaction.publish(world.message(body, headers={"x-stream-publisher": "p", "x-stream-sequence": 1}), [queue])
        done: list[bool] = []
        transaction.commit(lambda: done.append(True))
        world.broker.end_turn()
        assert done == [True]
        assert queue.ready_count == 1
        assert not queue.hidden

    def test_the_longest_silent_publishers_are_forgotten(self) -> None:
        world = World()
        tracking = stream(world).tracking
        for number in range(MAX_PUBLISHERS):
            assert not tracking.is_duplicate({"x-stream-publisher": str(number), "x-stream-sequence": 7})
        assert tracking.is_duplicate({"x-stream-publisher": "0", "x-stream-sequence": 7})
        tracking.is_duplicate({"x-stream-publisher": "one more", "x-stream-sequence": 7})
        assert tracking.is_duplicate({"x-stream-publisher": "0", "x-stream-sequence": 7})
        assert not tracking.is_duplicate({"x-stream-publisher": "1", "x-stream-sequence": 7})


def test_a_start_reads_the_records_of_all_streams_once() -> None:
    class Counted(dict[tuple[str, str], bytes]):
        looks = 0

        def items(self) -> Any:
            self.looks += 1
            return super().items()

    def looks(streams: int) -> int:
        world = World(log=HeldLog())
        for number in range(streams):
            append(world, stream(world, f"s{number}"), "a", "b")
        log, recovery = world.held_log.recovery()
        recovery.metadata = counted = Counted(recovery.metadata)
        again = World(log=log, recovery=recovery)
        for number in range(streams):
            found = again.vhost.queues[f"s{number}"]
            assert isinstance(found, StreamQueue) and found.ready_count == 2 and found.visible_until == 3
        return counted.looks

    assert looks(20) == looks(1)
