"""0-9-1 section 3.1.3.3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.exchanges import topic
from leveret.broker.exchanges.base import Effort
from leveret.broker.exchanges.topic import TopicExchange, split
from tests.broker.exchanges.support import make_target, matched


def naive(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return naive(pattern[1:], words) or bool(words and naive(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and naive(pattern[1:], words[1:])


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("a.b.c", "a.b.c", True),
        ("a.b.c", "a.b", False),
        ("a.b", "a.b.c", False),
        ("*", "a", True),
        ("*", "", False),
        ("*", "a.b", False),
        ("#", "", True),
        ("#", "a.b.c", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("#.a", "a", True),
        ("#.a", "b.c.a", True),
        ("#.a", "a.b", False),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.x.b.y.b", True),
        ("a.*.#.b", "a.b", False),
        ("#.*", "", False),
        ("#.*", "a", True),
        ("", "", True),
        ("", "a", False),
        ("*.*", ".", True),
        ("*.", "a.", True),
        ("a.*", "a.", True),
        ("*#", "a", False),
        ("*#", "*#", True),
        ("stock.*.nyse", "stock.ü€.nyse", True),
    ],
)
def test_patterns(pattern: str, key: str, expected: bool) -> None:
    exchange = TopicExchange("x")
    exchange.bind(make_target("q"), pattern, {})
    assert matched(exchange, key) == (["q"] if expected else [])


words = st.sampled_from(["a", "b", ""])
patterns = st.lists(st.one_of(words, st.sampled_from(["*", "#"])), max_size=6).map(".".join)
keys = st.lists(words, max_size=6).map(".".join)


@given(st.lists(patterns, max_size=12), st.lists(keys, min_size=1, max_size=6), st.sets(st.integers(0, 11)))
def test_agrees_with_a_naive_matcher_also_after_unbinding(
    bound: list[str], routing_keys: list[str], gone: set[int]
) -> None:
    exchange = TopicExchange("x")
    targets = [make_target(str(number)) for number in range(len(bound))]
    for target, pattern in zip(targets, bound, strict=True):
        exchange.bind(target, pattern, {})
    for number in gone:
        if number < len(bound):
            assert exchange.unbind(targets[number], bound[number], {})
    for key in routing_keys:
        expected = sorted(
            str(number) for number, pattern in enumerate(bound) if number not in gone and naive(split(pattern), split(key))
        )
        assert matched(exchange, key) == expected


@given(st.lists(patterns, max_size=8), keys)
def test_a_destination_with_many_bindings_is_matched_once(bound: list[str], key: str) -> None:
    exchange = TopicExchange("x")
    queue = make_target("q")
    for pattern in bound:
        exchange.bind(queue, pattern, {})
    assert matched(exchange, key) == (["q"] if any(naive(split(pattern), split(key)) for pattern in bound) else [])


@given(st.lists(patterns, max_size=8), st.lists(patterns, max_size=3), patterns)
def test_a_pattern_is_known_while_it_has_a_binding(bound: list[str], removed: list[str], pattern: str) -> None:
    exchange = TopicExchange("x")
    queue = make_target("q")
    for other in [*bound, *removed]:
        exchange.bind(queue, other, {})
    for other in removed:
        exchange.unbind(queue, other, {})
    assert exchange.has_pattern(pattern) == (pattern in bound and pattern not in removed)


def test_unbinding_all_leaves_an_empty_trie() -> None:
    exchange = TopicExchange("x")
    queue = make_target("q")
    for pattern in ("a.b.c", "a.*.c", "a.#", "#.#", "*.*", "", "a"):
        exchange.bind(queue, pattern, {})
    for binding in exchange.unbind_destination(queue).values():
        exchange.removed(binding)
    assert exchange.root.is_empty()


class CountingKey(str):
    """A routing key whose words count lookups with them."""

    def __new__(cls, text: str, counter: list[int]) -> CountingKey:
        key = super().__new__(cls, text)
        key.counter = counter
        return key

    counter: list[int]

    def split(self, *arguments: object) -> list[CountingWord]:  # type: ignore[override]
        return [CountingWord(word, self.counter) for word in str(self).split(".")]


class CountingWord(str):
    def __new__(cls, text: str, counter: list[int]) -> CountingWord:
        word = super().__new__(cls, text)
        word.counter = counter
        return word

    counter: list[int]

    def __hash__(self) -> int:
        self.counter[0] += 1
        return str.__hash__(self)


def steps(exchange: TopicExchange, key: str) -> int:
    """Return the number of nodes whose children a match looks up."""
    counter = [0]
    exchange.match(CountingKey(key, counter), {}, "", Effort())
    return counter[0]


@pytest.mark.skipif(not topic.__file__.endswith(".py"), reason="compiled code takes no subclass of str as a key")
def test_unrelated_bindings_take_no_steps() -> None:
    exchange = TopicExchange("x")
    exchange.bind(make_target("q"), "stock.*.nyse.#", {})
    alone = steps(exchange, "stock.ibm.nyse.x.y")
    for number in range(10_000):
        exchange.bind(make_target(str(number)), f"metric.{number}.*.#.cpu{number}", {})
    assert steps(exchange, "stock.ibm.nyse.x.y") == alone


@pytest.mark.skipif(not topic.__file__.endswith(".py"), reason="compiled code takes no subclass of str as a key")
def test_many_hashes_do_not_blow_up() -> None:
    exchange = TopicExchange("x")
    exchange.bind(make_target("q"), ".".join(["#", "a"] * 20 + ["b"]), {})
    key = ".".join(["a"] * 100)
    assert matched(exchange, key) == []
    assert matched(exchange, key + ".b") == ["q"]
    # A backtracking matcher needs about 100 over 20 steps here.
    assert steps(exchange, key) <= 100 * 41
