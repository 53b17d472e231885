"""Events of the broker: their contents and counts, and that there is no work without a binding."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from leveret.broker.events import EVENT_WORK, EVENTS, MAX_PENDING, MAX_WORK, EventsExchange
from leveret.broker.message import make_address
from leveret.broker.queues.classic.queue import GUARDED_WORK, ClassicQueue
from leveret.broker.transactions.transaction import ACCEPT, Transaction
from leveret.broker.watches import events_of
from tests.broker.support import Taker, World, body_of
from tests.support.queues import classic

Event = dict[str, Any]


@pytest.fixture
def world() -> World:
    return World()


def listen(world: World, *patterns: str, name: str = "events", **arguments: Any) -> ClassicQueue:
    queue = world.queue(name, **arguments)
    for pattern in patterns or ("#",):
        world.vhost.bind(queue, EVENTS, pattern, {})
    return queue


def heard(world: World, queue: ClassicQueue) -> list[Event]:
    """The events since the last time, at the end of a turn."""
    world.broker.end_turn()
    events = []
    while (entry := queue.get(True)) is not None:
        event = json.loads(body_of(entry.message))
        assert entry.message.exchange == EVENTS
        assert entry.message.routing_key == f"{event['event']}.{event.get('queue', event.get('exchange'))}"
        events.append(event)
    return events


def kinds(events: list[Event]) -> list[str]:
    return [event["event"] for event in events]


def total(events: list[Event], **wanted: Any) -> int:
    """Return the number of messages represented by the events with these fields."""
    return sum(event["sample"] for event in events if all(event.get(name) == value for name, value in wanted.items()))


class TestContents:
    def test_the_life_of_a_message(self, world: World) -> None:
        queue = world.queue()
        events = listen(world)
        start = world.clock.now()
        world.publish("", "q", "four")
        world.broker.end_turn()
        world.clock.time += 70
        taker = Taker(queue)
        world.broker.end_turn()
        world.clock.time += 30
        taker.ack()
        message = {"vhost": "/", "exchange": "", "routing_key": "q", "size": 4, "sample": 1}
        assert heard(world, events) == [
            {"event": "published", "time": start, "protocol": "0-9-1", **message},
            {"event": "routed", "time": start, "queue": "q", "protocol": "0-9-1", **message},
            {"event": "delivered", "time": start + 70, "queue": "q", "age_ms": 70, **message},
            {"event": "settled", "time": start + 100, "queue": "q", "outcome": "accepted", "age_ms": 30, **message},
        ]

    def test_an_unroutable_publish(self, world: World) -> None:
        events = listen(world)
        world.vhost.declare_exchange("x", "direct")
        world.publish("x", "k")
        assert kinds(heard(world, events)) == ["published", "unroutable"]

    def test_an_alternate_exchange_routes(self, world: World) -> None:
        world.vhost.declare_exchange("other", "fanout")
        world.vhost.declare_exchange("x", "direct", arguments={"alternate-exchange": "other"})
        world.vhost.bind(world.queue(), "other", "", {})
        events = listen(world)
        world.publish("x", "k")
        told = heard(world, events)
        assert [(event["event"], event["exchange"]) for event in told] == [("published", "x"), ("routed", "x")]

    @pytest.mark.parametrize("type_name", ["headers", "x-consistent-hash"])
    def test_exchanges_that_look_at_each_message(self, world: World, type_name: str) -> None:
        world.vhost.declare_exchange("x", type_name)
        world.vhost.bind(world.queue(), "x", "1", {})
        events = listen(world)
        world.publish("x", "k", headers={"a": "b"})
        assert kinds(heard(world, events)) == ["published", "routed"]

    def test_each_queue_of_a_fan_out(self, world: World) -> None:
        for name in "abc":
            world.vhost.bind(world.queue(name), "amq.fanout", "", {})
        events = listen(world, "routed.*")
        world.publish("amq.fanout", "k")
        assert [event["queue"] for event in heard(world, events)] == ["a", "b", "c"]

    def test_outcomes(self, world: World) -> None:
        queue = world.queue()
        events = listen(world, "settled.q")
        taker = Taker(queue, credit=3)
        world.push(queue, "a", "b", "c")
        world.broker.end_turn()
        taker.ack()
        queue.reject(taker.taken.pop(0))
        taker.requeue()
        assert [(event["outcome"], event.get("reason")) for event in heard(world, events)] == [
            ("accepted", None),
            ("rejected", None),
            ("released", None),
        ]

    def test_deliveries_without_acknowledgement_and_gets(self, world: World) -> None:
        queue = world.queue()
        events = listen(world, "delivered.q", "settled.q")
        world.push(queue, "a", "b", "c")
        assert queue.get(True) is not None
        entry = queue.get(False)
        assert entry is not None
        queue.settle(entry)
        Taker(queue, no_ack=True)
        assert kinds(heard(world, events)) == ["delivered", "settled"] * 3

    def test_a_copy_is_a_separate_delivery(self, world: World) -> None:
        queue = world.queue()
        events = listen(world, "delivered.q", "settled.q")
        world.push(queue, "a")
        browser = Taker(queue, join=False)
        browser.browse({})
        queue.add_consumer(browser)
        assert [(event["event"], event["outcome"]) for event in heard(world, events)] == [("delivered", "copy")]

    def test_expired(self, world: World) -> None:
        queue = world.queue(message_ttl=50)
        events = listen(world, "expired.*", "dead-lettered.*")
        world.push(queue, "a")
        world.broker.end_turn()
        world.clock.time += 60
        world.clock.run(world.clock.now())
        (event,) = heard(world, events)
        assert (event["event"], event["queue"], event["age_ms"]) == ("expired", "q", 60)

    def test_dead_letters(self, world: World) -> None:
        dead = world.queue("dead")
        queue = world.queue(dead_letter_exchange="", dead_letter_routing_key="dead")
        events = listen(world)
        taker = Taker(queue)
        world.push(queue, "a")
        heard(world, events)
        queue.reject(taker.taken.pop())
        told = heard(world, events)
        assert [(event["event"], event["queue"]) for event in told] == [
            ("settled", "q"),
            ("routed", "dead"),
            ("dead-lettered", "q"),
        ]
        assert (told[2]["reason"], told[2]["outcome"]) == ("rejected", "routed")
        assert told[1]["routing_key"] == "dead"
        assert dead.ready_count == 1

    def test_unroutable_dead_letters(self, world: World) -> None:
        queue = world.queue(dead_letter_exchange="amq.direct", max_length=1)
        events = listen(world, "dead-lettered.q", "settled.q")
        world.push(queue, "a", "b")
        assert [(event["event"], event["reason"], event["outcome"]) for event in heard(world, events)] == [
            ("settled", "maxlen", "dropped"),
            ("dead-lettered", "maxlen", "unroutable"),
        ]

    def test_messages_rejected_by_a_full_queue_are_not_routed(self, world: World) -> None:
        queue = world.queue(max_length=1, overflow="reject-publish")
        events = listen(world, "routed.q")
        assert not world.push(queue, "a", "b")
        assert kinds(heard(world, events)) == ["routed"]

    @pytest.mark.parametrize("end", ["purged", "deleted"])
    def test_a_removal_of_several_messages_is_one_event(self, world: World, end: str) -> None:
        queue = world.queue()
        events = listen(world, "settled.*")
        world.push(queue, *"abcde")
        if end == "purged":
            queue.purge()
        else:
            world.vhost.delete_queue("q", None)
        (event,) = heard(world, events)
        assert (event["outcome"], event["reason"], event["sample"]) == ("dropped", end, 5)
        assert "size" not in event

    def test_transactions(self, world: World) -> None:
        queue = world.queue(durable=True)
        events = listen(world)
        taker = Taker(queue)
        world.push(queue, "a")
        heard(world, events)
        transaction = Transaction(world.log)
        transaction.publish(world.message("b", key="q", persistent=True), [queue])
        transaction.settle(taker.taken.pop(), ACCEPT)
        assert heard(world, events) == []
        transaction.commit(lambda: None)
        assert kinds(heard(world, events)) == ["routed", "settled", "delivered"]

    def test_delayed(self, world: World) -> None:
        """It arrives when it is published, and is delivered when it is due."""
        queue = world.queue()
        events = listen(world, "routed.q", "delivered.q")
        Taker(queue)
        queue.delay(world.message("a", key="q"), world.clock.now() + 1000)
        assert kinds(heard(world, events)) == ["routed"]
        world.clock.time += 1000
        world.clock.run(world.clock.now())
        (event,) = heard(world, events)
        assert (event["event"], event["age_ms"]) == ("delivered", 1000)

    def test_streams(self, world: World) -> None:
        queue = world.declare("s", durable=True, queue_type="stream")
        events = listen(world)
        for _ in range(2):
            reader = Taker(queue, join=False)
            reader.arguments = {"x-stream-offset": "first"}
            queue.add_consumer(reader)
            reader_of = reader
        world.publish("", "s", "a")
        told = heard(world, events)
        assert Counter(kinds(told)) == {"published": 1, "routed": 1, "delivered": 2}
        reader_of.ack()
        (event,) = heard(world, events)
        assert (event["event"], event["outcome"], event["queue"]) == ("settled", "accepted", "s")


class TestWatches:
    def test_no_watch_without_a_binding(self, world: World) -> None:
        queue = world.queue()
        world.publish("", "q")
        world.broker.end_turn()
        assert queue.watch is None and not queue.guarded and not queue.dispatcher.selective
        assert not world.vhost.route(make_address("", "q")).dynamic
        assert not world.vhost.events.bound

    def test_only_bound_events_are_created(self, world: World) -> None:
        queue = world.queue()
        other = world.queue("other")
        listen(world, "published.#")
        assert queue.watch is None and not queue.guarded
        listen(world, "routed.q", "expired.q")
        watched = events_of(queue)
        assert watched is not None and not queue.dispatcher.selective and other.watch is None
        assert (watched.delivered_kind, watched.settled_kind) == (None, None)

    @pytest.mark.parametrize(
        ("pattern", "watched"),
        [
            ("#", "q r.s"),
            ("routed.#", "q r.s"),
            ("*.q", "q"),
            ("*.*", "q"),
            ("expired.r.s", "r.s"),
            ("#.s", "r.s"),
            ("dead-lettered.*.s", "r.s"),
            ("published.#", ""),
            ("unroutable.q", ""),
            ("routed", ""),
            ("dropped.#", ""),
            ("routed.nothing", ""),
            ("#.#", "q r.s"),
            ("settled.r.#", "r.s"),
        ],
    )
    def test_patterns_determine_the_watches(self, world: World, pattern: str, watched: str) -> None:
        names = ("q", "r.s")
        for name in names:
            world.queue(name)
        events = world.queue("events-of-others")
        queues = world.vhost.queues
        for _ in range(2):
            world.vhost.bind(events, EVENTS, pattern, {})
            assert [name for name in names if queues[name].watch is not None] == watched.split()
            world.vhost.unbind(events, EVENTS, pattern, {})
            assert not any(queue.watch for queue in queues.values())

    def test_a_long_name_matches_its_pattern(self, world: World) -> None:
        queue = world.queue("n" * 255)
        listen(world, f"routed.{'n' * 248}")
        assert queue.watch is not None

    def test_counts_continue_when_a_binding_is_added(self, world: World) -> None:
        events = listen(world, "routed.q")
        queue = world.queue()
        listen(world, "expired.q", name="more")
        world.publish("", "q")
        assert kinds(heard(world, events)) == ["routed"]
        watched = events_of(queue)
        assert watched is not None and watched.expired_kind is not None

    def test_removing_the_last_binding_ends_the_watch(self, world: World) -> None:
        queue = world.queue()
        events = listen(world)
        world.publish("", "q")
        assert len(heard(world, events)) == 2
        world.vhost.unbind(events, EVENTS, "#", {})
        world.publish("", "q")
        assert heard(world, events) == []
        assert queue.watch is None and not queue.guarded and not queue.dispatcher.selective
        assert not world.vhost.route(make_address("", "q")).dynamic

    def test_deleting_a_queue_removes_its_bindings(self, world: World) -> None:
        queue = world.queue()
        listen(world)
        world.vhost.delete_queue("events", None)
        assert queue.watch is None

    def test_a_new_queue_is_watched(self, world: World) -> None:
        events = listen(world, "routed.later")
        world.queue("later")
        world.publish("", "later")
        assert kinds(heard(world, events)) == ["routed"]

    def test_ending_a_watch_keeps_limits_and_selective_consumers(self, world: World) -> None:
        limited = world.queue("limited", max_length=1)
        picky = world.queue("picky")
        Taker(picky, only=b"a")
        events = listen(world)
        world.vhost.unbind(events, EVENTS, "#", {})
        assert limited.guarded and picky.dispatcher.selective

    def test_through_another_exchange(self, world: World) -> None:
        world.vhost.declare_exchange("chosen", "topic", internal=True)
        world.vhost.bind(world.vhost.exchange("chosen"), EVENTS, "#", {})
        events = world.queue("events")
        world.vhost.bind(events, "chosen", "routed.q", {})
        queue = world.queue()
        world.publish("", "q")
        assert kinds(heard(world, events)) == ["routed"]
        assert queue.watch is not None

    def test_events_about_events_are_never_created(self, world: World) -> None:
        events = listen(world)
        listen(world, name="more")
        world.queue()
        taker = Taker(events)
        world.publish("", "q")
        for _ in range(5):
            world.broker.end_turn()
        assert sorted(json.loads(body)["event"] for body in taker.bodies()) == ["published", "routed"]
        taker.ack(2)
        world.broker.end_turn()
        assert not taker.taken

    def test_a_dead_event_is_no_news_either(self, world: World) -> None:
        world.queue("dead")
        events = listen(world, max_length=1, dead_letter_exchange="", dead_letter_routing_key="dead")
        world.queue()
        for _ in range(3):
            world.publish("", "q")
            world.broker.end_turn()
        assert world.vhost.queues["dead"].ready_count == 5
        assert events.ready_count == 1

    def test_after_a_restart(self) -> None:
        world = World()
        listen(world, durable=True)
        world.queue(durable=True)
        world.push(world.vhost.queues["q"], "old", persistent=True)
        world.broker.end_turn()
        log, recovery = world.held_log.recovery()
        again = World(log=log, recovery=recovery)
        events = classic(again.vhost.queues["events"])
        Taker(again.vhost.queues["q"])
        again.publish("", "q")
        again.broker.end_turn()
        again.run()
        told = heard(again, events)
        assert Counter(kinds(told)) == {"published": 1, "routed": 1, "delivered": 2}
        assert sorted("age_ms" in event for event in told if event["event"] == "delivered") == [False, True]

    def test_names_that_are_no_ascii_or_too_long_for_a_key(self, world: World) -> None:
        events = listen(world)
        name = "ü" * 127
        world.queue(name)
        world.publish("", name)
        world.broker.end_turn()
        told = [json.loads(body_of(entry.message)) for entry in iter(lambda: events.get(True), None)]
        assert [event["routing_key"] for event in told] == [name, name]
        assert told[1]["queue"] == name


class TestCounts:
    @pytest.mark.parametrize("sample", [1, 2, 7, 100])
    def test_they_add_up(self, world: World, sample: int) -> None:
        world.broker.event_sample = sample
        queue = world.queue(message_ttl=1000)
        events = listen(world)
        taker = Taker(queue, credit=400)
        told = []
        for number in range(600):
            world.publish("", "q" if number % 3 else "nowhere", "x" * number)
            if number % 50 == 49:
                told += heard(world, events)
        assert len(taker.taken) == 400
        for index in range(400):
            if index % 4:
                taker.ack()
            else:
                queue.reject(taker.taken.pop(0))
            told += heard(world, events)
        assert abs(total(told, event="published") - 600) < sample
        assert abs(total(told, event="unroutable") - 200) < sample
        assert abs(total(told, event="routed") - 400) < sample
        assert abs(total(told, event="delivered") - 400) < sample
        assert abs(total(told, event="settled", outcome="accepted") - 300) < sample
        assert abs(total(told, event="settled", outcome="rejected") - 100) < sample
        assert all(event["sample"] == sample for event in told)
        assert len(told) <= 2000 / sample + 6

    def test_events_rejected_by_a_full_queue_are_counted(self, world: World) -> None:
        events = listen(world, max_length=3, overflow="reject-publish")
        queue = world.queue()
        for _ in range(10):
            assert world.publish("", "q") == ["q"]
        world.broker.end_turn()
        assert queue.ready_count == 10
        assert world.vhost.events.dropped == 17
        told = heard(world, events)
        assert len(told) == 3
        world.publish("", "q")
        (dropped, *rest) = heard(world, events)
        assert (dropped["event"], dropped["queue"], dropped["sample"]) == ("dropped", "events", 17)
        assert kinds(rest) == ["published", "routed"]

    def test_many_events_are_published_over_several_turns_and_in_order(self, world: World) -> None:
        queue = world.queue()
        events = listen(world, "routed.q")
        begun = world.clock.now()
        for size in range(MAX_WORK):
            queue.push(world.message("x" * (size % 100), key="q"))
        counts = []
        world.broker.end_turn()
        while events.ready_count < MAX_WORK:
            counts.append(events.ready_count)
            world.clock.time += 1000
            queue.push(world.message("", key="q"))
            world.posted.pop(0)()
            world.broker.end_turn()
        assert len(counts) > 2 and counts[0] <= MAX_WORK // EVENT_WORK
        world.run()
        told = heard(world, events)
        assert [event["size"] for event in told[:MAX_WORK]] == [size % 100 for size in range(MAX_WORK)]
        assert {event["time"] for event in told[:MAX_WORK]} == {begun}
        assert [event["time"] for event in told[MAX_WORK:]] == [begun + 1000 * (at + 1) for at in range(len(counts))]
        assert world.vhost.events.dropped == 0

    def test_events_are_work(self, world: World) -> None:
        """So that a turn reads less from publishers, and delivers less."""
        queue = world.queue()
        before = world.broker.work
        queue.push(world.message("a", key="q"))
        plain = world.broker.work - before
        listen(world, "routed.q")
        before = world.broker.work
        queue.push(world.message("a", key="q"))
        assert world.broker.work - before == plain + GUARDED_WORK + EVENT_WORK

    def test_pending_events_end_with_their_vhost(self, world: World) -> None:
        queue = world.queue()
        events = listen(world, "routed.q")
        for _ in range(MAX_WORK):
            queue.push(world.message("a", key="q"))
        world.broker.end_turn()
        count = events.ready_count
        world.broker.remove_vhost(world.vhost.name)
        world.run()
        assert 0 < count < MAX_WORK and not world.broker.jobs.waiting

    def test_the_events_of_a_turn_are_limited(self, world: World) -> None:
        queue = world.queue()
        events = listen(world, "routed.q", "dropped.#")
        message = world.message("a", key="q")
        for _ in range(MAX_PENDING + 5):
            queue.push(message)
        world.run()
        assert world.vhost.events.dropped == 5
        assert events.ready_count == MAX_PENDING + 1
        first = events.get(True)
        assert first is not None
        told = json.loads(body_of(first.message))
        assert (first.message.routing_key, told["event"], told["sample"]) == ("dropped.", "dropped", 5)


def test_the_exchange_is_predeclared_and_internal(world: World) -> None:
    exchange = world.vhost.exchange(EVENTS)
    assert isinstance(exchange, EventsExchange)
    assert (exchange.type, exchange.durable, exchange.internal) == ("topic", True, True)
    assert world.vhost.declare_exchange(EVENTS, "topic", durable=True, internal=True) is exchange
