"""Last-value queues: a new message replaces the ready one with the same key."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from leveret.broker.errors import PreconditionFailed
from leveret.broker.jobs import MAX_AT_ONCE, STEP_WORK
from leveret.broker.message import Message
from leveret.broker.queues.last_value import INSERT_WORK
from leveret.broker.queues.queue import Queue
from leveret.broker.transactions.transaction import LARGE, Transaction
from tests.broker.leases.support import restart
from tests.broker.support import JsonReader, Taker, World, figures, text_of
from tests.support.queues import classic

TYPE = {"x-queue-type": "last-value", "x-last-value-key": "symbol"}


def declare(world: World, **arguments: Any) -> Queue:
    return world.vhost.declare_queue("q", None, durable=True, arguments={**TYPE, **arguments})


def quote(world: World, queue: Queue, *bodies: str, **options: Any) -> None:
    """Push messages such as `a1`, whose key is the letter."""
    for body in bodies:
        assert world.push(queue, body, headers={"symbol": body[0]}, **options)


class TestReplacing:
    def test_a_new_message_replaces_the_one_with_its_key(self, world: World) -> None:
        queue = declare(world)
        quote(world, queue, "a1", "b1", "a2", "c1", "b2", "a3")
        assert queue.ready_count == 3
        assert queue.ready_bytes == 6
        assert world.contents(queue) == ["c1", "b2", "a3"]

    def test_messages_without_a_key_stay(self, world: World) -> None:
        queue = declare(world)
        world.push(queue, "x", "y", headers={"other": "symbol"})
        quote(world, queue, "a1", "a2")
        assert world.contents(queue) == ["x", "y", "a2"]

    def test_the_default_key_is_that_of_qpid(self, world: World) -> None:
        queue = world.queue(queue_type="last-value")
        for body in ("1", "2"):
            world.push(queue, body, headers={"qpid.LVQ_key": "k"})
        assert world.contents(queue) == ["2"]

    def test_numbers_and_flags_are_different_keys(self, world: World) -> None:
        queue = declare(world)
        for body, key in (("number", 1), ("flag", True), ("text", "1"), ("number again", 1)):
            world.push(queue, body, headers={"symbol": key})
        assert world.contents(queue) == ["flag", "text", "number again"]

    def test_across_priorities(self, world: World) -> None:
        queue = declare(world)
        quote(world, queue, "a1", "b1", priority=9)
        quote(world, queue, "a2", priority=1)
        assert world.contents(queue) == ["b1", "a2"]

    def test_a_full_queue_replaces_before_it_drops(self, world: World) -> None:
        queue = declare(world, **{"x-max-length": 2})
        quote(world, queue, "a1", "b1", "a2")
        assert world.contents(queue) == ["b1", "a2"]

    def test_nothing_is_paged_out(self) -> None:
        world = World(overflow=True, page_above=1)
        queue = declare(world)
        quote(world, queue, *[f"{letter}1" for letter in "abcdefgh"])
        world.broker.page_down()
        quote(world, queue, "a2")
        assert queue.ready_count == 8
        assert world.contents(queue)[-1] == "a2"


class TestFull:
    """A full queue that refuses publishes still replaces messages."""

    def test_a_replacement_is_taken(self, world: World) -> None:
        queue = declare(world, **{"x-max-length": 2, "x-overflow": "reject-publish"})
        quote(world, queue, "a1", "b1", "a2")
        assert not world.push(queue, "c1", headers={"symbol": "c"})
        assert not world.push(queue, "keyless")
        assert world.contents(queue) == ["b1", "a2"]

    def test_a_larger_one_only_if_there_is_room_for_it(self, world: World) -> None:
        queue = declare(world, **{"x-max-length-bytes": 5, "x-overflow": "reject-publish"})
        quote(world, queue, "a1", "b1", "a22", "b2")
        assert not world.push(queue, "a333", headers={"symbol": "a"})
        assert world.contents(queue) == ["a22", "b2"]

    def test_one_that_becomes_visible_later_is_refused(self, world: World) -> None:
        queue = declare(world, **{"x-max-length": 1, "x-overflow": "reject-publish"})
        quote(world, queue, "a1")
        assert not queue.delay(world.message("a2", headers={"symbol": "a"}), world.clock.now() + 1000)
        assert world.contents(queue) == ["a1"]

    def test_an_unacked_message_is_not_replaced(self, world: World) -> None:
        queue = declare(world, **{"x-max-length": 1, "x-overflow": "reject-publish"})
        quote(world, queue, "a1")
        assert queue.get(False) is not None
        quote(world, queue, "a2", "a3")
        assert world.contents(queue) == ["a3"]

    def test_in_a_transaction(self, world: World) -> None:
        queue = declare(world, **{"x-max-length": 2, "x-overflow": "reject-publish"})
        quote(world, queue, "a1", "b1")
        transaction = Transaction(world.log)
        for body in ("a2", "b2", "c1"):
            transaction.publish(world.message(body, headers={"symbol": body[0]}, persistent=True), [queue])
        transaction.commit(lambda: None)
        world.run()
        assert world.contents(queue) == ["a2", "b2"]

    def test_as_a_dead_letter(self, world: World) -> None:
        queue = declare(world, **{"x-max-length": 1, "x-overflow": "reject-publish"})
        source = world.queue("source", dead_letter_exchange="", dead_letter_routing_key="q")
        quote(world, queue, "a1")
        for body in ("a2", "b1"):
            world.push(source, body, headers={"symbol": body[0]})
            entry = source.get(False)
            assert entry is not None
            source.reject(entry)
        assert world.contents(queue) == ["a2"]


class TestDelivered:
    def test_an_unacked_entry_is_not_replaced(self, world: World) -> None:
        queue = declare(world)
        taker = Taker(queue, credit=1)
        quote(world, queue, "a1")
        world.end_turn()
        quote(world, queue, "a2", "a3")
        assert taker.history == ["a1"]
        assert figures(queue)[0] == 1

    def test_an_older_entry_is_dropped_when_it_comes_back(self, world: World) -> None:
        queue = declare(world)
        quote(world, queue, "a1")
        entry = queue.get(False)
        assert entry is not None
        quote(world, queue, "a2")
        queue.requeue(entry)
        assert world.contents(queue) == ["a2"]
        assert queue.paging.memory() == 0

    def test_an_older_entry_is_dropped_before_a_full_queue_delivers(self, world: World) -> None:
        queue = declare(world, **{"x-max-length": 1})
        quote(world, queue, "a1")
        entry = queue.get(False)
        assert entry is not None
        quote(world, queue, "a2")
        taker = Taker(queue)
        queue.requeue(entry)
        world.run()
        assert taker.bodies() == ["a2"]

    def test_the_latest_entry_comes_back(self, world: World) -> None:
        queue = declare(world)
        quote(world, queue, "a1", "b1")
        entry = queue.get(False)
        assert entry is not None
        queue.requeue(entry)
        assert world.contents(queue) == ["a1", "b1"]

    def test_a_settled_key_starts_again(self, world: World) -> None:
        queue = declare(world)
        for body in ("a1", "a2", "a3"):
            quote(world, queue, body)
            entry = queue.get(False)
            assert entry is not None
            assert text_of(entry) == body
            queue.settle(entry)

    def test_keys_of_removed_messages_are_forgotten(self, world: World) -> None:
        queue = declare(world)
        for number in range(3000):
            world.push(queue, "m", headers={"symbol": number})
        taker = Taker(queue)
        world.run()
        for entry in taker.taken:
            queue.settle(entry)
        world.run()
        assert vars_of(queue) == (0, 0)

    def test_purge_forgets_keys(self, world: World) -> None:
        queue = declare(world)
        quote(world, queue, "a1", "b1")
        assert queue.purge() == 2
        assert vars_of(queue) == (0, 0)
        quote(world, queue, "a2")
        assert world.contents(queue) == ["a2"]


def vars_of(queue: Any) -> tuple[int, int]:
    return len(queue.latest), len(queue.keys)


class TestWork:
    """Units of work are counted: replacements in a long queue, and large headers, are not free."""

    def test_many_replacements_are_made_in_steps(self, world: World) -> None:
        queue = declare(world)
        for number in range(20 << 10):
            world.push(queue, "old", headers={"symbol": number})
            world.end_turn()
        transaction = Transaction(world.log)
        for number in range(LARGE):
            transaction.publish(world.message("new", headers={"symbol": 10_000 + number}, persistent=True), [queue])
        transaction.commit(lambda: None)
        world.end_turn()
        before = LARGE
        while before:
            assert (before - len(queue.hidden)) * (20 + INSERT_WORK) <= MAX_AT_ONCE + STEP_WORK
            before = len(queue.hidden)
            assert classic(queue).dispatcher.frozen or not before
            if before:
                world.posted.pop(0)()
        assert (queue.ready_count, len(queue.hidden), classic(queue).dispatcher.frozen) == (20 << 10, 0, 0)
        contents = world.contents(queue)
        assert contents.count("new") == LARGE and contents[-LARGE:] == ["new"] * LARGE

    def test_a_get_waits_for_what_is_published_before(self, world: World) -> None:
        queue = declare(world)
        world.broker.work = MAX_AT_ONCE
        quote(world, queue, "a1", "a2")
        assert queue.get(True) is None and queue.paging.must_load()
        world.run()
        assert world.contents(queue) == ["a2"]

    def test_a_full_queue_counts_what_is_coming(self, world: World) -> None:
        queue = declare(world, **{"x-max-length": 1, "x-overflow": "reject-publish"})
        world.broker.work = MAX_AT_ONCE
        quote(world, queue, "a1")
        assert not world.push(queue, "b1", headers={"symbol": "b"})
        world.run()
        assert world.contents(queue) == ["a1"]

    @pytest.mark.parametrize("how", ["purge", "delete"])
    def test_a_purge_or_delete_while_entries_are_coming(self, world: World, how: str) -> None:
        queue = declare(world)
        quote(world, queue, "a1", persistent=True)
        world.broker.work = MAX_AT_ONCE
        quote(world, queue, "b1", persistent=True)
        assert (queue.ready_count, len(queue.hidden)) == (2, 1)
        with pytest.raises(PreconditionFailed, match="is not empty"):
            world.vhost.delete_queue("q", None, if_empty=True)
        assert (queue.purge() if how == "purge" else world.vhost.remove_queue(queue)) == 2
        assert queue.ready_count == 0
        world.run()
        assert (queue.ready_count, len(queue.hidden), len(world.held_log.kept)) == (0, 0, 0)
        if how == "purge":
            quote(world, queue, "c1")
            assert world.contents(queue) == ["c1"]

    def test_many_queues_with_a_message_each_are_inserted_in_steps(self, world: World) -> None:
        queues = [world.queue(f"q{number}", queue_type="last-value", last_value_key="symbol") for number in range(3000)]
        takers = [Taker(queue) for queue in queues[:2]]
        world.run()
        world.broker.work = MAX_AT_ONCE
        message = world.message("a1", headers={"symbol": "a"})
        for queue in queues:
            queue.push(message)
        assert sum(len(queue.hidden) for queue in queues) == len(queues)
        world.vhost.remove_queue(queues[1])
        world.end_turn()
        counts = []
        while world.posted:
            world.posted.pop(0)()
            counts.append(sum(len(queue.ready) + queue.unacked for queue in queues))
        assert len(counts) >= 2 and all(after - before <= STEP_WORK / INSERT_WORK for before, after in pairwise(counts))
        assert counts[-1] == 2999
        assert takers[0].history == ["a1"] and takers[1].history == []
        assert not any(queue.dispatcher.frozen or len(queue.hidden) for queue in queues)
        quote(world, queues[5], "a2")
        assert world.contents(queues[5]) == ["a2"]

    def test_a_message_for_many_queues_is_decoded_once(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        queues = [
            world.queue(f"q{number}", queue_type="last-value", last_value_key=f"k{number % 3}") for number in range(20)
        ]
        message = world.message("m", headers={"k0": "x" * 10_000, "k1": ["y"] * 10_000})
        calls = []
        original = JsonReader.headers

        def counted(reader: JsonReader, message: Message) -> dict[str, Any]:
            calls.append(message)
            return original(reader, message)

        monkeypatch.setattr(JsonReader, "headers", counted)
        for _ in range(2):
            for queue in queues:
                queue.push(message)
        assert len(calls) == 1
        world.run()
        assert [queue.ready_count for queue in queues[:3]] == [1, 1, 2]

    def test_messages_for_many_queues_are_decoded_once_each_in_steps(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queues = [world.queue(f"q{number}", queue_type="last-value", last_value_key="k") for number in range(20)]
        calls = []
        original = JsonReader.headers

        def counted(reader: JsonReader, message: Message) -> dict[str, Any]:
            calls.append(message)
            return original(reader, message)

        monkeypatch.setattr(JsonReader, "headers", counted)
        world.broker.work = MAX_AT_ONCE
        for body in ("1", "2", "3"):
            message = world.message(body, headers={"k": "x" * 10_000})
            for queue in queues:
                queue.push(message)
        world.run()
        assert len(calls) == 3
        assert [world.contents(queue) for queue in queues[:2]] == [["3"], ["3"]]

    def test_large_keys_are_compared_by_value(self, world: World) -> None:
        queue = declare(world)
        for body, key in (("a", ["x"] * 1000), ("b", ["x"] * 999), ("c", ["x"] * 1000), ("d", "x" * 999), ("e", "x" * 999)):
            world.push(queue, body, headers={"symbol": key})
        assert world.contents(queue) == ["b", "c", "e"]


class TestRestart:
    def test_replaced_messages_are_gone(self, world: World) -> None:
        queue = declare(world)
        quote(world, queue, "a1", "b1", "a2", persistent=True)
        after = restart(world)
        found = after.vhost.queues["q"]
        after.run()
        assert found.ready_count == 2
        assert after.contents(found) == ["b1", "a2"]

    def test_recovered_messages_are_replaced(self, world: World) -> None:
        queue = declare(world)
        quote(world, queue, "a1", "b1", persistent=True)
        after = restart(world)
        found = after.vhost.queues["q"]
        quote(after, found, "a2", persistent=True)  # before the recovered ones are read
        after.run()
        quote(after, found, "b2", persistent=True)
        assert after.contents(found) == ["a2", "b2"]

    def test_nothing_is_delivered_before_all_keys_are_known(self, world: World) -> None:
        queue = declare(world)
        quote(world, queue, "a1", persistent=True)
        after = restart(world)
        found = after.vhost.queues["q"]
        taker = Taker(found)
        quote(after, found, "a2")
        after.run()
        assert taker.history == ["a2"]


class TestDeclaration:
    def test_the_key_needs_the_type(self, world: World) -> None:
        with pytest.raises(PreconditionFailed, match="received without 'x-queue-type' 'last-value'"):
            world.queue(last_value_key="k")

    def test_another_key_is_not_equivalent(self, world: World) -> None:
        declare(world)
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-last-value-key'"):
            declare(world, **{"x-last-value-key": "other"})

    def test_it_has_no_leases(self, world: World) -> None:
        with pytest.raises(PreconditionFailed, match="it is a last-value queue"):
            declare(world).make_leases().acquire("reader")


class TestTimeToLive:
    """Each replacement restarts the TTL of its key; on expiry the key is gone."""

    def test_a_replacement_restarts_the_ttl(self, world: World) -> None:
        queue = declare(world, **{"x-message-ttl": 1000})
        quote(world, queue, "a1", "b1")
        world.sleep(600)
        quote(world, queue, "a2")
        world.sleep(600)
        assert world.contents(queue) == ["a2"]

    def test_an_expired_key_is_gone_and_may_return(self, world: World) -> None:
        queue = declare(world, **{"x-message-ttl": 1000, "x-max-length": 1, "x-overflow": "reject-publish"})
        quote(world, queue, "a1")
        world.sleep(1001)
        assert queue.ready_count == 0
        quote(world, queue, "b1")
        assert not world.push(queue, "a2", headers={"symbol": "a"})
        assert world.contents(queue) == ["b1"]

    def test_only_the_latest_message_of_a_key_is_dead_lettered(self, world: World) -> None:
        dead = world.queue("dead")
        queue = declare(world, **{"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        quote(world, queue, "a1", "a2", "b1")
        world.sleep(1001)
        assert queue.ready_count == 0
        assert world.contents(dead) == ["a2", "b1"]

    def test_a_requeued_message_keeps_its_deadline(self, world: World) -> None:
        queue = declare(world, **{"x-message-ttl": 1000})
        quote(world, queue, "a1")
        entry = queue.get(False)
        assert entry is not None
        world.sleep(600)
        queue.requeue(entry)
        world.run()
        assert queue.ready_count == 1
        world.sleep(401)
        assert queue.ready_count == 0

    def test_a_restart_keeps_the_deadline_of_each_key(self, world: World) -> None:
        queue = declare(world, **{"x-message-ttl": 1000})
        quote(world, queue, "a1", "b1", persistent=True)
        world.sleep(600)
        quote(world, queue, "a2", persistent=True)
        world.sleep(100)
        again = restart(world)
        found = again.vhost.queues["q"]
        again.run()
        assert found.ready_count == 2
        again.sleep(400)
        assert again.contents(found) == ["a2"]
