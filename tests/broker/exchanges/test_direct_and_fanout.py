"""0-9-1 sections 3.1.3.1 and 3.1.3.2."""

from __future__ import annotations

from leveret.broker.exchanges.direct import DirectExchange
from leveret.broker.exchanges.fanout import FanoutExchange
from tests.broker.exchanges.support import make_target, matched


def test_direct_matches_only_equal_keys() -> None:
    exchange = DirectExchange("x")
    exchange.bind(make_target("q"), "a.b", {})
    exchange.bind(make_target("r"), "a.b", {})
    exchange.bind(make_target("star"), "*", {})
    exchange.bind(make_target("empty"), "", {})
    assert matched(exchange, "a.b") == ["q", "r"]
    assert matched(exchange, "a") == []
    assert matched(exchange, "A.B") == []
    assert matched(exchange, "*") == ["star"]
    assert matched(exchange, "") == ["empty"]


def test_direct_forgets_unbound_keys() -> None:
    exchange = DirectExchange("x")
    queue = make_target("q")
    for number in range(100):
        exchange.bind(queue, str(number), {})
    for binding in exchange.unbind_destination(queue).values():
        exchange.removed(binding)
    assert not len(exchange.by_key)


def test_fanout_ignores_the_key() -> None:
    exchange = FanoutExchange("x")
    first = make_target("q")
    exchange.bind(first, "a", {})
    exchange.bind(first, "b", {})
    exchange.bind(make_target("r"), "", {})
    assert matched(exchange, "whatever") == ["q", "r"]
    exchange.unbind(first, "a", {})
    assert matched(exchange, "whatever") == ["q", "r"]
    exchange.unbind(first, "b", {})
    assert matched(exchange, "whatever") == ["r"]
