"""The firehose: which messages it copies, that it does no work while it is off, and its limits."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from leveret.broker.broker import VhostSettings
from leveret.broker.consumer import NO_CLIENT
from leveret.broker.events import EVENTS
from leveret.broker.firehose import MAX_HEADER, MAX_LISTED, MAX_LISTED_IN_LARGE, MAX_PENDING, MAX_PENDING_BYTES, TRACE
from leveret.broker.message import Message, make_address
from leveret.broker.queues.queue import Queue
from leveret.broker.watches import trace_get
from tests.broker.leases.support import LeaseReader, plan
from tests.broker.leases.test_leases import acquire
from tests.broker.streams.test_record_batches import Packs
from tests.broker.streams.test_streams import Reading, append, stream
from tests.broker.support import Taker, World

Trace = dict[str, Any]


@pytest.fixture
def world() -> World:
    return World()


def listen(world: World, *patterns: str, name: str = "traces", **arguments: Any) -> Queue:
    """Switch the firehose on, and return a queue that gets trace messages."""
    queue = world.queue(name, **arguments)
    for pattern in patterns or ("#",):
        world.vhost.bind(queue, TRACE, pattern, {})
    world.vhost.firehose.switch(True)
    return queue


def take(world: World, queue: Queue) -> list[Message]:
    """Return the trace messages since the last time, at the end of a turn."""
    world.broker.end_turn()
    messages: list[Message] = []
    while (entry := queue.get(True)) is not None:
        assert entry.message.exchange == TRACE
        messages.append(entry.message)
    return messages


def traces(world: World, queue: Queue) -> list[tuple[str, Trace]]:
    """Return the routing keys and headers of the trace messages since the last time."""
    return [(message.routing_key, json.loads(message.header)["headers"]) for message in take(world, queue)]


def keys(world: World, queue: Queue) -> list[str]:
    return [message.routing_key for message in take(world, queue)]


class TestContents:
    def test_a_publish_and_a_delivery(self, world: World) -> None:
        world.broker.node_name = "rabbit@here"
        queue, other = world.queue(), world.queue("other")
        for bound in (queue, other):
            world.vhost.bind(bound, "amq.topic", "k.#", {})
        found = listen(world)
        world.publish("amq.topic", "k.1", "body", headers={"a": 1})
        Taker(queue)
        common = {
            "exchange_name": "amq.topic",
            "routing_keys": ["k.1"],
            "properties": {"headers": {"a": 1}},
            "node": "rabbit@here",
            "vhost": "/",
            "connection": "",
            "channel": 0,
            "user": "",
        }
        assert traces(world, found) == [
            ("publish.amq.topic", common | {"routed_queues": ["q", "other"]}),
            ("deliver.q", common | {"redelivered": 0}),
        ]

    def test_the_body_is_shared_with_the_message(self, world: World) -> None:
        found = listen(world)
        message = world.message("body", key="nowhere")
        world.vhost.route_message(world.vhost.route(message.address), message, [], NO_CLIENT)
        (trace,) = take(world, found)
        assert trace.body is message.body
        assert not trace.persistent

    def test_an_unroutable_publish_to_the_default_exchange(self, world: World) -> None:
        found = listen(world)
        world.publish("", "nowhere")
        ((key, headers),) = traces(world, found)
        assert key == "publish."
        assert headers["routed_queues"] == []

    def test_redeliveries(self, world: World) -> None:
        found = listen(world, "deliver.#")
        taker = Taker(world.queue())
        world.publish("", "q")
        world.broker.end_turn()
        taker.requeue()
        assert [headers["redelivered"] for _, headers in traces(world, found)] == [0, 1]

    def test_copies_and_dead_letters_have_the_keys_of_their_headers(self, world: World) -> None:
        source = world.queue("source", dead_letter_exchange="amq.fanout")
        dead = world.queue("dead")
        world.vhost.bind(dead, "amq.fanout", "", {})
        found = listen(world, "deliver.#")
        message = world.message(key="source", headers={"CC": ["more"]})
        source.push(message)
        taker = Taker(source)
        world.broker.end_turn()
        taker.taken[0].queue.reject(taker.taken.pop())
        Taker(dead)
        (_, first), (key, second) = traces(world, found)
        assert first["routing_keys"] == second["routing_keys"] == ["source", "more"]
        assert (key, second["exchange_name"]) == ("deliver.dead", "amq.fanout")
        assert second["properties"]["headers"]["x-first-death-queue"] == "source"

    def test_streams_with_offsets(self, world: World) -> None:
        queue = stream(world)
        found = listen(world, "deliver.s")
        append(world, queue, "zero", "one")
        Reading(queue)
        offsets = [headers["properties"]["headers"]["x-stream-offset"] for _, headers in traces(world, found)]
        assert offsets == [0, 1]

    def test_a_get_names_its_client(self, world: World) -> None:
        queue = world.queue()
        found = listen(world, "deliver.#")
        world.publish("", "q")
        entry = queue.get(True)
        assert entry is not None
        trace_get(queue, entry, NO_CLIENT)
        assert keys(world, found) == ["deliver.q"]

    def test_long_names_are_truncated_in_the_routing_key(self, world: World) -> None:
        name = "x" * 255
        world.vhost.declare_exchange(name, "direct")
        found = listen(world)
        world.publish(name, "k")
        ((key, headers),) = traces(world, found)
        assert key == f"publish.{name}"[:255]
        assert headers["exchange_name"] == name


class TestWhatIsTraced:
    def test_nothing_is_watched_while_it_is_off(self, world: World) -> None:
        queue = world.queue()
        world.vhost.bind(world.queue("traces"), TRACE, "#", {})
        assert queue.watch is None
        assert not world.vhost.route(make_address("", "q")).dynamic
        world.vhost.firehose.switch(True)
        assert queue.watch is not None
        assert world.queue("later").watch is not None
        assert world.vhost.route(make_address("", "q")).dynamic
        world.vhost.firehose.switch(False)
        assert queue.watch is None
        assert not world.vhost.route(make_address("", "q")).dynamic

    def test_nothing_is_added_without_a_binding(self, world: World) -> None:
        world.vhost.firehose.switch(True)
        world.queue()
        world.publish("", "q")
        assert not world.broker.outputs
        world.vhost.bind(world.queue("traces"), TRACE, "#", {})
        world.publish("", "q")
        assert world.broker.outputs == [world.vhost.firehose]

    def test_trace_messages_are_not_traced(self, world: World) -> None:
        found = listen(world)
        Taker(world.queue("second"))
        world.vhost.bind(world.vhost.exchange("amq.fanout"), TRACE, "#", {})
        world.vhost.bind(world.vhost.queues["second"], "amq.fanout", "", {})
        world.publish("", "nowhere")
        assert keys(world, found) == ["publish."]

    def test_dead_letters_of_trace_messages_are_not_traced(self, world: World) -> None:
        """They would feed a queue of traces that dead-letters them for ever."""
        found = listen(world, max_length=0, dead_letter_exchange="amq.fanout")
        dead = world.queue("dead")
        world.vhost.bind(dead, "amq.fanout", "", {})
        taker = Taker(dead)
        world.publish("", "nowhere")
        world.broker.end_turn()
        assert [entry.message.routing_key for entry in taker.taken] == ["publish."]
        assert keys(world, found) == []

    def test_events_and_trace_messages_do_not_feed_each_other(self, world: World) -> None:
        found = listen(world)
        world.vhost.bind(found, EVENTS, "#", {})
        taker = Taker(found)
        world.publish("", "nowhere")
        for _ in range(10):
            world.broker.end_turn()
        exchanges = [entry.message.exchange for entry in taker.taken]
        assert exchanges.count(TRACE) == 1
        assert world.broker.outputs == []

    def test_browsers_get_copies_that_are_not_traced(self, world: World) -> None:
        queue = world.queue()
        found = listen(world, "deliver.#")
        world.publish("", "q")
        world.broker.end_turn()
        browser = Taker(queue, join=False)
        browser.browse({})
        queue.add_consumer(browser)
        world.broker.end_turn()
        assert browser.bodies() == ["m"]
        assert keys(world, found) == []

    def test_a_binding_chooses(self, world: World) -> None:
        found = listen(world, "publish.amq.direct")
        world.publish("", "nowhere")
        world.publish("amq.direct", "nowhere")
        assert keys(world, found) == ["publish.amq.direct"]

    def test_other_vhosts_are_not_traced(self, world: World) -> None:
        found = listen(world)
        other = world.broker.add_vhost("other", VhostSettings())
        message = world.message()
        other.route_own(message)
        assert not other.firehose.on
        assert keys(world, found) == []


class TestLimits:
    def test_a_flood_is_dropped_counted_and_logged_once(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        found = listen(world)
        with caplog.at_level(logging.INFO, "leveret.broker"):
            for _ in range(MAX_PENDING + 5):
                world.publish("", "nowhere")
            world.run()
            assert len(take(world, found)) == MAX_PENDING
            assert world.vhost.firehose.dropped == 5
            world.publish("", "nowhere")
            assert len(take(world, found)) == 1
            world.vhost.firehose.switch(False)
        assert [record.getMessage() for record in caplog.records] == [
            f"trace messages of vhost '/' are dropped: more than {MAX_PENDING}, or {MAX_PENDING_BYTES} bytes of them, were"
            " to be published at once",
            "the firehose of vhost '/' is off, 5 trace messages were dropped",
        ]

    def test_the_bytes_of_a_turn_are_limited(self, world: World) -> None:
        found = listen(world)
        headers = {"a": "x" * (MAX_HEADER // 2)}
        for _ in range(2 * MAX_PENDING_BYTES // (MAX_HEADER // 2)):
            world.publish("", "nowhere", headers=headers)
        size = sum(len(message.header) for message in take(world, found))
        assert MAX_PENDING_BYTES <= size < MAX_PENDING_BYTES + MAX_HEADER
        assert world.vhost.firehose.dropped

    def test_each_trace_message_is_work(self, world: World) -> None:
        """So that a turn reads less from publishers, and delivers less."""
        listen(world)
        world.publish("", "nowhere", headers={"a": "x" * 4096})
        assert world.broker.work > 4096 >> 4

    @pytest.mark.parametrize("packed", [False, True])
    def test_streams_are_read_over_several_turns(self, world: World, packed: bool) -> None:
        queue = stream(world)
        found = listen(world, "deliver.s")
        append(world, queue, *["m"] * 1000)
        reader = Packs(queue) if packed else Reading(queue)
        world.broker.end_turn()
        assert 0 < found.ready_count < 1000
        world.run()
        assert found.ready_count == 1000
        if isinstance(reader, Packs):
            assert [offset for _, _, offsets, _ in reader.got() for offset in offsets] == list(range(1000))

    @pytest.mark.parametrize("packed", [False, True])
    def test_leases_are_read_over_several_turns(self, world: World, packed: bool) -> None:
        queue = world.queue(durable=True)
        found = listen(world, "deliver.q")
        world.push(queue, *["m"] * 1000, persistent=True)
        epoch = acquire(queue)
        plan(world, queue, "l", epoch, 0, 1000)
        LeaseReader(queue, "l", epoch, 1, 0, 1000, packed=packed)
        world.broker.end_turn()
        assert found.ready_count < 1000
        world.run()
        assert found.ready_count == 1000

    def test_queues_are_read_over_several_turns(self, world: World) -> None:
        queue = world.queue()
        found = listen(world, "deliver.q")
        world.push(queue, *["m"] * 1000)
        Taker(queue)
        world.broker.end_turn()
        assert 0 < found.ready_count < 1000
        world.run()
        assert found.ready_count == 1000

    def test_a_header_that_does_not_fit_a_frame_is_shortened(self, world: World) -> None:
        found = listen(world)
        for number in range(MAX_LISTED + 10):
            world.vhost.bind(world.queue(f"q{number}"), "amq.fanout", "", {})
        world.publish("amq.fanout", "")
        ((_, headers),) = traces(world, found)
        assert len(headers["routed_queues"]) == MAX_LISTED
        world.publish("amq.fanout", "", headers={"a": "x" * MAX_HEADER}, type="t")
        ((_, headers),) = traces(world, found)
        assert len(headers["routed_queues"]) == MAX_LISTED_IN_LARGE
        assert headers["properties"] == {"type": "t"}

    def test_a_trace_exchange_with_many_queues_is_served_in_steps(self, world: World) -> None:
        found = [listen(world, name=f"traces{number}") for number in range(300)]
        for _ in range(50):
            world.publish("", "nowhere")
        world.broker.end_turn()
        assert found[-1].ready_count < 50
        world.run()
        assert {queue.ready_count for queue in found} == {50}

    def test_rejections_of_full_queues_are_counted(self, world: World) -> None:
        found = listen(world, max_length=1, overflow="reject-publish")
        for _ in range(3):
            world.publish("", "nowhere")
        assert len(take(world, found)) == 1
        assert world.vhost.firehose.dropped == 2

    def test_many_queues_are_switched_in_steps(self, world: World) -> None:
        queues = [world.queue(f"q{number}") for number in range(5000)]
        world.vhost.firehose.switch(True)
        assert queues[-1].watch is None
        world.run()
        assert all(queue.watch is not None for queue in queues)

    def test_the_vhost_is_deleted_with_pending_trace_messages(self, world: World) -> None:
        found = listen(world)
        world.publish("", "nowhere")
        world.broker.remove_vhost("/")
        world.broker.end_turn()
        assert found.deleted
        assert not world.broker.outputs
