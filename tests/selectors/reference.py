"""A reference evaluator of selectors: directly from the tree, by the tables of the specification, with exhaustive matching
of patterns.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any
from uuid import UUID

from leveret.selectors.syntax import (
    Between,
    Binary,
    Call,
    Identifier,
    In,
    IsNull,
    Junction,
    Like,
    Literal,
    Node,
    Not,
    Sign,
)

Lookup = Callable[[Identifier], Any]

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NOT = {True: False, False: True, None: None}


def evaluate(node: Node, lookup: Lookup, now: int, sql: bool) -> bool | None:
    """Return True, False or None for a condition."""
    found = _value(node, lookup, now, sql)
    return found if isinstance(found, bool) else None


def like(value: str, pattern: str, escape: str) -> bool:
    """Return the result of LIKE by definition: exponential, and obviously correct."""
    if not pattern:
        return not value
    first, rest = pattern[0], pattern[1:]
    if escape and first == escape:
        return value[:1] == rest[0] and like(value[1:], rest[1:], escape)
    if first == "%":
        return any(like(value[index:], rest, escape) for index in range(len(value) + 1))
    return bool(value) and first in ("_", value[0]) and like(value[1:], rest, escape)


def _value(node: Node, lookup: Lookup, now: int, sql: bool) -> Any:
    def value(child: Node) -> Any:
        return _value(child, lookup, now, sql)

    match node:
        case Literal(constant):
            return constant
        case Identifier():
            return lookup(node)
        case Call():
            return now
        case Sign(sign, operand):
            found = value(operand)
            if not _number(found):
                return None
            return _fit(-found if sign == "-" else found, sql) if sign == "-" else found
        case Binary(op, left, right):
            return _binary(op, value(left), value(right), sql)
        case Between(operand, low, high, negated):
            found = value(operand)
            if negated:
                return _or([_binary("<", found, value(low), sql), _binary(">", found, value(high), sql)])
            return _and([_binary(">=", found, value(low), sql), _binary("<=", found, value(high), sql)])
        case In(operand, choices, negated):
            found = value(operand)
            if found is None:
                return None
            return any(_binary("=", found, value(choice), sql) is True for choice in choices) != negated
        case Like(operand, pattern, escape, negated):
            found = value(operand)
            if sql and type(found) is bytes:
                try:
                    found = found.decode()
                except UnicodeDecodeError:
                    return None
            if isinstance(found, str):
                return like(found, pattern, escape) != negated
            return None if sql or found is None else False
        case IsNull(operand, negated):
            return (value(operand) is None) != negated
        case Not(operand):
            return NOT[_condition(value(operand))]
        case Junction(op, operands):
            return (_and if op == "AND" else _or)([_condition(value(each)) for each in operands])


def _condition(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _and(values: list[bool | None]) -> bool | None:
    return False if False in values else None if None in values else True


def _or(values: list[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _binary(op: str, left: Any, right: Any, sql: bool) -> Any:
    if op not in COMPARE:
        if not (_number(left) and _number(right)):
            return None
        return _sql_arithmetic(op, left, right) if sql else _java_arithmetic(op, left, right)
    if left is None or right is None:
        return None
    if sql:
        left, right = _sql_octets(left), _sql_octets(right)
    if _number(left) and _number(right):
        if not sql and type(left) is not type(right):
            left, right = float(left), float(right)
        return COMPARE[op](left, right)
    ordered = op in ("=", "<>") or (sql and type(left) is bytes)
    if type(left) is type(right) and ordered and type(left) in (bool, bytes if sql else str):
        return COMPARE[op](left, right)
    return sql and op == "<>"


def _sql_octets(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    return value.bytes if isinstance(value, UUID) else value


def _fit(value: Any, sql: bool) -> Any:
    if sql or isinstance(value, float):
        return value
    return int.from_bytes((value % 2**64).to_bytes(8, "big"), "big", signed=True)


def _java_arithmetic(op: str, left: Any, right: Any) -> Any:
    if type(left) is int and type(right) is int:
        if op != "/":
            return _fit({"+": operator.add, "-": operator.sub, "*": operator.mul}[op](left, right), False)
        if right == 0:
            return None
        exact = abs(left) // abs(right)
        return _fit(exact if (left < 0) == (right < 0) else -exact, False)
    left, right = float(left), float(right)
    if op != "/":
        return {"+": operator.add, "-": operator.sub, "*": operator.mul}[op](left, right)
    if right:
        return left / right
    if not left or math.isnan(left):
        return math.nan
    return math.inf if (math.copysign(1, left) > 0) == (math.copysign(1, right) > 0) else -math.inf


def _sql_arithmetic(op: str, left: Any, right: Any) -> Any:
    whole = type(left) is int and type(right) is int
    if op in "/%" and right == 0:
        return None
    if op == "%":
        return int(math.copysign(1, left)) * (abs(left) % abs(right)) if whole else None
    try:
        found = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[op](left, right)
    except OverflowError:
        return None
    return found if isinstance(found, int) or math.isfinite(found) else None
