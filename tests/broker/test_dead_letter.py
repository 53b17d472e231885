"""Dead letters: their routing, their x-death headers, and cycles."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from leveret.broker.message import Entry
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.queue import Queue
from tests.broker.support import START, Taker, World, deaths_in, text_of


def reject(queue: Queue) -> None:
    entry = queue.get(False)
    assert entry is not None
    queue.reject(entry)


def take(queue: Queue) -> tuple[Entry, dict[str, Any]]:
    """Get an entry, with its headers as a consumer sees them."""
    entry = queue.get(False)
    assert entry is not None, "there is no dead letter"
    return entry, queue.vhost.dead_letters.headers_of(entry)


def deaths(queue: Queue) -> list[tuple[str, str, int]]:
    """Return queue, reason and count of the next message's deaths, and requeue it."""
    entry, headers = take(queue)
    queue.requeue(entry, False)
    return [(death["queue"], death["reason"], death["count"]) for death in deaths_in(headers)]


@pytest.fixture
def source(world: World) -> Queue:
    """A queue that dead-letters to the queue `dead`."""
    world.queue("dead")
    return world.queue("source", dead_letter_exchange="", dead_letter_routing_key="dead")


class TestReasons:
    def test_rejected(self, world: World, source: Queue) -> None:
        world.push(source, "a")
        reject(source)
        assert deaths(world.vhost.queues["dead"]) == [("source", "rejected", 1)]
        assert source.ready_count == source.unacked == 0

    def test_expired(self, world: World, source: Queue) -> None:
        world.push(source, "a", ttl=10)
        world.run()
        world.sleep(10)
        assert deaths(world.vhost.queues["dead"]) == [("source", "expired", 1)]

    def test_maxlen(self, world: World) -> None:
        dead = world.queue("dead")
        queue = world.queue(max_length=1, dead_letter_exchange="", dead_letter_routing_key="dead")
        world.push(queue, "a", "b")
        assert deaths(dead) == [("q", "maxlen", 1)]
        assert world.contents(queue) == ["b"]

    def test_delivery_limit(self, world: World) -> None:
        dead = world.queue("dead")
        queue = world.queue(delivery_limit=2, dead_letter_exchange="", dead_letter_routing_key="dead")
        world.push(queue, "a")
        consumer = Taker(queue)
        for _ in range(3):
            world.run()
            consumer.requeue()
        world.run()
        assert consumer.history == ["a"] * 3
        assert deaths(dead) == [("q", "delivery_limit", 1)]

    def test_without_an_exchange_messages_are_dropped(self, world: World) -> None:
        queue = world.queue()
        world.push(queue, "a")
        reject(queue)
        assert (queue.ready_count, queue.unacked) == (0, 0)

    def test_an_exchange_that_is_missing_drops_them(self, world: World) -> None:
        queue = world.queue(dead_letter_exchange="nowhere")
        world.push(queue, "a")
        reject(queue)
        assert (queue.ready_count, queue.unacked) == (0, 0)

    def test_an_unroutable_dead_letter_is_dropped(self, world: World) -> None:
        queue = world.queue(dead_letter_exchange="amq.fanout")
        world.push(queue, "a")
        reject(queue)
        assert (queue.ready_count, queue.unacked) == (0, 0)


class TestHeaders:
    def test_a_first_death(self, world: World, source: Queue) -> None:
        world.vhost.bind(source, "amq.direct", "k", {})
        world.publish("amq.direct", "k", "a", headers={"own": 1})
        reject(source)
        entry, headers = take(world.vhost.queues["dead"])
        assert headers == {
            "own": 1,
            "x-death": [
                {
                    "count": 1,
                    "exchange": "amq.direct",
                    "queue": "source",
                    "reason": "rejected",
                    "routing-keys": ["k"],
                    "time": datetime.fromtimestamp(START // 1000, UTC),
                }
            ],
            "x-first-death-exchange": "amq.direct",
            "x-first-death-queue": "source",
            "x-first-death-reason": "rejected",
        }
        assert entry.overlay is not None and entry.overlay.address == b"\0\4dead"
        assert entry.message.address == b"\x0aamq.direct\1k"

    def test_the_same_death_again_is_counted(self, world: World) -> None:
        one = world.queue("one", dead_letter_exchange="", dead_letter_routing_key="two")
        two = world.queue("two", dead_letter_exchange="", dead_letter_routing_key="one")
        world.push(one, "a")
        reject(one)
        reject(two)
        assert deaths(one) == [("two", "rejected", 1), ("one", "rejected", 1)]
        entry, headers = take(one)
        assert headers["x-first-death-queue"] == "one"
        one.reject(entry)
        assert deaths(two) == [("one", "rejected", 2), ("two", "rejected", 1)]
        _, headers = take(two)
        assert headers["x-first-death-queue"] == "one"
        assert headers["x-death"][0]["exchange"] == "" and headers["x-death"][0]["routing-keys"] == ["one"]

    def test_another_reason_is_another_death(self, world: World) -> None:
        one = world.queue("one", dead_letter_exchange="", dead_letter_routing_key="two", message_ttl=10)
        two = world.queue("two", dead_letter_exchange="", dead_letter_routing_key="one")
        world.push(one, "a")
        reject(one)
        reject(two)
        world.run()
        world.sleep(10)
        assert deaths(two) == [("one", "expired", 1), ("two", "rejected", 1), ("one", "rejected", 1)]

    def test_counts_continue_from_the_publishers_header(self, world: World, source: Queue) -> None:
        earlier = [{"queue": "source", "reason": "rejected", "count": 41, "exchange": "e"}, {"queue": "other"}, "nonsense"]
        world.push(source, "a", headers={"x-death": earlier})
        reject(source)
        _, headers = take(world.vhost.queues["dead"])
        assert headers["x-death"] == [
            {"queue": "source", "reason": "rejected", "count": 42, "exchange": "e"},
            {"queue": "other"},
        ]

    def test_the_same_death_written_many_times_is_one(self, world: World, source: Queue) -> None:
        """As written by brokers of versions without counts."""
        earlier = [{"queue": "other", "reason": "expired", "n": number} for number in range(3)]
        earlier += [{"queue": "source", "reason": "rejected"}, {"queue": "source", "reason": "rejected", "count": 2}]
        world.push(source, "a", headers={"x-death": earlier})
        reject(source)
        assert deaths(world.vhost.queues["dead"]) == [("source", "rejected", 4), ("other", "expired", 3)]

    def test_a_header_of_another_type_is_replaced(self, world: World, source: Queue) -> None:
        world.push(source, "a", headers={"x-death": "mine"})
        reject(source)
        assert deaths(world.vhost.queues["dead"]) == [("source", "rejected", 1)]

    def test_the_body_is_not_copied(self, world: World, source: Queue) -> None:
        message = world.message("a")
        source.push(message)
        reject(source)
        entry, _ = take(world.vhost.queues["dead"])
        assert entry.message is message


class TestExpiration:
    def test_the_expiration_is_removed_and_recorded(self, world: World, source: Queue) -> None:
        world.push(source, "a", ttl=10)
        world.run()
        world.sleep(10)
        dead = world.vhost.queues["dead"]
        entry, headers = take(dead)
        assert headers["x-death"][0]["original-expiration"] == "10"
        assert entry.overlay is not None and entry.overlay.drop_expiration
        dead.requeue(entry)
        world.run()
        world.sleep(1000)
        assert dead.ready_count == 1

    def test_the_expiration_is_recorded_if_the_message_died_before(self, world: World, source: Queue) -> None:
        """A client publishes a dead letter again, with a new expiration."""
        world.push(source, "a", ttl=10, headers={"x-death": [{"queue": "x", "reason": "rejected", "count": 1}]})
        world.run()
        world.sleep(10)
        _, headers = take(world.vhost.queues["dead"])
        assert headers["x-death"][0]["original-expiration"] == "10"

    def test_but_only_at_the_first_death(self, world: World) -> None:
        world.queue("one", dead_letter_exchange="", dead_letter_routing_key="two")
        two = world.queue("two", dead_letter_exchange="", dead_letter_routing_key="three")
        three = world.queue("three")
        world.push(world.vhost.queues["one"], "a", ttl=10)
        world.run()
        world.sleep(10)
        reject(two)
        _, headers = take(three)
        assert ["original-expiration" in death for death in deaths_in(headers)] == [False, True]

    def test_the_ttl_of_the_next_queue_starts_on_arrival(self, world: World) -> None:
        one = world.queue("one", dead_letter_exchange="", dead_letter_routing_key="two", message_ttl=10)
        two = world.queue("two", message_ttl=50)
        world.push(one, "a")
        world.run()
        world.sleep(10)
        assert two.ready_count == 1
        world.sleep(49)
        assert two.ready_count == 1
        world.sleep(1)
        assert two.ready_count == 0

    def test_a_queue_of_retries_without_consumers(self, world: World) -> None:
        """The usual pattern: work, reject, wait in another queue, return."""
        work = world.queue("work", dead_letter_exchange="", dead_letter_routing_key="wait")
        world.queue("wait", message_ttl=100, dead_letter_exchange="", dead_letter_routing_key="work")
        consumer = Taker(work)
        world.push(work, "a")
        for _ in range(3):
            world.run()
            work.reject(consumer.taken.pop())
            world.run()
            world.sleep(100)
        assert consumer.history == ["a"] * 4
        assert deaths_of(consumer) == [("wait", "expired", 3), ("work", "rejected", 3)]


def deaths_of(consumer: Taker) -> list[tuple[str, str, int]]:
    headers = consumer.queue.vhost.dead_letters.headers_of(consumer.taken[-1])
    return [(death["queue"], death["reason"], death["count"]) for death in deaths_in(headers)]


class TestCycles:
    """A message that returns to a queue without ever having been rejected is dropped."""

    def test_of_expiry(self, world: World) -> None:
        one = world.queue("one", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="two")
        two = world.queue("two", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="one")
        world.push(one, "a")
        world.run()
        world.sleep(10)
        assert two.ready_count == 1
        world.sleep(10)
        assert (one.ready_count, two.ready_count) == (0, 0)

    def test_to_itself(self, world: World) -> None:
        queue = world.queue(max_length=1, dead_letter_exchange="", dead_letter_routing_key="q")
        world.push(queue, "a", "b")
        assert world.contents(queue) == ["b"]

    def test_a_rejection_on_the_way_breaks_it(self, world: World) -> None:
        one = world.queue("one", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="two")
        two = world.queue("two", dead_letter_exchange="", dead_letter_routing_key="one")
        world.push(one, "a")
        for round_number in range(1, 4):
            world.run()
            world.sleep(10)
            assert deaths(two)[0] == ("one", "expired", round_number)
            reject(two)
            assert one.ready_count == 1

    def test_only_the_queues_of_the_cycle_are_left_out(self, world: World) -> None:
        world.vhost.declare_exchange("x", "fanout")
        queue = world.queue(message_ttl=10, dead_letter_exchange="x")
        other = world.queue("other")
        world.vhost.bind(queue, "x", "", {})
        world.vhost.bind(other, "x", "", {})
        world.push(queue, "a")
        world.run()
        world.sleep(10)
        assert (queue.ready_count, other.ready_count) == (0, 1)


class TestRoutingKeys:
    def test_the_default_is_the_routing_key_of_the_message(self, world: World) -> None:
        world.vhost.declare_exchange("dlx", "direct")
        source = world.queue("source", dead_letter_exchange="dlx")
        dead = world.queue("dead")
        world.vhost.bind(dead, "dlx", "k", {})
        world.vhost.bind(source, "amq.direct", "k", {})
        world.publish("amq.direct", "k", "a")
        reject(source)
        assert dead.ready_count == 1

    def test_and_those_of_its_cc_header(self, world: World) -> None:
        world.vhost.declare_exchange("dlx", "direct")
        source = world.queue("source", dead_letter_exchange="dlx")
        dead = world.queue("dead")
        world.vhost.bind(dead, "dlx", "copy", {})
        world.push(source, "a", headers={"CC": ["copy", "more"]})
        reject(source)
        _, headers = take(dead)
        assert headers["CC"] == ["copy", "more"]
        assert headers["x-death"][0]["routing-keys"] == ["source", "copy", "more"]

    def test_a_dead_letter_routing_key_replaces_all_keys(self, world: World, source: Queue) -> None:
        copy = world.queue("copy")
        world.push(source, "a", headers={"CC": ["copy"]})
        reject(source)
        assert copy.ready_count == 0
        _, headers = take(world.vhost.queues["dead"])
        assert "CC" not in headers

    def test_a_headers_exchange_sees_the_deaths(self, world: World) -> None:
        source = world.queue("source", dead_letter_exchange="amq.headers")
        dead = world.queue("dead")
        world.vhost.bind(dead, "amq.headers", "", {"x-match": "all-with-x", "x-first-death-reason": "rejected"})
        world.push(source, "a")
        reject(source)
        assert dead.ready_count == 1


def test_durable_dead_letters_and_their_settlement_share_a_batch(world: World) -> None:
    dead = world.queue("dead", durable=True)
    source = world.queue("source", durable=True, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.push(source, "a", persistent=True)
    world.run()
    log = world.held_log
    log.held = True
    reject(source)
    world.run()
    assert {key[0] for key in log.kept} == {source.id}
    log.release()
    assert {key[0] for key in log.kept} == {dead.id}


def test_a_full_target_that_rejects_gets_no_dead_letters(world: World, source: Queue) -> None:
    world.vhost.delete_queue("dead", None)
    dead = world.queue("dead", max_length=1, overflow="reject-publish")
    world.push(source, "a", "b")
    reject(source)
    reject(source)
    assert world.contents(dead) == ["a"]


def test_a_rejection_after_the_queue_was_deleted_is_dropped(world: World, source: Queue) -> None:
    world.push(source, "a")
    entry = source.get(False)
    assert entry is not None
    world.vhost.remove_queue(source)
    source.reject(entry)
    assert world.vhost.queues["dead"].ready_count == 0
    assert source.unacked == 0


def test_strict_mode_has_a_delivery_limit_and_a_dead_letter_queue() -> None:
    world = World(strict=True)
    queue = world.queue()
    world.push(queue, "poison")
    consumer = Taker(queue)
    for _ in range(6):
        world.run()
        consumer.requeue()
    world.run()
    assert consumer.history == ["poison"] * 6
    entry = world.vhost.queues["amq.dead"].get(True)
    assert entry is not None and text_of(entry) == "poison"


def test_a_quorum_queue_reports_the_delivery_count(world: World) -> None:
    queue = world.queue(durable=True, queue_type="quorum")
    world.push(queue, "a", persistent=True)
    consumer = Taker(queue)
    world.run()
    assert consumer.taken[0].overlay is None
    consumer.requeue()
    world.run()
    assert world.vhost.dead_letters.headers_of(consumer.taken[0]) == {"x-delivery-count": 1}
    assert queue.settings.delivery_limit == 20


def mesh(world: World, count: int, **arguments: Any) -> list[ClassicQueue]:
    """Queues that keep one message each, and dead-letter to all others."""
    world.vhost.declare_exchange("mesh", "fanout")
    queues = [world.queue(f"q{number}", max_length=1, dead_letter_exchange="mesh", **arguments) for number in range(count)]
    for queue in queues:
        world.vhost.bind(queue, "mesh", "", {})
    return queues


def ready(queues: list[ClassicQueue]) -> int:
    return sum(queue.ready_count for queue in queues)


class TestCopies:
    """Messages that expire in one queue after the other have a copy for each way through them."""

    def test_their_number_is_limited(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        queues = expiring_mesh(world, 6)
        letters = world.vhost.dead_letters
        letters.max_copies = 25
        world.push(queues[0], "a")
        counts = rounds(world, queues)
        assert counts == [5, 20, 0]  # and 60 without the limit
        assert [record.getMessage() for record in caplog.records] == [
            "dead letters of queue 'q2' and others in vhost '/' were dropped (1 since the last entry): their messages may"
            " have more than 25 copies; check which queues dead-letter to each other"
        ]
        assert letters.pruned == 19

    def test_it_is_a_limit_of_each_message(self, world: World) -> None:
        queues = expiring_mesh(world, 4)
        world.vhost.dead_letters.max_copies = 6
        for _ in range(10):
            world.push(queues[0], "a")
        assert rounds(world, queues) == [30, 60, 60, 0]

    def test_a_rejection_starts_again(self, world: World) -> None:
        queues = expiring_mesh(world, 4)
        world.vhost.dead_letters.max_copies = 1
        world.push(queues[0], "a")
        reject(queues[0])
        assert ready(queues) == 4
        assert rounds(world, queues) == [12, 0]

    def test_a_single_target_is_never_too_much(self, world: World) -> None:
        queues = expiring_mesh(world, 3)
        world.queue("end")
        for number in range(5):
            queues.append(
                world.queue(
                    f"chain{number}",
                    message_ttl=10,
                    dead_letter_exchange="",
                    dead_letter_routing_key=f"chain{number + 1}" if number < 4 else "end",
                )
            )
        world.vhost.bind(queues[3], "mesh", "", {})
        world.vhost.dead_letters.max_copies = 3
        world.push(queues[0], "a")
        rounds(world, queues)
        assert world.vhost.queues["end"].ready_count == 1

    def test_a_deleted_queue_may_have_made_as_many(self, world: World) -> None:
        queues = expiring_mesh(world, 4)
        world.vhost.dead_letters.max_copies = 4
        world.push(queues[0], "a")
        world.run()
        world.sleep(10)
        assert ready(queues) == 3
        world.vhost.remove_queue(queues[0])
        assert rounds(world, queues) == [6, 6, 0]


def expiring_mesh(world: World, count: int) -> list[ClassicQueue]:
    """Queues without length limits whose messages expire, and become dead letters in the others."""
    world.vhost.declare_exchange("mesh", "fanout")
    queues = [world.queue(f"q{number}", message_ttl=10, dead_letter_exchange="mesh") for number in range(count)]
    for queue in queues:
        world.vhost.bind(queue, "mesh", "", {})
    return queues


def rounds(world: World, queues: list[ClassicQueue]) -> list[int]:
    """Let messages expire until none are left; return their number after each round."""
    world.run()
    counts = []
    while ready(queues):
        world.sleep(10)
        counts.append(ready(queues))
    return counts


class TestOverflow:
    """Queues that overflow into each other multiply a message by the number of ways through them."""

    def test_the_overflow_is_limited(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        queues = mesh(world, 7)
        letters = world.vhost.dead_letters
        letters.max_overflow = 100
        for number in range(3):
            world.publish("mesh", "", str(number))
        world.end_turn()
        most = ready(queues)
        while world.posted:
            world.posted.pop(0)()
            world.end_turn()
            most = max(most, ready(queues))
        # A queue has its one message, and may get one more from each of the others before the limit is reached.
        assert len(queues) < most <= letters.max_overflow + 2 * len(queues)
        assert [queue.ready_count for queue in queues] == [1] * 7
        assert (letters.overflow, letters.dropped) == (0, 0)
        first, last = [record.getMessage() for record in caplog.records if "dead letters" in record.getMessage()]
        assert first.startswith("dropping dead letters to queue 'q") and "more than 100 deaths" in first
        assert last.startswith("no longer dropping dead letters in vhost '/': ")

    def test_below_the_limit_no_dead_letter_is_dropped(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        queues = mesh(world, 4)
        world.publish("mesh", "", "a")
        world.publish("mesh", "", "b")
        world.run()
        assert [queue.ready_count for queue in queues] == [1] * 4
        # Many more than the published ones, since every message takes every path through the queues.
        assert sum(queue.counters.published for queue in queues) > 100
        assert world.vhost.dead_letters.overflow == 0
        assert not caplog.records

    @pytest.mark.parametrize("end", ["purge", "delete"])
    def test_an_emptied_queue_makes_room(self, world: World, end: str) -> None:
        source = world.queue("source", dead_letter_exchange="", dead_letter_routing_key="q")
        queue = world.queue(max_length=1)
        letters = world.vhost.dead_letters
        letters.max_overflow = 2
        world.push(source, *"abcde")
        for _ in range(5):
            reject(source)
        assert (queue.ready_count, letters.overflow, letters.dropped) == (3, 2, 2)
        if end == "purge":
            queue.purge()
        else:
            world.vhost.delete_queue("q", None)
        assert (letters.overflow, letters.dropped) == (0, 0)
