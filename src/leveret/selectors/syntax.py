"""The syntax tree of a selector, and its text.

Parsing the text of a tree returns an equal tree. `height` is the number of levels below and including a node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Final, TypeAlias

COMPARISONS: Final = ("=", "<>", "<", "<=", ">", ">=")
SUMS: Final = ("+", "-")
PRODUCTS: Final = ("*", "/", "%")

Constant: TypeAlias = bool | int | float | str | bytes


def _above(*nodes: Node) -> int:
    return 1 + max(node.height for node in nodes)


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. Negative numbers are literals too."""

    value: Constant
    height: int = field(default=1, init=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Identifier:
    """A name. `section` is the long form of the section before it, or ""."""

    name: str
    section: str = ""
    height: int = field(default=1, init=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function without arguments. UTC is the only function."""

    function: str
    height: int = field(default=1, init=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Sign:
    """`-` or `+` before an operand other than a number literal."""

    operator: str
    operand: Node
    height: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "height", _above(self.operand))


@dataclass(frozen=True, slots=True)
class Binary:
    """An arithmetic operator or a comparison."""

    operator: str
    left: Node
    right: Node
    height: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "height", _above(self.left, self.right))


@dataclass(frozen=True, slots=True)
class Between:
    operand: Node
    low: Node
    high: Node
    negated: bool
    height: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "height", _above(self.operand, self.low, self.high))


@dataclass(frozen=True, slots=True)
class In:
    operand: Node
    choices: tuple[Node, ...]
    negated: bool
    height: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "height", _above(self.operand, *self.choices))


@dataclass(frozen=True, slots=True)
class Like:
    """LIKE. `escape` is "" without an ESCAPE clause."""

    operand: Node
    pattern: str
    escape: str
    negated: bool
    height: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "height", _above(self.operand))


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Node
    negated: bool
    height: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "height", _above(self.operand))


@dataclass(frozen=True, slots=True)
class Not:
    operand: Node
    height: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "height", _above(self.operand))


@dataclass(frozen=True, slots=True)
class Junction:
    """Two or more conditions joined by AND or by OR."""

    operator: str
    operands: tuple[Node, ...]
    height: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "height", _above(*self.operands))


Node: TypeAlias = Literal | Identifier | Call | Sign | Binary | Between | In | Like | IsNull | Not | Junction

# Precedence of nodes; an operand with a lower precedence than required is put in parentheses.
_OR: Final = 1
_AND: Final = 2
_NOT: Final = 3
_CONDITION: Final = 4
_SUM: Final = 5
_PRODUCT: Final = 6
_SIGN: Final = 7
_PRIMARY: Final = 8


def _binding(node: Node) -> int:
    match node:
        case Junction("OR"):
            return _OR
        case Junction():
            return _AND
        case Not():
            return _NOT
        case Binary(operator) if operator in SUMS:
            return _SUM
        case Binary(operator) if operator in PRODUCTS:
            return _PRODUCT
        case Binary() | Between() | In() | Like() | IsNull():
            return _CONDITION
        case Sign():
            return _SIGN
        case _:
            return _PRIMARY


class Writer(ABC):
    """Writes trees in a dialect, which defines how names are quoted."""

    @abstractmethod
    def name(self, identifier: Identifier) -> str:
        """Return the text of an identifier."""

    def text(self, node: Node) -> str:
        """Return text that parses to this tree."""
        match node:
            case Literal(value):
                return literal_text(value)
            case Identifier():
                return self.name(node)
            case Call(function):
                return f"{function}()"
            case Sign(operator, operand):
                # Parentheses prevent the sign from becoming part of a number.
                return f"{operator}{self._within(operand, _SIGN if isinstance(operand, Sign) else _PRIMARY, literal=True)}"
            case Binary(operator, left, right):
                level = _binding(node)
                # Arithmetic operators are left-associative, and comparisons cannot be chained.
                lowest = _SUM if level == _CONDITION else level
                return f"{self._within(left, lowest)} {operator} {self._within(right, max(lowest, level + 1))}"
            case Between(operand, low, high, negated):
                parts = [self._within(each, _SUM) for each in (operand, low, high)]
                return f"{parts[0]} {'NOT ' if negated else ''}BETWEEN {parts[1]} AND {parts[2]}"
            case In(operand, choices, negated):
                listed = ", ".join(self._within(choice, _SUM) for choice in choices)
                return f"{self._within(operand, _SUM)} {'NOT ' if negated else ''}IN ({listed})"
            case Like(operand, pattern, escape, negated):
                tail = f" ESCAPE {literal_text(escape)}" if escape else ""
                verb = "NOT LIKE" if negated else "LIKE"
                return f"{self._within(operand, _SUM)} {verb} {literal_text(pattern)}{tail}"
            case IsNull(operand, negated):
                return f"{self._within(operand, _SUM)} IS {'NOT ' if negated else ''}NULL"
            case Not(operand):
                return f"NOT {self._within(operand, _NOT)}"
            case Junction(operator, operands):
                return f" {operator} ".join(self._within(each, _binding(node) + 1) for each in operands)

    def _within(self, node: Node, lowest: int, *, literal: bool = False) -> str:
        text = self.text(node)
        return f"({text})" if _binding(node) < lowest or (literal and isinstance(node, Literal)) else text


def literal_text(value: Constant) -> str:
    """Return a constant in the notation of both dialects."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes):
        return "0x" + value.hex().upper()
    return repr(value).upper()
