"""A recursive-descent parser for both dialects.

    condition   = conjunction {OR conjunction}
    conjunction = negation {AND negation}
    negation    = {NOT} predicate
    predicate   = sum [comparison sum | [NOT] BETWEEN sum AND sum | [NOT] IN (sum, ...)
                       | [NOT] LIKE string [ESCAPE string] | IS [NOT] NULL]
    sum         = product {(+ | -) product}
    product     = signed {(* | /) signed}             also % in SQL
    signed      = {+ | -} primary
    primary     = literal | identifier | ( condition )    also UTC() in SQL

JMS selectors have BETWEEN, accept only literals in an IN list, and are type-checked if the types are known: conditions
that can never be true are errors. SQL filters are not type-checked, because RabbitMQ accepts such conditions.
"""

from __future__ import annotations

from typing import Final

from leveret.selectors.errors import DEFAULT_LIMITS, Limits, SelectorError
from leveret.selectors.lexer import CONSTANT, END, JMS, MIN_LONG, NAME, SQL, SYMBOL, WORD, Lexer, Token
from leveret.selectors.like import Pattern
from leveret.selectors.names import jms_target, sql_target
from leveret.selectors.syntax import (
    COMPARISONS,
    PRODUCTS,
    SUMS,
    Between,
    Binary,
    Call,
    Constant,
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

# The static types of expressions.
_BOOLEAN: Final = "a condition"
_NUMBER: Final = "a number"
_STRING: Final = "a string"
_ANYTHING: Final = "anything"


def parse(text: str, dialect: Lexer, limits: Limits = DEFAULT_LIMITS) -> Node:
    """Parse a selector. Raises `SelectorError`."""
    return _Parser(text, dialect, limits).selector()


def _type(node: Node) -> str:
    match node:
        case Identifier():
            return _ANYTHING
        case Literal(bool()):
            return _BOOLEAN
        case Literal(int() | float()):
            return _NUMBER
        case Literal():
            return _STRING
        case Call() | Sign():
            return _NUMBER
        case Binary(operator) if operator not in COMPARISONS:
            return _NUMBER
        case _:
            return _BOOLEAN


class _Parser:
    def __init__(self, text: str, dialect: Lexer, limits: Limits) -> None:
        self._text = text
        self._dialect = dialect
        self._sql = dialect is SQL
        self._limits = limits
        self._tokens = dialect.tokens(text, limits)
        self._index = 0
        self._token: Token = self._tokens[0]
        self._terms = 0
        self._depth = 0
        self._likes = 0

    def selector(self) -> Node:
        start = self._token
        tree = self._condition()
        if self._token.kind != END:
            raise self._error(self._following(tree))
        self._check(tree, start, _BOOLEAN)
        return tree

    # Conditions

    def _condition(self) -> Node:
        return self._joined("OR")

    def _joined(self, operator: str) -> Node:
        start = self._token
        first = self._joined("AND") if operator == "OR" else self._negation()
        if not self._at(WORD, operator):
            return first
        self._check(first, start, _BOOLEAN)
        operands = [first]
        while self._at(WORD, operator):
            self._next()
            start = self._token
            operand = self._joined("AND") if operator == "OR" else self._negation()
            self._check(operand, start, _BOOLEAN)
            operands.append(operand)
        return self._built(Junction(operator, tuple(operands)))

    def _negation(self) -> Node:
        if not self._at(WORD, "NOT"):
            return self._predicate()
        self._deeper()
        self._next()
        start = self._token
        operand = self._negation()
        self._check(operand, start, _BOOLEAN)
        self._depth -= 1
        return self._built(Not(operand))

    def _predicate(self) -> Node:
        start = self._token
        left = self._sum()
        token = self._token
        if token.kind == SYMBOL and token.text in COMPARISONS:
            return self._comparison(left, start)
        negated = self._at(WORD, "NOT")
        if negated:
            self._next()
        word = self._token
        if word.kind == WORD and word.text == "BETWEEN":
            return self._between(left, start, negated)
        if word.kind == WORD and word.text == "IN":
            return self._in(left, start, negated)
        if word.kind == WORD and word.text == "LIKE":
            return self._like(left, start, negated)
        if negated:
            raise self._error("IN or LIKE" if self._sql else "BETWEEN, IN or LIKE")
        if word.kind == WORD and word.text == "IS":
            self._next()
            if negated := self._at(WORD, "NOT"):
                self._next()
            self._take(WORD, "NULL")
            return self._built(IsNull(left, negated))
        return left

    def _comparison(self, left: Node, start: Token) -> Node:
        operator = self._token.text
        self._next()
        second = self._token
        right = self._sum()
        if operator in ("=", "<>"):
            # If both types are known, the error expects the type of the left operand.
            if _type(left) != _ANYTHING:
                self._check(right, second, _type(left))
        else:
            self._check(left, start, _NUMBER)
            self._check(right, second, _NUMBER)
        return self._built(Binary(operator, left, right))

    def _between(self, operand: Node, start: Token, negated: bool) -> Node:
        self._check(operand, start, _NUMBER)
        self._next()
        low = self._numeric()
        self._take(WORD, "AND")
        return self._built(Between(operand, low, self._numeric(), negated))

    def _numeric(self) -> Node:
        start = self._token
        node = self._sum()
        self._check(node, start, _NUMBER)
        return node

    def _in(self, operand: Node, start: Token, negated: bool) -> Node:
        self._check(operand, start, _STRING if _type(operand) == _BOOLEAN else _ANYTHING)
        self._next()
        self._take(SYMBOL, "(")
        choices = [self._choice()]
        while self._at(SYMBOL, ","):
            self._next()
            choices.append(self._choice())
        if not self._at(SYMBOL, ")"):
            raise self._error("',' or ')'")
        self._next()
        return self._built(In(operand, tuple(choices), negated))

    def _choice(self) -> Node:
        if self._sql:
            return self._sum()
        start = self._token
        node = self._signed()
        if not isinstance(node, Literal) or isinstance(node.value, bool):
            raise self._error_at(start, "a string or a number")
        return node

    def _like(self, operand: Node, start: Token, negated: bool) -> Node:
        self._check(operand, start, _STRING)
        self._next()
        position = self._token
        pattern = self._string("a pattern in quotes")
        escape = ""
        if self._at(WORD, "ESCAPE"):
            self._next()
            quoted = self._token
            escape = self._string("one character in quotes")
            if len(escape) != 1:
                raise self._error_at(quoted, "one character in quotes")
        try:
            Pattern(pattern, escape)
        except ValueError as error:
            raise self._error_at(position, str(error)) from None
        self._likes += 1
        if self._likes > self._limits.likes:
            raise self._error_at(position, f"at most {self._limits.likes} LIKE operators")
        return self._built(Like(operand, pattern, escape, negated))

    def _string(self, expected: str) -> str:
        token = self._token
        if token.kind != CONSTANT or not isinstance(token.value, str):
            raise self._error(expected)
        self._next()
        return token.value

    # Values

    def _sum(self) -> Node:
        return self._chain(SUMS)

    def _chain(self, operators: tuple[str, ...]) -> Node:
        start = self._token
        left = self._chain(PRODUCTS) if operators is SUMS else self._signed()
        while self._token.kind == SYMBOL and self._token.text in operators:
            self._check(left, start, _NUMBER)
            operator = self._token.text
            self._next()
            second = self._token
            right = self._chain(PRODUCTS) if operators is SUMS else self._signed()
            self._check(right, second, _NUMBER)
            left = self._built(Binary(operator, left, right))
        return left

    def _signed(self) -> Node:
        token = self._token
        if token.kind != SYMBOL or token.text not in SUMS:
            return self._primary()
        self._deeper()
        self._next()
        start = self._token
        number = start.value
        if start.kind == CONSTANT and isinstance(number, (int, float)):
            self._count()
            self._next()
            node: Node = Literal(self._in_range(-number if token.text == "-" else number, start))
        else:
            operand = self._signed()
            self._check(operand, start, _NUMBER)
            node = self._built(Sign(token.text, operand))
        self._depth -= 1
        return node

    def _primary(self) -> Node:
        token = self._token
        if self._at(SYMBOL, "("):
            self._deeper()
            self._next()
            inner = self._condition()
            if not self._at(SYMBOL, ")"):
                raise self._error(self._following(inner, "')'"))
            self._next()
            self._depth -= 1
            return inner
        self._count()
        if token.kind == CONSTANT:
            self._next()
            return Literal(self._in_range(token.value, token))
        if token.kind == NAME and token.name is not None:
            self._resolve(token.name)
            self._next()
            return token.name
        if token.kind == WORD and token.text in ("TRUE", "FALSE"):
            self._next()
            return Literal(token.text == "TRUE")
        if self._at(WORD, "UTC"):
            self._next()
            self._take(SYMBOL, "(")
            self._take(SYMBOL, ")")
            return Call("UTC")
        raise self._error("a literal, an identifier or '('")

    def _in_range(self, value: Constant, token: Token) -> Constant:
        if isinstance(value, int) and not MIN_LONG <= value <= self._dialect.largest:
            raise self._error_at(token, f"a number from {MIN_LONG} to {self._dialect.largest}")
        return value

    def _resolve(self, name: Identifier) -> None:
        try:
            if self._sql:
                sql_target(name.name, name.section)
            else:
                jms_target(name.name)
        except LookupError as error:
            raise self._error(str(error)) from None

    # Tokens, limits and errors

    def _at(self, kind: str, text: str) -> bool:
        return self._token.kind == kind and self._token.text == text

    def _next(self) -> None:
        self._index += 1
        self._token = self._tokens[self._index]

    def _take(self, kind: str, text: str) -> None:
        if not self._at(kind, text):
            raise self._error(text if kind == WORD else f"'{text}'")
        self._next()

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > self._limits.depth:
            raise self._error(f"at most {self._limits.depth} levels")

    def _built(self, node: Node) -> Node:
        if node.height > self._limits.depth:
            raise self._error(f"at most {self._limits.depth} levels")
        return node

    def _count(self) -> None:
        self._terms += 1
        if self._terms > self._limits.terms:
            raise self._error(f"at most {self._limits.terms} terms")

    def _check(self, node: Node, start: Token, wanted: str) -> None:
        """Raise `SelectorError` if a node cannot have the wanted type."""
        if not self._sql and wanted != _ANYTHING and _type(node) not in (wanted, _ANYTHING):
            raise self._error_at(start, wanted)

    def _following(self, tree: Node, end: str = END) -> str:
        """Return what may follow a complete condition or value."""
        return f"an operator or {end}" if _type(tree) != _BOOLEAN else f"AND, OR or {end}"

    def _error(self, expected: str) -> SelectorError:
        return self._error_at(self._token, expected)

    def _error_at(self, token: Token, expected: str) -> SelectorError:
        return SelectorError(token.position, expected, self._text)


def parse_jms(text: str, limits: Limits = DEFAULT_LIMITS) -> Node:
    """Parse a JMS message selector. Raises `SelectorError`."""
    return parse(text, JMS, limits)


def parse_sql(text: str, limits: Limits = DEFAULT_LIMITS) -> Node:
    """Parse an `amqp:sql-filter`. Raises `SelectorError`."""
    return parse(text, SQL, limits)
