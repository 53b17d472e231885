"""Evaluators of selectors: trees of small objects, one class per operation, created by `leveret.selectors.compilation`.

`value(view)` returns a value of the message, a computed number, or True, False or None (unknown) for a condition.
Comparisons with a constant, the most common conditions, have specialized classes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final
from uuid import UUID

from leveret.selectors.like import MAX_VALUE, Pattern
from leveret.selectors.message import Filter, MessageView
from leveret.selectors.names import CORRELATION_ID, DELIVERY_COUNT, DELIVERY_MODE, MESSAGE_ID
from leveret.selectors.values import EQ, GE, GT, LE, LT, NE, calculate, compare, compare_numbers, signed

# Characters (as a power of two) that LIKE compares per unit of work.
LIKE_SHIFT: Final = 6
# Characters of a selector's text (as a power of two) whose terms cost a unit of work.
TEXT_SHIFT: Final = 5


class Term:
    """A node of a selector, which has a value for each message."""

    __slots__ = ()

    @abstractmethod
    def value(self, view: MessageView) -> object:
        """Return the value for this message."""


class Constant(Term):
    __slots__ = ("constant",)

    def __init__(self, constant: object) -> None:
        self.constant: Final = constant

    def value(self, view: MessageView) -> object:
        return self.constant


class Now(Term):
    __slots__ = ()

    def value(self, view: MessageView) -> object:
        return view.now()


class Field(Term):
    """A field of the message."""

    __slots__ = ("name", "section")

    def __init__(self, section: int, name: str) -> None:
        self.section: Final = section
        self.name: Final = name

    def value(self, view: MessageView) -> object:
        return view.get(self.section, self.name)


class Defaulted(Term):
    """A field of the header with the default from the specification."""

    __slots__ = ("default", "name", "section")

    def __init__(self, section: int, name: str, default: object) -> None:
        self.section: Final = section
        self.name: Final = name
        self.default: Final = default

    def value(self, view: MessageView) -> object:
        found = view.get(self.section, self.name)
        return self.default if found is None else found


class Read(Term):
    """A field in the form that JMS defines. `reading` is one of the constants in `leveret.selectors.names`."""

    __slots__ = ("reading", "source")

    def __init__(self, source: Term, reading: int) -> None:
        self.source: Final = source
        self.reading: Final = reading

    def value(self, view: MessageView) -> object:
        found = self.source.value(view)
        reading = self.reading
        if found is None:
            return None
        if reading == DELIVERY_MODE:
            return "PERSISTENT" if found is True else "NON_PERSISTENT"
        if reading == DELIVERY_COUNT:
            return found + 1 if isinstance(found, int) else None
        if reading in (MESSAGE_ID, CORRELATION_ID):
            return jms_id(found, reading == MESSAGE_ID)
        if isinstance(found, UUID):
            return str(found)
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else found


# Prefixes of JMS message ids for the types of AMQP.
_ID_PREFIXES: Final = ("ID:AMQP_UUID:", "ID:AMQP_ULONG:", "ID:AMQP_BINARY:", "ID:AMQP_STRING:", "ID:AMQP_NO_PREFIX:")


def jms_id(value: object, prefixed: bool) -> object:
    """Return a message id or correlation id as a string, by the AMQP binding of JMS. Message ids start with `ID:`."""
    if isinstance(value, str):
        if value.startswith(_ID_PREFIXES):
            return "ID:AMQP_STRING:" + value
        return value if not prefixed or value.startswith("ID:") else "ID:AMQP_NO_PREFIX:" + value
    if isinstance(value, UUID):
        return "ID:AMQP_UUID:" + str(value)
    if isinstance(value, bytes):
        return "ID:AMQP_BINARY:" + value.hex().upper()
    if isinstance(value, int) and not isinstance(value, bool):
        return "ID:AMQP_ULONG:" + str(value)
    return value


class Arithmetic(Term):
    __slots__ = ("left", "operator", "right", "sql")

    def __init__(self, operator: int, left: Term, right: Term, sql: bool) -> None:
        self.operator: Final = operator
        self.left: Final = left
        self.right: Final = right
        self.sql: Final = sql

    def value(self, view: MessageView) -> object:
        return calculate(self.operator, self.left.value(view), self.right.value(view), self.sql)


class Signed(Term):
    __slots__ = ("negative", "operand", "sql")

    def __init__(self, negative: bool, operand: Term, sql: bool) -> None:
        self.negative: Final = negative
        self.operand: Final = operand
        self.sql: Final = sql

    def value(self, view: MessageView) -> object:
        return signed(self.negative, self.operand.value(view), self.sql)


class Comparison(Term):
    """The comparison of any two values."""

    __slots__ = ("left", "operator", "right", "sql")

    def __init__(self, operator: int, left: Term, right: Term, sql: bool) -> None:
        self.operator: Final = operator
        self.left: Final = left
        self.right: Final = right
        self.sql: Final = sql

    def value(self, view: MessageView) -> object:
        return compare(self.operator, self.left.value(view), self.right.value(view), self.sql)


class TextEquals(Term):
    """The comparison of a value with a string literal: `=`, or `<>` if negated."""

    __slots__ = ("negated", "operand", "sql", "text")

    def __init__(self, operand: Term, text: str, negated: bool, sql: bool) -> None:
        self.operand: Final = operand
        self.text: Final = text
        self.negated: Final = negated
        self.sql: Final = sql

    def value(self, view: MessageView) -> object:
        found = self.operand.value(view)
        if isinstance(found, str):
            return (found == self.text) != self.negated
        if found is None:
            return None
        return compare(NE if self.negated else EQ, found, self.text, self.sql)


class NumberCompares(Term):
    """The comparison of a value with a number literal, which is also prepared as a double."""

    __slots__ = ("double", "number", "operand", "operator", "sql")

    def __init__(self, operator: int, operand: Term, number: int | float, sql: bool) -> None:
        self.operator: Final = operator
        self.operand: Final = operand
        self.number: Final = number
        self.sql: Final = sql
        self.double: Final = float(number)

    def value(self, view: MessageView) -> object:
        found = self.operand.value(view)
        if found is None:
            return None
        number = self.number
        if isinstance(found, int) and isinstance(number, int) and not isinstance(found, bool):
            return compare_numbers(self.operator, found, number)
        if isinstance(found, float) and (isinstance(number, float) or not self.sql):
            return compare_numbers(self.operator, found, self.double)
        return compare(self.operator, found, number, self.sql)


class Within(Term):
    """BETWEEN, in JMS only."""

    __slots__ = ("high", "low", "negated", "operand")

    def __init__(self, operand: Term, low: Term, high: Term, negated: bool) -> None:
        self.operand: Final = operand
        self.low: Final = low
        self.high: Final = high
        self.negated: Final = negated

    def value(self, view: MessageView) -> object:
        found = self.operand.value(view)
        low = self.low.value(view)
        high = self.high.value(view)
        if self.negated:
            return either(compare(LT, found, low, False), compare(GT, found, high, False))
        return both(compare(GE, found, low, False), compare(LE, found, high, False))


def both(left: bool | None, right: bool | None) -> bool | None:
    """Return the AND of two conditions."""
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def either(left: bool | None, right: bool | None) -> bool | None:
    """Return the OR of two conditions."""
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


class OneOfTexts(Term):
    """IN with string literals."""

    __slots__ = ("negated", "operand", "sql", "texts")

    def __init__(self, operand: Term, texts: frozenset[str], negated: bool, sql: bool) -> None:
        self.operand: Final = operand
        self.texts: Final = texts
        self.negated: Final = negated
        self.sql: Final = sql

    def value(self, view: MessageView) -> object:
        found = self.operand.value(view)
        if found is None:
            return None
        if isinstance(found, str):
            return (found in self.texts) != self.negated
        if self.sql:
            for text in self.texts:
                if compare(EQ, found, text, True) is True:
                    return not self.negated
        return self.negated


class OneOf(Term):
    """IN with any expressions. An unknown choice is not equal, as in RabbitMQ."""

    __slots__ = ("choices", "negated", "operand", "sql")

    def __init__(self, operand: Term, choices: list[Term], negated: bool, sql: bool) -> None:
        self.operand: Final = operand
        self.choices: Final = choices
        self.negated: Final = negated
        self.sql: Final = sql

    def value(self, view: MessageView) -> object:
        found = self.operand.value(view)
        if found is None:
            return None
        for choice in self.choices:
            if compare(EQ, found, choice.value(view), self.sql) is True:
                return not self.negated
        return self.negated


class Matches(Term):
    """LIKE. The result is unknown for values that are too long."""

    __slots__ = ("negated", "operand", "pattern", "sql")

    def __init__(self, operand: Term, pattern: Pattern, negated: bool, sql: bool) -> None:
        self.operand: Final = operand
        self.pattern: Final = pattern
        self.negated: Final = negated
        self.sql: Final = sql

    def value(self, view: MessageView) -> object:
        found = self.operand.value(view)
        if isinstance(found, str):
            if len(found) > MAX_VALUE:
                return None
            view.work += len(found) >> LIKE_SHIFT
            return self.pattern.matches(found) != self.negated
        if found is None:
            return None
        if not self.sql:
            return False
        if isinstance(found, bytes) and len(found) <= MAX_VALUE:
            view.work += len(found) >> LIKE_SHIFT
            try:
                return self.pattern.matches(found.decode("utf-8")) != self.negated
            except UnicodeDecodeError:
                return None
        return None


class IsMissing(Term):
    """IS NULL."""

    __slots__ = ("negated", "operand")

    def __init__(self, operand: Term, negated: bool) -> None:
        self.operand: Final = operand
        self.negated: Final = negated

    def value(self, view: MessageView) -> object:
        return (self.operand.value(view) is None) != self.negated


class Opposite(Term):
    """NOT. Values that are not conditions are unknown, here and below."""

    __slots__ = ("operand",)

    def __init__(self, operand: Term) -> None:
        self.operand: Final = operand

    def value(self, view: MessageView) -> object:
        found = self.operand.value(view)
        if found is True:
            return False
        return True if found is False else None


class All(Term):
    """AND."""

    __slots__ = ("operands",)

    def __init__(self, operands: list[Term]) -> None:
        self.operands: Final = operands

    def value(self, view: MessageView) -> object:
        known = True
        for operand in self.operands:
            found = operand.value(view)
            if found is False:
                return False
            if found is not True:
                known = False
        return True if known else None


class Some(Term):
    """OR."""

    __slots__ = ("operands",)

    def __init__(self, operands: list[Term]) -> None:
        self.operands: Final = operands

    def value(self, view: MessageView) -> object:
        known = True
        for operand in self.operands:
            found = operand.value(view)
            if found is True:
                return True
            if found is not False:
                known = False
        return False if known else None


class Selector(Filter):
    """A compiled JMS message selector or `amqp:sql-filter`."""

    __slots__ = ("cost", "root", "text")

    def __init__(self, text: str, root: Term) -> None:
        self.text: Final = text
        self.root: Final = root
        self.cost: Final = len(text) >> TEXT_SHIFT

    def matches(self, view: MessageView) -> bool:
        view.work += self.cost
        return self.root.value(view) is True

    def evaluate(self, view: MessageView) -> bool | None:
        """Return True, False, or None for unknown, which does not match either."""
        found = self.root.value(view)
        if found is True:
            return True
        return False if found is False else None
