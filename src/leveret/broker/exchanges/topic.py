"""The topic exchange (0-9-1 section 3.1.3.3): patterns of words between dots, `*` for one word, `#` for zero or more.

The patterns form a trie with one edge per word. Matching advances a set of nodes with each word of the routing key and
never backtracks. Its cost is bounded by the number of words times the nodes that can match at all, however many `#` a
pattern has; a pattern that shares no prefix with the key costs nothing.
"""

from __future__ import annotations

from typing import ClassVar

from leveret.broker.destination import Destination
from leveret.broker.exchanges.base import Binding, Effort, Exchange
from leveret.broker.exchanges.index import add, discard
from leveret.broker.values import FieldTable


class Node:
    """A node of the trie: the words matched so far lead here."""

    __slots__ = ("any_word", "any_words", "destinations", "repeats", "words")

    def __init__(self, repeats: bool) -> None:
        self.words: dict[str, Node] = {}
        self.any_word: Node | None = None  # after `*`
        self.any_words: Node | None = None  # after `#`
        self.repeats = repeats  # reached by `#`, which may match more words
        self.destinations: dict[Destination, int] = {}

    def is_empty(self) -> bool:
        return not self.words and not self.destinations and self.any_word is None and self.any_words is None


def split(key: str) -> list[str]:
    """Return the words of a key or pattern. The empty key has none; `a.` has two, the second one empty."""
    return key.split(".") if key else []


def _enter(node: Node, reached: dict[Node, None]) -> None:
    """Add a node, and the nodes that follow it if `#` matches no word."""
    following: Node | None = node
    while following is not None and following not in reached:
        reached[following] = None
        following = following.any_words


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
        self.root = Node(False)

    def added(self, binding: Binding) -> None:
        node = self.root
        following: Node | None
        for word in split(binding.routing_key):
            if word == "#":
                following = node.any_words
                if following is None:
                    following = node.any_words = Node(True)
            elif word == "*":
                following = node.any_word
                if following is None:
                    following = node.any_word = Node(False)
            else:
                following = node.words.get(word)
                if following is None:
                    following = node.words[word] = Node(False)
            node = following
        add(node.destinations, binding.destination)

    def removed(self, binding: Binding) -> None:
        words = split(binding.routing_key)
        path = [self.root]
        for word in words:
            following = self._after(path[-1], word)
            assert following is not None
            path.append(following)
        discard(path[-1].destinations, binding.destination)
        # Prune nodes that are now empty, from the end.
        for depth in range(len(words), 0, -1):
            if not path[depth].is_empty():
                return
            parent, word = path[depth - 1], words[depth - 1]
            if word == "#":
                parent.any_words = None
            elif word == "*":
                parent.any_word = None
            else:
                del parent.words[word]

    def _after(self, node: Node, word: str) -> Node | None:
        if word == "#":
            return node.any_words
        if word == "*":
            return node.any_word
        return node.words.get(word)

    def match(self, routing_key: str, headers: FieldTable, hashed: str, effort: Effort) -> list[Destination]:
        reached: dict[Node, None] = {}
        _enter(self.root, reached)
        for word in split(routing_key):
            previous = reached
            reached = {}
            for node in previous:
                if node.repeats:
                    _enter(node, reached)
                following = node.words.get(word)
                if following is not None:
                    _enter(following, reached)
                following = node.any_word
                if following is not None:
                    _enter(following, reached)
            if not reached:
                return []
            effort.spend(len(previous) + len(reached))
        found: dict[Destination, None] = {}
        for node in reached:
            effort.spend(len(node.destinations))
            for destination in node.destinations:
                found[destination] = None
        return list(found)
