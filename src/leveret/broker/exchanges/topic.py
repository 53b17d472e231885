"""The topic exchange (0-9-1 section 3.1.3.3): patterns of words between dots, `*` for one word, `#` for zero or more.

The patterns form a trie with one edge per word. Matching advances a set of nodes with each word of the routing key and
never backtracks. Its cost is bounded by the number of words times the nodes that can match at all, however many `#` a
pattern has; a pattern that shares no prefix with the key costs nothing.

A pattern needs no nodes for words that no other pattern has at their place: the node before them keeps them as its `tail`.
Exchanges with many bindings mostly consist of such patterns, and each node less saves memory and a cache miss.
"""

from __future__ import annotations

import sys
from typing import ClassVar

from leveret.broker.destination import Destination
from leveret.broker.exchanges.base import Binding, Effort, Exchange
from leveret.broker.exchanges.index import add, discard
from leveret.broker.values import FieldTable


class Node:
    """A node of the trie: the words matched so far lead here.

    Attributes:
        words: Nodes by the next word.
        any_word: The node after `*`.
        any_words: The node after `#`.
        repeats: Whether `#` leads here, which may match more words.
        tail: The remaining words of the only pattern that leads here; empty if it ends here or there are others. Only the
            last one can be `#`.
        destinations: The destinations of the pattern that ends here, or after the tail.
    """

    __slots__ = ("any_word", "any_words", "destinations", "repeats", "tail", "words")

    def __init__(self, repeats: bool, tail: tuple[str, ...]) -> None:
        self.words: dict[str, Node] | None = None
        self.any_word: Node | None = None
        self.any_words: Node | None = None
        self.repeats = repeats
        self.tail = tail
        self.destinations: dict[Destination, int] | None = None

    def is_empty(self) -> bool:
        return not self.words and not self.destinations and self.any_word is None and self.any_words is None

    def after(self, word: str) -> Node | None:
        """Return the node after a word of a pattern."""
        if word == "#":
            return self.any_words
        if word == "*":
            return self.any_word
        return None if self.words is None else self.words.get(word)

    def put(self, word: str, node: Node) -> None:
        """Set the node after a word of a pattern."""
        if word == "#":
            self.any_words = node
        elif word == "*":
            self.any_word = node
        else:
            if self.words is None:
                self.words = {}
            self.words[word] = node

    def drop(self, word: str) -> None:
        """Remove the node after a word of a pattern."""
        if word == "#":
            self.any_words = None
        elif word == "*":
            self.any_word = None
        elif self.words is not None:
            del self.words[word]

    def expand(self) -> None:
        """Replace the tail by a node, because another pattern leads here."""
        word = self.tail[0]
        node = Node(word == "#", self.tail[1:])
        node.destinations = self.destinations
        self.put(word, node)
        self.tail = ()
        self.destinations = None


def split(key: str) -> list[str]:
    """Return the words of a key or pattern. The empty key has none; `a.` has two, the second one empty."""
    return key.split(".") if key else []


def _enter(node: Node, reached: dict[Node, None]) -> None:
    """Add a node, and the nodes that follow it if `#` matches no word."""
    following: Node | None = node
    while following is not None and following not in reached:
        reached[following] = None
        following = following.any_words


def _ends_with(tail: tuple[str, ...], words: list[str], at: int) -> bool:
    """Return whether a tail matches the words from this index."""
    count = len(tail)
    if tail[count - 1] == "#":
        count -= 1
        if len(words) - at < count:
            return False
    elif len(words) - at != count:
        return False
    for index in range(count):
        word = tail[index]
        if word != "*" and word != words[at + index]:
            return False
    return True


class TopicExchange(Exchange):
    type: ClassVar[str] = "topic"
    match_all_key: ClassVar[str] = "#"
    has_topics: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: FieldTable | None = None,
    ) -> None:
        super().__init__(name, durable, auto_delete, internal, arguments)
        self.root = Node(False, ())

    def added(self, binding: Binding) -> None:
        words = split(binding.routing_key)
        node = self.root
        at = 0
        while at < len(words) or node.tail:
            if node.tail:
                if list(node.tail) == words[at:]:
                    break
                node.expand()
                continue
            word = words[at]
            at += 1
            following = node.after(word)
            if following is None:
                rest = words[at:]
                # The nodes after a `#` may be reached at any word, so these have no tail.
                if rest and word != "#" and "#" not in rest[:-1]:
                    following = Node(False, tuple([sys.intern(other) for other in rest]))
                    at = len(words)
                    node.put(word, following)
                    node = following
                    break
                following = Node(word == "#", ())
                node.put(word, following)
            node = following
        if node.destinations is None:
            node.destinations = {}
        add(node.destinations, binding.destination)

    def removed(self, binding: Binding) -> None:
        words = split(binding.routing_key)
        path = self._path(words)
        destinations = path[-1].destinations
        assert destinations is not None
        discard(destinations, binding.destination)
        # Prune nodes that are now empty, from the end.
        for depth in range(len(path) - 1, 0, -1):
            if not path[depth].is_empty():
                return
            path[depth - 1].drop(words[depth - 1])

    def _path(self, words: list[str]) -> list[Node]:
        """Return the nodes of a pattern; none if there is no such pattern."""
        path = [self.root]
        while not path[-1].tail and len(path) <= len(words):
            following = path[-1].after(words[len(path) - 1])
            if following is None:
                return []
            path.append(following)
        return path if list(path[-1].tail) == words[len(path) - 1 :] else []

    def has_pattern(self, pattern: str) -> bool:
        """Return whether a binding has this pattern."""
        path = self._path(split(pattern))
        return bool(path) and bool(path[-1].destinations)

    def match(self, routing_key: str, headers: FieldTable, hashed: str, effort: Effort) -> list[Destination]:
        words = split(routing_key)
        found: dict[Destination, None] = {}
        reached: dict[Node, None] = {}
        _enter(self.root, reached)
        at = 0
        for word in words:
            at += 1
            previous = reached
            reached = {}
            for node in previous:
                if node.repeats:
                    _enter(node, reached)
                for following in (None if node.words is None else node.words.get(word), node.any_word):
                    if following is None:
                        continue
                    if not following.tail:
                        _enter(following, reached)
                    elif _ends_with(following.tail, words, at):
                        _find(following, found, effort)
            effort.spend(len(previous) + len(reached))
            if not reached:
                break
        for node in reached:
            _find(node, found, effort)
        return list(found)


def _find(node: Node, found: dict[Destination, None], effort: Effort) -> None:
    """Add the destinations of a node."""
    destinations = node.destinations
    if destinations is not None:
        effort.spend(len(destinations))
        for destination in destinations:
            found[destination] = None
