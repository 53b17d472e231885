"""The topic exchange (0-9-1 section 3.1.3.3): patterns of words between dots, `*` for one word, `#` for zero or more.

The patterns form a trie with one edge per word. Matching advances a set of nodes with each word of the routing key and
never backtracks. Its cost is bounded by the number of words times the nodes that can match at all, however many `#` a
pattern has; a pattern that shares no prefix with the key costs nothing.

A pattern needs no nodes for words that no other pattern has at their place: the node before them keeps them as its `tail`.
Exchanges with many bindings mostly consist of such patterns, and each node less saves memory and a cache miss.
"""

from __future__ import annotations

from typing import ClassVar, Final

from leveret.broker.destination import Destination
from leveret.broker.exchanges.base import Binding, Effort, Exchange
from leveret.broker.exchanges.index import add, discard
from leveret.broker.table import Table
from leveret.broker.values import FieldTable

# Tails that new patterns may share.
MAX_SHARED_TAILS: Final = 1000


class Node:
    """A node of the trie: the words matched so far lead here.

    Attributes:
        words: Nodes by the next word.
        any_word: The node after `*`.
        any_words: The node after `#`.
        repeats: Whether `#` leads here, which may match more words.
        tail: The remaining words of the only pattern that leads here; empty if it ends here or there are others. Only the
            last one can be `#`.
        destination: The first destination of the pattern that ends here, or after the tail; None if there is none.
        count: The number of its bindings with the pattern.
        others: The other destinations with their numbers of bindings; None if there are none. Most patterns have one
            destination, and a dictionary takes as much memory as two nodes.
    """

    __slots__ = ("any_word", "any_words", "count", "destination", "others", "repeats", "tail", "words")

    def __init__(self, repeats: bool, tail: tuple[str, ...]) -> None:
        self.words: Table[str, Node] | None = None
        self.any_word: Node | None = None
        self.any_words: Node | None = None
        self.repeats = repeats
        self.tail = tail
        self.destination: Destination | None = None
        self.count = 0
        self.others: dict[Destination, int] | None = None

    def is_empty(self) -> bool:
        words = self.words
        has_words = words is not None and len(words) > 0
        return not has_words and self.destination is None and self.any_word is None and self.any_words is None

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
                self.words = Table()
            self.words.put(word, node)

    def drop(self, word: str) -> None:
        """Remove the node after a word of a pattern."""
        if word == "#":
            self.any_words = None
        elif word == "*":
            self.any_word = None
        elif self.words is not None:
            self.words.pop(word)

    def expand(self) -> None:
        """Replace the tail by a node, because another pattern leads here."""
        word = self.tail[0]
        node = Node(word == "#", self.tail[1:])
        node.destination = self.destination
        node.count = self.count
        node.others = self.others
        self.put(word, node)
        self.tail = ()
        self.destination = None
        self.count = 0
        self.others = None

    def add(self, destination: Destination) -> None:
        """Count another binding with the pattern that ends here."""
        if self.destination is None:
            self.destination = destination
            self.count = 1
        elif self.destination is destination:
            self.count += 1
        else:
            if self.others is None:
                self.others = {}
            add(self.others, destination)

    def discard(self, destination: Destination) -> None:
        """Remove a binding with the pattern that ends here from the count."""
        others = self.others
        if self.destination is not destination:
            assert others is not None
            discard(others, destination)
        elif self.count > 1:
            self.count -= 1
        elif others is None:
            self.destination = None
            self.count = 0
        else:
            self.destination = next(iter(others))
            self.count = others.pop(self.destination)
        if not others:
            self.others = None

    def find(self, found: dict[Destination, None], effort: Effort) -> None:
        """Add the destinations of the pattern that ends here."""
        destination = self.destination
        if destination is None:
            return
        found[destination] = None
        others = self.others
        if others is None:
            effort.spend(1)
            return
        effort.spend(1 + len(others))
        for destination in others:
            found[destination] = None


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

    def set_up(self) -> None:
        self.match_all_key = "#"
        self.has_topics = True
        self.root = Node(False, ())
        # Recent tails: many patterns end alike, and a tail that they share stays in the processor's cache.
        self._tails: dict[tuple[str, ...], tuple[str, ...]] = {}

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
                    following = Node(False, self._tail(rest))
                    at = len(words)
                    node.put(word, following)
                    node = following
                    break
                following = Node(word == "#", ())
                node.put(word, following)
            node = following
        node.add(binding.destination)

    def _tail(self, words: list[str]) -> tuple[str, ...]:
        """Return a tail, the same object as before if it was used recently."""
        if len(self._tails) >= MAX_SHARED_TAILS:
            self._tails.clear()
        tail = tuple(words)
        return self._tails.setdefault(tail, tail)

    def removed(self, binding: Binding) -> None:
        words = split(binding.routing_key)
        path = self._path(words)
        path[-1].discard(binding.destination)
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
        return bool(path) and path[-1].destination is not None

    def match(self, routing_key: str, headers: FieldTable, hashed: str, effort: Effort) -> list[Destination]:
        words = split(routing_key)
        count = len(words)
        found: dict[Destination, None] = {}
        # Up to the first wildcard, one node is reached.
        node = self.root
        at = 0
        while at < count and node.any_word is None and node.any_words is None and not node.repeats:
            next_node = None if node.words is None else node.words.get(words[at])
            at += 1
            if next_node is None or next_node.tail:
                if next_node is not None and _ends_with(next_node.tail, words, at):
                    next_node.find(found, effort)
                effort.spend(2 * at)
                return list(found)
            node = next_node
        effort.spend(2 * at)
        reached: dict[Node, None] = {}
        _enter(node, reached)
        while at < count:
            word = words[at]
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
                        following.find(found, effort)
            effort.spend(len(previous) + len(reached))
            if not reached:
                break
        for node in reached:
            node.find(found, effort)
        return list(found)
