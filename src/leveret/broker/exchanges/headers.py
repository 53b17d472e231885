"""The headers exchange (0-9-1 section 3.1.3.4), with RabbitMQ's four values of `x-match`.

`all` (the default) and `any` ignore keys that begin with `x-`; `all-with-x` and `any-with-x` compare them too (except
`x-match` itself). If a binding has a void value, the header only has to be present. Values of different types differ,
but integers are compared by value, whatever their integer type on the wire.

Bindings are indexed by their conditions: a `Condition` is a name with a value, or a name alone, and exists once. A
message looks up the conditions that its headers meet, and only the bindings indexed under those are compared.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar, Final, TypeAlias

from leveret.broker.destination import Destination
from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges.base import Binding, Effort, Exchange
from leveret.broker.exchanges.index import add, discard
from leveret.broker.table import Table
from leveret.broker.values import SIZED, FieldTable, FieldValue, Float32, freeze

MATCH_ARGUMENT: Final = "x-match"
MODES: Final = ("all", "any", "all-with-x", "any-with-x")
# Steps per header lookup.
HEADER_STEPS: Final = 10

# The types that numbers in arguments are compared as.
_PLAIN: Final[dict[type, type]] = {kind: float if kind is Float32 else int for kind in SIZED}

# The name of a header, and the type and the value that it must have unless it only has to be present.
ConditionKey: TypeAlias = tuple[Hashable, ...]


def _key_of(name: str, value: FieldValue) -> ConditionKey:
    """Return the key of a condition.

    Strings are compared as bytes, because long strings may have been decoded to either type.
    """
    compared = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    kind: type = type(compared)
    return name, _PLAIN.get(kind, kind), freeze(compared)


class Condition:
    """A condition on a header, shared by bindings.

    key       the key in the index
    users     number of bindings with this condition
    enough    destinations of bindings without further conditions, counted
    patterns  bindings with further conditions that are indexed under this one
    """

    __slots__ = ("enough", "key", "patterns", "users")

    def __init__(self, key: ConditionKey) -> None:
        self.key = key
        self.users = 0
        self.enough: dict[Destination, int] = {}
        self.patterns: dict[Pattern, None] = {}


class Pattern:
    """A binding with several conditions, indexed under the one with the fewest patterns."""

    __slots__ = ("conditions", "destination", "found_by")

    def __init__(self, destination: Destination, conditions: list[Condition]) -> None:
        self.destination = destination
        self.conditions = conditions
        found_by = conditions[0]
        for condition in conditions:
            if len(condition.patterns) < len(found_by.patterns):
                found_by = condition
        self.found_by = found_by


def _mode(arguments: FieldTable) -> str:
    mode = arguments.get(MATCH_ARGUMENT, "all")
    return mode.decode("utf-8", "replace") if isinstance(mode, bytes) else mode if isinstance(mode, str) else ""


class HeadersExchange(Exchange):
    """The headers exchange. `names` counts the value conditions of each header, so that other headers are skipped."""

    type: ClassVar[str] = "headers"

    def set_up(self) -> None:
        self.needs_key = False
        self.needs_headers = True
        self.conditions: Table[ConditionKey, Condition] = Table()
        self.names: dict[Hashable, int] = {}
        self.patterns: Table[Binding, Pattern] = Table()
        # Destinations of bindings without conditions.
        self.always: dict[Destination, int] = {}

    def check_binding(self, routing_key: str, arguments: FieldTable) -> None:
        if _mode(arguments) not in MODES:
            raise PreconditionFailed(
                f"invalid argument 'x-match' in a binding to headers exchange '{self.name}': "
                f"{arguments[MATCH_ARGUMENT]!r}, expected one of {', '.join(MODES)}"
            )

    def added(self, binding: Binding) -> None:
        conditions = [self._use(key) for key in _keys_of(binding)]
        every = _mode(binding.arguments).startswith("all")
        if every and not conditions:
            add(self.always, binding.destination)
        elif every and len(conditions) > 1:
            pattern = Pattern(binding.destination, conditions)
            self.patterns.put(binding, pattern)
            pattern.found_by.patterns[pattern] = None
        else:
            for condition in conditions:
                add(condition.enough, binding.destination)

    def removed(self, binding: Binding) -> None:
        keys = _keys_of(binding)
        pattern = self.patterns.pop(binding)
        if pattern is not None:
            del pattern.found_by.patterns[pattern]
        elif keys:
            for key in keys:
                discard(self._condition(key).enough, binding.destination)
        elif _mode(binding.arguments).startswith("all"):
            discard(self.always, binding.destination)
        for key in keys:
            self._leave(key)

    def _use(self, key: ConditionKey) -> Condition:
        condition = self.conditions.get(key)
        if condition is None:
            condition = Condition(key)
            self.conditions.put(key, condition)
            if len(key) > 1:
                add(self.names, key[0])
        condition.users += 1
        return condition

    def _condition(self, key: ConditionKey) -> Condition:
        condition = self.conditions.get(key)
        assert condition is not None
        return condition

    def _leave(self, key: ConditionKey) -> None:
        condition = self._condition(key)
        condition.users -= 1
        if not condition.users:
            self.conditions.pop(key)
            if len(key) > 1:
                discard(self.names, key[0])

    def match(self, routing_key: str, headers: FieldTable, hashed: str, effort: Effort) -> list[Destination]:
        effort.spend(HEADER_STEPS * len(headers) + len(self.always))
        met: dict[Condition, None] = {}
        conditions = self.conditions
        for name, value in headers.items():
            condition = conditions.get((name,))
            if condition is not None:
                met[condition] = None
            if name in self.names:
                condition = conditions.get(_key_of(name, value))
                if condition is not None:
                    met[condition] = None
        found: dict[Destination, None] = dict.fromkeys(self.always)
        for condition in met:
            effort.spend(len(condition.enough))
            for destination in condition.enough:
                found[destination] = None
            for pattern in condition.patterns:
                compared = 0
                for wanted in pattern.conditions:
                    compared += 1
                    if wanted not in met:
                        break
                else:
                    found[pattern.destination] = None
                effort.spend(1 + compared)
        return list(found)


def _keys_of(binding: Binding) -> list[ConditionKey]:
    """Return the keys of the conditions of a binding, each once."""
    with_x = _mode(binding.arguments).endswith("-with-x")
    return [
        (name,) if value is None else _key_of(name, value)
        for name, value in binding.arguments.items()
        if name != MATCH_ARGUMENT and (with_x or not name.startswith("x-"))
    ]
