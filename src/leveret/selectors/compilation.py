"""Compilation of syntax trees to evaluators."""

from __future__ import annotations

from typing import Final

from leveret.selectors import evaluate, values
from leveret.selectors.errors import DEFAULT_LIMITS, Limits
from leveret.selectors.lexer import JMS, SQL, Lexer
from leveret.selectors.like import Pattern
from leveret.selectors.names import PLAIN, Target, jms_target, sql_target
from leveret.selectors.parser import parse
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

_COMPARISONS: Final = {
    "=": values.EQ,
    "<>": values.NE,
    "<": values.LT,
    "<=": values.LE,
    ">": values.GT,
    ">=": values.GE,
}
# The equivalent comparison with the operands exchanged.
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ARITHMETIC: Final = {
    "+": values.ADD,
    "-": values.SUBTRACT,
    "*": values.MULTIPLY,
    "/": values.DIVIDE,
    "%": values.REMAINDER,
}


def jms_selector(text: str, limits: Limits = DEFAULT_LIMITS) -> evaluate.Selector:
    """Compile a JMS message selector. An empty one matches every message. Raises `SelectorError`."""
    tree = parse(text, JMS, limits) if text.strip(" \t\f\r\n") else Literal(True)
    return evaluate.Selector(text, compiled(tree, JMS))


def sql_filter(text: str, limits: Limits = DEFAULT_LIMITS) -> evaluate.Selector:
    """Compile the text of an `amqp:sql-filter`. Raises `SelectorError`."""
    return evaluate.Selector(text, compiled(parse(text, SQL, limits), SQL))


def compiled(node: Node, dialect: Lexer) -> evaluate.Term:
    """Return the evaluator of a tree in this dialect."""
    sql = dialect is SQL
    match node:
        case Literal(value):
            return evaluate.Constant(value)
        case Identifier(name, section):
            return _field(sql_target(name, section) if sql else jms_target(name))
        case Call():
            return evaluate.Now()
        case Sign(operator, operand):
            return evaluate.Signed(operator == "-", compiled(operand, dialect), sql)
        case Binary(operator, left, right) if operator in _ARITHMETIC:
            return evaluate.Arithmetic(_ARITHMETIC[operator], compiled(left, dialect), compiled(right, dialect), sql)
        case Binary():
            return _comparison(node, dialect)
        case Between(operand, low, high, negated):
            parts = [compiled(each, dialect) for each in (operand, low, high)]
            return evaluate.Within(parts[0], parts[1], parts[2], negated)
        case In(operand, choices, negated):
            texts = [choice.value for choice in choices if isinstance(choice, Literal) and isinstance(choice.value, str)]
            if len(texts) == len(choices):
                return evaluate.OneOfTexts(compiled(operand, dialect), frozenset(texts), negated, sql)
            listed = [compiled(choice, dialect) for choice in choices]
            return evaluate.OneOf(compiled(operand, dialect), listed, negated, sql)
        case Like(operand, pattern, escape, negated):
            return evaluate.Matches(compiled(operand, dialect), Pattern(pattern, escape), negated, sql)
        case IsNull(operand, negated):
            return evaluate.IsMissing(compiled(operand, dialect), negated)
        case Not(operand):
            return evaluate.Opposite(compiled(operand, dialect))
        case Junction(operator, operands):
            terms = [compiled(each, dialect) for each in operands]
            return evaluate.All(terms) if operator == "AND" else evaluate.Some(terms)


def _field(target: Target) -> evaluate.Term:
    if target.default is None:
        field: evaluate.Term = evaluate.Field(target.section, target.name)
    else:
        field = evaluate.Defaulted(target.section, target.name, target.default)
    return field if target.reading == PLAIN else evaluate.Read(field, target.reading)


def _comparison(node: Binary, dialect: Lexer) -> evaluate.Term:
    sql = dialect is SQL
    operator, left, right = node.operator, node.left, node.right
    if isinstance(left, Literal) and not isinstance(right, Literal):
        operator, left, right = _MIRRORED[operator], right, left
    if isinstance(right, Literal):
        constant = right.value
        if isinstance(constant, str) and operator in ("=", "<>"):
            return evaluate.TextEquals(compiled(left, dialect), constant, operator == "<>", sql)
        if values.is_number(constant) and isinstance(constant, (int, float)):
            return evaluate.NumberCompares(_COMPARISONS[operator], compiled(left, dialect), constant, sql)
    return evaluate.Comparison(_COMPARISONS[operator], compiled(left, dialect), compiled(right, dialect), sql)
