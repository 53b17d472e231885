"""The cost of routing one message is limited, in steps: bindings and exchanges come from clients."""

from __future__ import annotations

import random
from typing import Any

import pytest

from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges.base import Effort, Exchange
from leveret.broker.exchanges.headers import HeadersExchange
from leveret.broker.exchanges.registry import make_exchange
from leveret.broker.routing import STEPS_SHIFT, check_keys, depends_on_message, resolve
from tests.broker.exchanges.support import make_target, matched
from tests.broker.support import World

BINDINGS = 20_000


@pytest.fixture(scope="module")
def crowded() -> HeadersExchange:
    exchange = HeadersExchange("x")
    queue = make_target("q")
    for number in range(BINDINGS):
        exchange.bind(queue, "", {"kind": "order", "id": number})
    return exchange


def test_only_bindings_that_may_match_are_compared(crowded: HeadersExchange) -> None:
    effort = Effort()
    assert matched(crowded, headers={"kind": "order", "id": 77}, effort=effort) == ["q"]
    assert matched(crowded, headers={"kind": "order", "id": -1}, effort=effort) == []
    assert effort.steps < 100


def test_any_of_many_values_is_found_by_lookup() -> None:
    exchange = HeadersExchange("x")
    for number in range(1000):
        exchange.bind(make_target(f"q{number}"), "", {"x-match": "any", "id": number, "other": number})
    effort = Effort()
    assert matched(exchange, headers={"id": 5, "other": 6}, effort=effort) == ["q5", "q6"]
    assert effort.steps < 100


def test_removed_header_bindings_leave_no_index_entries(crowded: HeadersExchange) -> None:
    exchange = HeadersExchange("x")
    queue = make_target("q")
    bindings: list[dict[str, Any]] = [
        {"a": 1, "b": [1, {"c": 2}]},
        {"x-match": "any", "a": 1, "b": None},
        {"a": 1},
        {},
        {"x-match": "any"},
    ]
    for arguments in bindings:
        exchange.bind(queue, "", arguments)
    for arguments in bindings:
        assert exchange.unbind(queue, "", arguments)
    assert not (exchange.conditions or exchange.names or exchange.patterns or exchange.always)


@pytest.mark.parametrize("type_name", ["fanout", "headers"])
def test_an_exchange_that_ignores_the_key_is_matched_once(type_name: str) -> None:
    world = World()
    exchange = world.vhost.declare_exchange("x", type_name)
    queue = world.vhost.declare_queue("q", None)
    world.vhost.bind(queue, "x", "", {})
    world.broker.max_routing_steps = 20
    assert resolve(world.vhost, exchange, [str(number) for number in range(900)], {}, None) == [queue]


def test_repeated_keys_count_once_and_too_many_are_refused() -> None:
    world = World()
    world.broker.max_routing_keys = 3
    assert check_keys(world.broker, ["a", "b", "a", "b", "c"]) == ["a", "b", "c"]
    with pytest.raises(PreconditionFailed, match=r"4 routing keys.*at most 3.*limits\.routing_keys"):
        check_keys(world.broker, ["a", "b", "c", "d"])


def _topic(name: str) -> Exchange:
    exchange = make_exchange("topic", name)
    chance = random.Random(3)
    for _ in range(100):
        exchange.bind(make_target("q"), ".".join(f"#.{chance.choice('a*')}" for _ in range(60)), {})
    return exchange


def _headers(name: str) -> Exchange:
    exchange = make_exchange("headers", name)
    for number in range(2000):
        exchange.bind(make_target("q"), "", {**{f"h{other}": 1 for other in range(100)}, f"n{number % 4}": number})
    return exchange


def _hash(name: str) -> Exchange:
    exchange = make_exchange("x-consistent-hash", name)
    for number in range(11_000):
        exchange.bind(make_target(f"q{number}"), "1", {})
    return exchange


def test_patterns_with_a_common_prefix_take_a_limited_number_of_steps() -> None:
    key = ".".join(["a"] * 127)
    with pytest.raises(PreconditionFailed, match=r"more than 100000 steps.*limits\.routing_steps"):
        matched(_topic("x"), key)
    with pytest.raises(PreconditionFailed, match=r"limits\.routing_steps"):
        matched(_hash("x"), "k")
    with pytest.raises(PreconditionFailed, match=r"limits\.routing_steps"):
        matched(_headers("x"), headers={**{f"h{number}": 1 for number in range(100)}, "n0": 0}, effort=Effort(1000))


def test_chains_cycles_and_alternates_of_exchanges_are_bounded() -> None:
    world = World()
    vhost = world.vhost
    queue = vhost.declare_queue("q", None)
    for number in range(400):
        vhost.declare_exchange(f"x{number}", "direct", arguments={"alternate-exchange": f"x{(number + 1) % 400}"})
    vhost.bind(queue, "x399", "k", {})
    world.broker.max_routing_steps = 5000
    assert resolve(vhost, vhost.exchange("x0"), ["k"], {}, None) == [queue]
    with pytest.raises(PreconditionFailed, match=r"limits\.routing_steps"):
        resolve(vhost, vhost.exchange("x0"), ["k", "l", "m"], {}, None)


def test_a_dead_letter_above_the_routing_limit_is_dropped() -> None:
    world = World()
    vhost = world.vhost
    vhost.declare_exchange("dead", "fanout")
    for number in range(200):
        vhost.bind(vhost.declare_queue(f"d{number}", None), "dead", "", {})
    queue = vhost.declare_queue("q", None, arguments={"x-dead-letter-exchange": "dead"})
    world.publish("", "q")
    world.broker.max_routing_steps = 100
    entry = queue.get(False)
    assert entry is not None
    queue.reject(entry)
    assert vhost.queues["d0"].ready_count == 0 and not queue.unacked


def test_a_message_to_more_queues_than_allowed_is_refused() -> None:
    world = World()
    vhost = world.vhost
    world.broker.max_routing_queues = 3
    for number in range(4):
        vhost.bind(vhost.declare_queue(f"q{number}", None), "amq.fanout" if number < 3 else "amq.topic", "", {})
    assert len(world.publish("amq.fanout", "")) == 3
    vhost.bind(vhost.queues["q3"], "amq.fanout", "", {})
    with pytest.raises(PreconditionFailed, match=r"goes to 4 queues, at most 3.*limits\.routing_queues"):
        world.publish("amq.fanout", "")
    assert vhost.queues["q0"].ready_count == 1


def test_routing_that_is_refused_counts_as_work() -> None:
    world = World()
    vhost = world.vhost
    for number in range(300):
        vhost.bind(vhost.declare_queue(f"q{number}", None), "amq.fanout", "", {})
    world.broker.max_routing_steps = 200
    before = world.broker.work
    with pytest.raises(PreconditionFailed):
        resolve(vhost, vhost.exchange("amq.fanout"), ["k"], {}, None)
    assert world.broker.work - before >= 300 >> STEPS_SHIFT


def test_dependence_on_the_message_is_computed_once_and_within_the_limit() -> None:
    world = World()
    vhost = world.vhost
    for number in range(100):
        vhost.declare_exchange(f"x{number}", "fanout")
        if number:
            vhost.bind(vhost.exchange(f"x{number}"), f"x{number - 1}", "", {})
    first = vhost.exchange("x0")
    before = world.broker.work
    assert not depends_on_message(vhost, first)
    cost = world.broker.work - before
    assert cost >= 100 >> STEPS_SHIFT
    assert not depends_on_message(vhost, first)
    assert world.broker.work - before == cost
    vhost.bind(vhost.exchange("amq.headers"), "x99", "", {})
    assert depends_on_message(vhost, first)
    vhost.declare_exchange("another", "fanout")
    world.broker.max_routing_steps = 100
    with pytest.raises(PreconditionFailed, match=r"limits\.routing_steps"):
        depends_on_message(vhost, first)
