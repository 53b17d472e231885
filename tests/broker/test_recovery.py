"""Recovery from another broker's log: definitions, bindings, messages, their order and counts."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from leveret.broker import metadata
from leveret.broker.leases.leases import Leases
from leveret.broker.queues.classic.queue import ClassicQueue
from tests.broker.support import Taker, World, deaths_in, figures
from tests.support.queues import classic


class Large(int):
    """The decoder of field tables has subclasses of int."""


def restart(world: World, *, clean: bool = False, strict: bool = False, page_above: int = 64 << 20) -> World:
    """A broker over the committed log of a world."""
    world.run()
    log, recovery = world.held_log.recovery(clean)
    after = World(log=log, recovery=recovery, strict=strict, page_above=page_above, time=world.clock.time)
    after.run()
    return after


def queue_of(world: World, name: str = "q") -> ClassicQueue:
    return classic(world.vhost.queues[name])


class TestDefinitions:
    def test_durable_objects_are_recovered_and_transient_ones_are_not(self, world: World) -> None:
        world.queue("kept", durable=True, max_length=7)
        world.queue("transient")
        world.queue("exclusive", durable=True, exclusive=True, owner=object())
        world.vhost.declare_exchange("kept", "topic", durable=True, internal=True)
        world.vhost.declare_exchange("transient", "topic")
        after = restart(world)
        assert list(after.vhost.queues) == ["kept"]
        kept = queue_of(after, "kept")
        assert (kept.durable, kept.lifetime.auto_delete, kept.limits.max_length) == (True, False, 7)
        assert after.queue("kept", durable=True, max_length=7) is kept
        assert "transient" not in after.vhost.exchanges
        assert after.vhost.exchange("kept").internal
        assert after.vhost.declare_exchange("kept", "topic", durable=True, internal=True).type == "topic"

    def test_deleted_objects_stay_deleted(self, world: World) -> None:
        world.vhost.declare_exchange("x", "fanout", durable=True)
        world.vhost.bind(world.queue("q", durable=True), "x", "", {})
        world.run()
        world.vhost.delete_queue("q", None)
        world.vhost.delete_exchange("x")
        after = restart(world)
        assert after.vhost.queues == {} and "x" not in after.vhost.exchanges
        assert after.vhost.bindings() == []

    def test_bindings(self, world: World) -> None:
        world.vhost.declare_exchange("x", "topic", durable=True)
        world.vhost.declare_exchange("y", "fanout", durable=True)
        one, two = world.queue("one", durable=True), world.queue("two")
        world.vhost.bind(one, "x", "a.*", {})
        world.vhost.bind(one, "x", "gone", {})
        world.vhost.bind(two, "x", "#", {})
        world.vhost.bind(one, "amq.headers", "", {"x-match": "any", "k": 1})
        world.vhost.bind(world.vhost.exchange("y"), "x", "y", {})
        world.vhost.bind(one, "y", "", {})
        world.run()
        world.vhost.unbind(one, "x", "gone", {})
        after = restart(world)
        assert after.route("x", "a.b") == ["one"]
        assert after.route("x", "gone") == []
        assert after.route("x", "y") == ["one"]
        assert after.publish("amq.headers", "", headers={"k": 1}) == ["one"]
        assert after.publish("amq.headers", "", headers={"k": 2}) == []

    def test_a_recovered_binding_can_be_removed(self, world: World) -> None:
        world.vhost.bind(world.queue("one", durable=True), "amq.topic", "k", {"a": 1})
        after = restart(world)
        assert after.vhost.unbind(queue_of(after, "one"), "amq.topic", "k", {"a": 1})
        again = restart(after)
        assert again.vhost.bindings() == []

    def test_the_order_of_arguments_does_not_matter(self, world: World) -> None:
        queue = world.queue("one", durable=True)
        world.vhost.bind(queue, "amq.headers", "", {"a": 1, "b": {"c": 2, "d": 3}})
        world.vhost.unbind(queue, "amq.headers", "", {"b": {"d": 3, "c": 2}, "a": 1})
        assert restart(world).vhost.bindings() == []

    def test_alternate_exchanges(self, world: World) -> None:
        world.vhost.declare_exchange("x", "direct", durable=True, arguments={"alternate-exchange": "amq.fanout"})
        world.vhost.bind(world.queue("one", durable=True), "amq.fanout", "", {})
        assert restart(world).route("x", "k") == ["one"]

    @pytest.mark.parametrize(
        "value",
        [
            "text",
            b"octets",
            2**40,
            -3,
            1.5,
            True,
            None,
            [1, "two", [3]],
            {"a": {"b": None}},
            Decimal("1.25"),
            datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
            "\udcff",
            {"\udcff": "\udcfe"},
            Large(5),
        ],
        ids=ascii,
    )
    def test_arguments_of_any_type(self, world: World, value: Any) -> None:
        arguments = {"x-own": value}
        world.vhost.declare_queue("q", None, durable=True, arguments=arguments)
        world.vhost.bind(queue_of(world), "amq.topic", "k", arguments)
        after = restart(world)
        after.vhost.declare_queue("q", None, durable=True, arguments=arguments)
        assert after.vhost.unbind(queue_of(after), "amq.topic", "k", arguments)

    def test_names_of_any_bytes(self, world: World) -> None:
        name = 'Schlüssel/\u4e2d [1] "quoted"'
        world.vhost.bind(world.queue(name, durable=True), "amq.direct", name + "\udcfe", {})
        after = restart(world)
        assert after.route("amq.direct", name + "\udcfe") == [name]

    def test_vhosts_are_separate(self, world: World) -> None:
        from leveret.broker.broker import VhostSettings

        other = world.broker.add_vhost("other", VhostSettings())
        queue = other.declare_queue("q", None, durable=True)
        world.push(queue, "a", persistent=True)
        world.queue("q", durable=True)
        after = restart(world)
        assert queue_of(after).ready_count == 0
        assert after.broker.vhost("other").queues["q"].ready_count == 1

    def test_an_id_is_never_used_twice(self, world: World) -> None:
        first = world.queue("one", durable=True)
        after = restart(world)
        second = after.queue("two", durable=True)
        assert second.id > first.id
        assert restart(after).queue("three", durable=True).id > second.id

    def test_strict_modes_delivery_limit_is_back_too(self) -> None:
        world = World(strict=True)
        world.queue(durable=True)
        after = restart(world, strict=True)
        assert queue_of(after).settings.delivery_limit == 5
        assert queue_of(after).settings.dead_letter_routing_key == "amq.dead"

    def test_the_expiry_of_unused_queues_restarts(self, world: World) -> None:
        world.queue(durable=True, expires=1000)
        world.sleep(900)
        after = restart(world)
        after.sleep(900)
        assert "q" in after.vhost.queues
        after.sleep(100)
        assert "q" not in after.vhost.queues


class TestMessages:
    def test_persistent_ones_in_order(self, world: World) -> None:
        queue = world.queue(durable=True)
        for number in range(10):
            world.push(queue, str(number), persistent=number % 2 == 0)
        after = restart(world)
        assert figures(queue_of(after)) == (5, 5, 0)
        assert after.contents(queue_of(after)) == ["0", "2", "4", "6", "8"]

    def test_settled_messages_are_not_recovered(self, world: World) -> None:
        queue = world.queue(durable=True)
        consumer = Taker(queue, credit=3)
        world.push(queue, *"abcd", persistent=True)
        world.run()
        consumer.ack(2)
        after = restart(world)
        assert after.contents(queue_of(after)) == ["c", "d"]

    def test_new_messages_follow_old_ones(self, world: World) -> None:
        queue = world.queue(durable=True)
        world.push(queue, "a", "b", persistent=True)
        after = restart(world)
        after.push(queue_of(after), "c", persistent=True)
        assert after.contents(queue_of(after)) == ["a", "b", "c"]

    def test_sequence_numbers_continue_even_when_the_queue_was_empty(self, world: World) -> None:
        queue = world.queue(durable=True)
        world.push(queue, "a", "b", persistent=True)
        world.run()
        world.contents(queue)
        after = restart(world)
        assert queue_of(after).next_seq == 3

    def test_priorities(self, world: World) -> None:
        queue = world.queue(durable=True)
        for body, priority in (("a", 1), ("b", 9), ("c", -1), ("d", 9), ("e", 4)):
            world.push(queue, body, persistent=True, priority=priority)
        after = restart(world)
        assert figures(queue_of(after)) == (5, 5, 0)
        after.push(queue_of(after), "f", persistent=True, priority=9)
        assert after.contents(queue_of(after)) == ["b", "d", "f", "c", "e", "a"]

    def test_one_priority_for_all_and_another_that_follows(self, world: World) -> None:
        queue = world.queue(durable=True, max_priority=5)
        world.push(queue, "a", "b", persistent=True, priority=7)
        after = restart(world)
        after.push(queue_of(after), "c", persistent=True, priority=5)
        after.push(queue_of(after), "d", persistent=True, priority=1)
        assert after.contents(queue_of(after)) == ["a", "b", "c", "d"]

    def test_after_a_crash_every_message_is_redelivered(self, world: World) -> None:
        queue = world.queue(durable=True)
        world.push(queue, "a", persistent=True)
        after = restart(world)
        after.push(queue_of(after), "new", persistent=True)
        consumer = Taker(queue_of(after))
        after.run()
        assert [entry.acquired_count > 1 for entry in consumer.taken] == [True, False]

    def test_a_clean_stop_after_a_crash_keeps_redelivered_flags(self, world: World) -> None:
        world.push(world.queue(durable=True), "a", persistent=True)
        after = restart(world)
        after.push(queue_of(after), "new", persistent=True)
        for _ in range(2):
            after = restart(after, clean=True)
        consumer = Taker(queue_of(after))
        after.run()
        assert [entry.acquired_count > 1 for entry in consumer.taken] == [True, False]

    def test_after_a_clean_stop_only_delivered_messages_are_redelivered(self, world: World) -> None:
        queue = world.queue(durable=True)
        consumer = Taker(queue, credit=1)
        world.push(queue, "a", "b", persistent=True)
        world.run()
        queue.remove_consumer(consumer)
        consumer.requeue()
        after = restart(world, clean=True)
        consumer = Taker(queue_of(after))
        after.run()
        assert [entry.acquired_count > 1 for entry in consumer.taken] == [True, False]

    def test_the_delivery_limit_counts_on(self, world: World) -> None:
        world.queue(durable=True, delivery_limit=3)
        world.push(queue_of(world), "a", persistent=True)
        for _ in range(3):
            consumer = Taker(queue_of(world))
            world.run()
            queue_of(world).remove_consumer(consumer)
            consumer.requeue()
            world = restart(world)
        consumer = Taker(queue_of(world))
        world.run()
        consumer.requeue()
        world.run()
        assert figures(queue_of(world)) == (0, 0, 0)

    def test_a_deep_queue_is_recovered_without_reading_it(self, world: World) -> None:
        queue = world.queue(durable=True)
        bodies = [f"{number:05}" for number in range(10_000)]
        world.push(queue, *bodies, persistent=True)
        after = restart(world)
        assert figures(queue_of(after)) == (10_000, 50_000, 0)
        assert queue_of(after).ready.memory == 0
        consumer = Taker(queue_of(after), no_ack=True)
        after.run()
        assert consumer.history == bodies

    def test_limits_apply_to_recovered_messages(self, world: World) -> None:
        queue = world.queue(durable=True, max_length=3)
        world.push(queue, *"abc", persistent=True)
        after = restart(world)
        after.push(queue_of(after), "d", persistent=True)
        after.run()
        assert after.contents(queue_of(after)) == ["b", "c", "d"]


class TestExpiry:
    def test_by_the_queues_time(self, world: World) -> None:
        queue = world.queue(durable=True, message_ttl=1000)
        world.push(queue, "a", persistent=True)
        after = restart(world)
        after.sleep(999)
        assert queue_of(after).ready_count == 1
        after.sleep(1)
        assert queue_of(after).ready_count == 0

    def test_by_the_messages(self, world: World) -> None:
        """A retry queue has no consumers: only the clock moves its messages on."""
        world.queue("work", durable=True)
        queue = world.queue(durable=True, dead_letter_exchange="", dead_letter_routing_key="work")
        world.push(queue, "a", persistent=True, ttl=1000)
        after = restart(world)
        after.sleep(1000)
        assert (queue_of(after).ready_count, queue_of(after, "work").ready_count) == (0, 1)

    def test_dead_letters_of_messages_that_expired_while_the_broker_was_down(self, world: World) -> None:
        world.queue("work", durable=True)
        queue = world.queue(durable=True, message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="work")
        world.push(queue, "a", persistent=True)
        world.run()
        world.clock.time += 60_000
        after = restart(world)
        after.sleep(0)
        assert (queue_of(after).ready_count, queue_of(after, "work").ready_count) == (0, 1)


def test_dead_letters_keep_their_headers(world: World) -> None:
    dead = world.queue("dead", durable=True)
    queue = world.queue(durable=True, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.push(queue, "a", persistent=True)
    entry = queue.get(False)
    assert entry is not None
    queue.reject(entry)
    after = restart(world)
    entry = None
    while entry is None:
        entry = queue_of(after, "dead").get(True)
        after.run()
    headers = after.vhost.dead_letters.headers_of(entry)
    assert deaths_in(headers)[0]["queue"] == "q"
    assert dead.name == "dead"


class TestDroppedDefinitions:
    """A start without definitions that were damaged."""

    ENDS = ((metadata.QUEUE, '["/", "q"]'), (metadata.EXCHANGE, '["/", "x"]'))

    @staticmethod
    def restart_without(world: World, *lost: tuple[str, str]) -> World:
        world.run()
        log, recovery = world.held_log.recovery(False)
        for kind, key in lost:
            del recovery.metadata[kind, key]
            log.metadata.pop((kind, key))
            # A damaged kind does not reveal the lost object.
            recovery.dropped.append((f"?{kind}", key))
        after = World(log=log, recovery=recovery, time=world.clock.time)
        after.run()
        return after

    @pytest.mark.parametrize("lost", ENDS, ids=["queue", "exchange"])
    def test_bindings_of_lost_ends_stay_in_the_log(self, world: World, lost: tuple[str, str]) -> None:
        world.vhost.declare_exchange("x", "direct", durable=True)
        world.vhost.bind(world.queue("q", durable=True), "x", "k", {})
        after = self.restart_without(world, lost)
        assert after.vhost.bindings() == []
        assert metadata.BINDING in {kind for kind, _ in after.held_log.metadata}
        # The end may have been deleted since; only a start with complete definitions can tell.
        again = restart(after)
        assert again.vhost.bindings() == []
        assert metadata.BINDING not in {kind for kind, _ in again.held_log.metadata}

    @pytest.mark.parametrize("lost", ENDS, ids=["queue", "exchange"])
    def test_bindings_to_missing_objects_are_removed_if_nothing_was_lost(self, world: World, lost: tuple[str, str]) -> None:
        world.vhost.declare_exchange("x", "direct", durable=True)
        world.vhost.bind(world.queue("q", durable=True), "x", "k", {})
        world.run()
        del world.held_log.metadata[lost]
        after = restart(world)
        after.run()
        assert after.vhost.bindings() == []
        assert metadata.BINDING not in {kind for kind, _ in after.held_log.metadata}

    @pytest.mark.parametrize("dropped", [False, True])
    def test_bindings_of_another_end_of_that_name(self, world: World, dropped: bool) -> None:
        """If definitions were lost, only names are compared; otherwise the binding is a leftover."""
        world.vhost.declare_exchange("x", "direct", durable=True)
        world.vhost.bind(world.queue("q", durable=True), "x", "k", {})
        world.run()
        key = metadata.QUEUE, '["/", "q"]'
        stored = metadata.unpack(world.held_log.metadata[key])
        world.held_log.metadata[key] = metadata.pack({**stored, "id": stored["id"] + 1})
        world.queue("lost", durable=True)
        after = self.restart_without(world, (metadata.QUEUE, '["/", "lost"]')) if dropped else restart(world)
        assert after.route("x", "k") == (["q"] if dropped else [])
        # It has the new numbers from then on.
        assert restart(after).route("x", "k") == (["q"] if dropped else [])

    def test_queue_ids_are_not_used_twice(self, world: World) -> None:
        world.queue("kept", durable=True)
        lost = world.queue("lost", durable=True)
        after = self.restart_without(world, ("counter", "queue-id"), ("queue", '["/", "lost"]'))
        new = after.queue("new", durable=True).id
        assert new > max(lost.id, queue_of(after, "kept").id)
        assert restart(after).queue("newer", durable=True).id > new

    @pytest.mark.parametrize("deleted", [False, True])
    def test_ids_in_the_log_are_not_used_again(self, world: World, deleted: bool) -> None:
        queue = world.queue("q", durable=True)
        world.push(queue, "a", persistent=True)
        lost = [("counter", "queue-id"), *([("queue", '["/", "q"]')] if deleted else [])]
        after = self.restart_without(world, *lost)
        new = after.queue("new", durable=True)
        assert new.id > queue.id and new.ready_count == 0

    def test_a_counter_that_is_too_low_is_corrected(self, world: World) -> None:
        queue = world.queue("kept", durable=True)
        world.run()
        log, recovery = world.held_log.recovery(False)
        recovery.metadata["counter", "queue-id"] = metadata.pack({"next": queue.id})
        after = World(log=log, recovery=recovery, time=world.clock.time)
        assert after.queue("new", durable=True).id > queue.id

    @pytest.mark.parametrize("released", [False, True])
    def test_lease_epochs_are_not_used_twice(self, world: World, released: bool) -> None:
        world.queue("q", durable=True)
        epochs = [queue_of(world).make_leases().acquire("l").epoch for _ in range(3)]
        if released:
            Leases.of(queue_of(world), "l").release("l")
        after = self.restart_without(world, ("counter", "lease-epoch"))
        new = queue_of(after).make_leases().acquire("l").epoch
        assert new > max(epochs)
        assert queue_of(restart(after)).make_leases().acquire("l").epoch > new
