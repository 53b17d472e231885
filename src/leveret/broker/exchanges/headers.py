"""The headers exchange (0-9-1 section 3.1.3.4), with RabbitMQ's four values of `x-match`.

`all` (the default) and `any` leave keys that begin with `x-` out of the comparison; `all-with-x` and `any-with-x`
compare them too (but `x-match` itself). A void value of the binding asks for the presence of the header alone. Values
of different types differ; integers are compared by value, whatever integer type they were sent as.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from leveret.broker.errors import PreconditionFailed
from leveret.broker.exchanges.base import Binding, Exchange, freeze

MATCH_ARGUMENT: Final = "x-match"
MODES: Final = ("all", "any", "all-with-x", "any-with-x")


def _text(value: Any) -> Any:
    """Long strings may have been decoded to either type; they are compared as octets."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _equal(expected: Any, actual: Any) -> bool:
    left, right = _text(expected), _text(actual)
    if type(left) is not type(right):
        return False
    return bool(freeze(left) == freeze(right)) if isinstance(left, (dict, list)) else bool(left == right)


class Pattern:
    """What a binding asks of the headers: `wanted` are the pairs to compare, `every` whether all of them or any."""

    __slots__ = ("destination", "every", "wanted")

    def __init__(self, binding: Binding) -> None:
        mode = _mode(binding.arguments)
        with_x = mode.endswith("-with-x")
        self.destination = binding.destination
        self.every = mode.startswith("all")
        self.wanted: list[tuple[str, Any]] = []
        for name, value in binding.arguments.items():
            if name != MATCH_ARGUMENT and (with_x or not name.startswith("x-")):
                self.wanted.append((name, value))

    def matches(self, headers: dict[str, Any]) -> bool:
        every = self.every
        for name, value in self.wanted:
            hit = name in headers and (value is None or _equal(value, headers[name]))
            if hit is not every:
                return hit
        return every


def _mode(arguments: dict[str, Any]) -> str:
    mode = arguments.get(MATCH_ARGUMENT, "all")
    return mode.decode("utf-8", "replace") if isinstance(mode, bytes) else mode if isinstance(mode, str) else ""


class HeadersExchange(Exchange):
    type: ClassVar[str] = "headers"

    def __init__(self, name: str, durable: bool = False, auto_delete: bool = False, internal: bool = False,
                 arguments: dict[str, Any] | None = None) -> None:
        super().__init__(name, durable, auto_delete, internal, arguments)
        self.needs_headers = True
        self.patterns: dict[Binding, Pattern] = {}

    def check_binding(self, routing_key: str, arguments: dict[str, Any]) -> None:
        if _mode(arguments) not in MODES:
            raise PreconditionFailed(f"invalid argument 'x-match' of a binding to headers exchange '{self.name}': "
                                     f"{arguments[MATCH_ARGUMENT]!r}, expected one of {', '.join(MODES)}")

    def added(self, binding: Binding) -> None:
        self.patterns[binding] = Pattern(binding)

    def removed(self, binding: Binding) -> None:
        del self.patterns[binding]

    def match(self, routing_key: str, headers: dict[str, Any], hashed: str) -> list[Any]:
        found: dict[Any, None] = {}
        for pattern in self.patterns.values():
            if pattern.destination not in found and pattern.matches(headers):
                found[pattern.destination] = None
        return list(found)
