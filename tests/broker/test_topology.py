"""Routes and their cache, exchange-to-exchange bindings, alternate exchanges, deletion and auto-deletion."""

from __future__ import annotations

import pytest

from leveret.broker.consumer import NO_CLIENT
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.message import make_address
from tests.broker.support import Taker, World


class TestCache:
    """A cached route must not outlive the topology that it is based on."""

    def test_a_new_binding(self, world: World) -> None:
        one, two = world.queue("one"), world.queue("two")
        world.vhost.bind(one, "amq.direct", "k", {})
        assert world.route("amq.direct", "k") == ["one"]
        world.vhost.bind(two, "amq.direct", "k", {})
        assert world.route("amq.direct", "k") == ["one", "two"]

    def test_a_removed_binding(self, world: World) -> None:
        queue = world.queue("one")
        world.vhost.bind(queue, "amq.direct", "k", {})
        assert world.route("amq.direct", "k") == ["one"]
        world.vhost.unbind(queue, "amq.direct", "k", {})
        assert world.route("amq.direct", "k") == []

    def test_a_queue_deleted_and_declared_again(self, world: World) -> None:
        world.queue("one")
        assert world.route("", "one") == ["one"]
        world.vhost.delete_queue("one", None)
        assert world.route("", "one") == []
        again = world.queue("one")
        assert world.vhost.route(make_address("", "one")).queues == [again]

    def test_an_exchange_deleted_and_declared_again(self, world: World) -> None:
        world.vhost.declare_exchange("x", "fanout")
        world.vhost.bind(world.queue("one"), "x", "", {})
        assert world.route("x") == ["one"]
        world.vhost.delete_exchange("x")
        with pytest.raises(NotFound):
            world.route("x")
        world.vhost.declare_exchange("x", "fanout")
        assert world.route("x") == []

    def test_a_binding_further_down(self, world: World) -> None:
        world.vhost.declare_exchange("a", "fanout")
        inner = world.vhost.declare_exchange("b", "direct")
        world.vhost.bind(inner, "a", "", {})
        assert world.route("a", "k") == []
        world.vhost.bind(world.queue("one"), "b", "k", {})
        assert world.route("a", "k") == ["one"]
        world.vhost.unbind(inner, "a", "", {})
        assert world.route("a", "k") == []

    def test_an_alternate_that_is_declared_later(self, world: World) -> None:
        world.vhost.declare_exchange("a", "direct", arguments={"alternate-exchange": "rest"})
        assert world.route("a", "k") == []
        world.vhost.declare_exchange("rest", "fanout")
        world.vhost.bind(world.queue("one"), "rest", "", {})
        assert world.route("a", "k") == ["one"]

    def test_a_bound_headers_exchange_makes_the_route_depend_on_the_message(self, world: World) -> None:
        world.vhost.declare_exchange("a", "fanout")
        world.vhost.bind(world.queue("one"), "amq.headers", "", {"colour": "red"})
        assert not world.vhost.route(make_address("a", "")).dynamic
        headers = world.vhost.exchange("amq.headers")
        world.vhost.bind(headers, "a", "", {})
        assert world.vhost.route(make_address("a", "")).dynamic
        assert world.publish("a", "", headers={"colour": "red"}) == ["one"]
        assert world.publish("a", "", headers={"colour": "blue"}) == []
        world.vhost.unbind(headers, "a", "", {})
        assert not world.vhost.route(make_address("a", "")).dynamic


class TestExchangeToExchange:
    def test_each_queue_gets_a_message_once(self, world: World) -> None:
        queue = world.queue("one")
        for name in ("a", "b", "c"):
            world.vhost.declare_exchange(name, "fanout")
            world.vhost.bind(queue, name, "", {})
        for target in ("b", "c"):
            world.vhost.bind(world.vhost.exchange(target), "a", "", {})
        world.vhost.bind(queue, "a", "another key", {})
        assert world.vhost.route(make_address("a", "k")).queues == [queue]

    def test_a_loop_ends(self, world: World) -> None:
        for name in ("a", "b"):
            world.vhost.declare_exchange(name, "fanout")
        world.vhost.bind(world.vhost.exchange("b"), "a", "", {})
        world.vhost.bind(world.vhost.exchange("a"), "b", "", {})
        world.vhost.bind(world.vhost.exchange("a"), "a", "", {})
        world.vhost.bind(world.queue("one"), "b", "", {})
        assert world.route("a") == ["one"]
        assert world.route("b") == ["one"]

    def test_a_long_chain(self, world: World) -> None:
        world.vhost.declare_exchange("x0", "fanout")
        for number in range(1, 2000):
            exchange = world.vhost.declare_exchange(f"x{number}", "fanout")
            world.vhost.bind(exchange, f"x{number - 1}", "", {})
        world.vhost.bind(world.queue("one"), "x1999", "", {})
        assert world.route("x0") == ["one"]

    def test_the_target_that_is_deleted_is_left_out(self, world: World) -> None:
        world.vhost.declare_exchange("a", "fanout")
        world.vhost.declare_exchange("b", "fanout")
        world.vhost.bind(world.vhost.exchange("b"), "a", "", {})
        world.vhost.bind(world.queue("one"), "b", "", {})
        world.vhost.delete_exchange("b")
        assert world.route("a") == []
        assert world.vhost.exchange("a").bindings() == []


class TestAlternate:
    def test_gets_unroutable_messages(self, world: World) -> None:
        world.vhost.declare_exchange("rest", "fanout")
        world.vhost.declare_exchange("a", "direct", arguments={"alternate-exchange": "rest"})
        world.vhost.bind(world.queue("one"), "a", "k", {})
        world.vhost.bind(world.queue("two"), "rest", "", {})
        assert world.route("a", "k") == ["one"]
        assert world.route("a", "other") == ["two"]

    def test_of_an_alternate(self, world: World) -> None:
        world.vhost.declare_exchange("a", "direct", arguments={"alternate-exchange": "b"})
        world.vhost.declare_exchange("b", "direct", arguments={"alternate-exchange": "amq.fanout"})
        world.vhost.bind(world.queue("one"), "amq.fanout", "", {})
        assert world.route("a", "k") == ["one"]

    def test_a_headers_exchange_makes_the_route_depend_on_the_message(self, world: World) -> None:
        world.vhost.declare_exchange("a", "direct", arguments={"alternate-exchange": "amq.headers"})
        world.vhost.bind(world.queue("one"), "amq.headers", "", {"colour": "red"})
        assert world.publish("a", "k", headers={"colour": "blue"}) == []
        assert world.publish("a", "k", headers={"colour": "red"}) == ["one"]

    def test_two_that_name_each_other(self, world: World) -> None:
        world.vhost.declare_exchange("a", "direct", arguments={"alternate-exchange": "b"})
        world.vhost.declare_exchange("b", "direct", arguments={"alternate-exchange": "a"})
        assert world.route("a", "k") == []

    def test_with_copies_only_when_no_key_matches(self, world: World) -> None:
        world.vhost.declare_exchange("a", "direct", arguments={"alternate-exchange": "amq.fanout"})
        one = world.queue("one")
        two = world.queue("two")
        world.vhost.bind(one, "a", "k", {})
        world.vhost.bind(two, "amq.fanout", "", {})
        message = world.message(exchange="a", key="k")
        route = world.vhost.route(message.address)
        assert world.vhost.route_message(route, message, ["no such key"], NO_CLIENT) == [one]
        message = world.message(exchange="a", key="nothing")
        route = world.vhost.route(message.address)
        assert world.vhost.route_message(route, message, ["no such key"], NO_CLIENT) == [two]


class TestCopies:
    """CC and BCC: more routing keys of one message."""

    def test_each_queue_once(self, world: World) -> None:
        one, two = world.queue("one"), world.queue("two")
        message = world.message(key="one")
        route = world.vhost.route(message.address)
        assert world.vhost.route_message(route, message, ["two", "one", "nowhere"], NO_CLIENT) == [one, two]


class TestDeletion:
    def test_deleting_a_queue_removes_its_bindings(self, world: World) -> None:
        world.vhost.bind(world.queue("one"), "amq.topic", "#", {})
        world.vhost.delete_queue("one", None)
        assert world.vhost.bindings() == []
        assert world.route("amq.topic", "k") == []

    def test_if_unused_means_bindings_from_it(self, world: World) -> None:
        world.vhost.declare_exchange("a", "fanout")
        queue = world.queue("one")
        world.vhost.bind(queue, "a", "", {})
        with pytest.raises(PreconditionFailed):
            world.vhost.delete_exchange("a", if_unused=True)
        world.vhost.unbind(queue, "a", "", {})
        assert world.vhost.delete_exchange("a", if_unused=True)

    def test_bindings_to_it_do_not_count(self, world: World) -> None:
        world.vhost.declare_exchange("a", "fanout")
        inner = world.vhost.declare_exchange("b", "fanout")
        world.vhost.bind(inner, "a", "", {})
        assert world.vhost.delete_exchange("b", if_unused=True)
        assert world.vhost.delete_exchange("a", if_unused=True)

    def test_queues_if_unused_and_if_empty(self, world: World) -> None:
        queue = world.queue("one")
        consumer = Taker(queue, credit=0)
        with pytest.raises(PreconditionFailed):
            world.vhost.delete_queue("one", None, if_unused=True)
        queue.remove_consumer(consumer)
        world.push(queue, "a")
        with pytest.raises(PreconditionFailed):
            world.vhost.delete_queue("one", None, if_empty=True)
        assert world.vhost.delete_queue("one", None, if_unused=True) == 1

    def test_consumers_are_notified(self, world: World) -> None:
        consumer = Taker(world.queue("one"))
        world.vhost.delete_queue("one", None)
        assert consumer.gone

    def test_deleted_exchanges_leave_no_state(self, world: World) -> None:
        queue = world.queue("one")
        target = world.vhost.declare_exchange("target", "fanout")
        for number in range(20):
            world.vhost.declare_exchange(f"x{number}", "fanout")
            world.vhost.bind(queue, f"x{number}", "", {})
            world.vhost.bind(target, f"x{number}", "", {})
            if number % 2:
                world.vhost.unbind(queue, f"x{number}", "", {})
                world.vhost.unbind(target, f"x{number}", "", {})
            source = world.vhost.exchange(f"x{number}")
            assert (target in source.targets) is not bool(number % 2)
            world.vhost.delete_exchange(f"x{number}")
            assert not source.targets
        assert world.vhost.sources == {}


class TestAutoDelete:
    def test_an_exchange_is_deleted_with_its_last_binding(self, world: World) -> None:
        world.vhost.declare_exchange("a", "fanout", auto_delete=True)
        one, two = world.queue("one"), world.queue("two")
        world.vhost.bind(one, "a", "", {})
        world.vhost.bind(two, "a", "", {})
        world.vhost.unbind(one, "a", "", {})
        assert "a" in world.vhost.exchanges
        world.vhost.delete_queue("two", None)
        assert "a" not in world.vhost.exchanges

    def test_an_exchange_that_never_had_a_binding_stays(self, world: World) -> None:
        world.vhost.declare_exchange("a", "fanout", auto_delete=True)
        world.vhost.bind(world.vhost.exchange("a"), "amq.fanout", "", {})
        world.vhost.unbind(world.vhost.exchange("a"), "amq.fanout", "", {})
        assert "a" in world.vhost.exchanges

    def test_a_chain_of_exchanges_is_deleted(self, world: World) -> None:
        for number in range(5):
            world.vhost.declare_exchange(f"x{number}", "fanout", auto_delete=True)
        for number in range(1, 5):
            world.vhost.bind(world.vhost.exchange(f"x{number}"), f"x{number - 1}", "", {})
        world.vhost.bind(world.queue("one"), "x4", "", {})
        world.vhost.delete_queue("one", None)
        assert [name for name in world.vhost.exchanges if name.startswith("x")] == []

    def test_a_ring_of_exchanges_is_deleted(self, world: World) -> None:
        for name in ("a", "b"):
            world.vhost.declare_exchange(name, "fanout", auto_delete=True)
        world.vhost.bind(world.vhost.exchange("b"), "a", "", {})
        world.vhost.bind(world.vhost.exchange("a"), "b", "", {})
        world.vhost.delete_exchange("a")
        assert "b" not in world.vhost.exchanges

    def test_a_queue_is_deleted_with_its_last_consumer(self, world: World) -> None:
        queue = world.queue("one", auto_delete=True)
        world.push(queue, "a")
        world.run()
        assert "one" in world.vhost.queues
        first, second = Taker(queue), Taker(queue)
        queue.remove_consumer(first)
        assert "one" in world.vhost.queues
        queue.remove_consumer(second)
        assert "one" not in world.vhost.queues


def test_deleting_a_vhost_deletes_everything_in_it(world: World) -> None:
    queue = world.queue("one", durable=True)
    consumer = Taker(queue, credit=0)
    world.vhost.declare_exchange("a", "fanout", durable=True)
    world.vhost.bind(queue, "a", "", {})
    world.push(queue, "m", persistent=True)
    world.run()
    world.broker.remove_vhost("/")
    world.run()
    assert consumer.gone and queue.deleted
    assert world.log.rows == {}
    assert {kind for kind, _ in world.held_log.metadata} == {"counter"}
