"""Trees and messages for the property tests."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from leveret.selectors.names import SECTIONS, jms_target
from leveret.selectors.syntax import (
    COMPARISONS,
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

LETTERS = "ab%_!é"
NAMES = ("a", "b", "c", "d", "missing")

texts = st.text(LETTERS, max_size=6)
integers = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
doubles = st.one_of(st.sampled_from([0.0, -0.5, 1.0, 2.5]), st.floats(allow_nan=False, allow_infinity=False))
numbers = st.one_of(integers, doubles)

# Values of properties when the evaluators are compared with the reference.
values: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), integers, st.floats(), texts, st.binary(max_size=3), st.uuids(), st.just([1])
)
# Other values, for which evaluators must only not raise.
odd_values: st.SearchStrategy[Any] = st.one_of(
    values,
    st.integers(),
    st.just(10**400),
    st.just(-(10**400)),
    st.sampled_from([Decimal("1.5"), Decimal("NaN"), Decimal("sNaN"), Decimal("-Infinity"), Decimal("1E+999999")]),
    st.text(max_size=5),
    st.just("\ud800"),
    st.just({"a": 1}),
)


def _allowed(name: str) -> bool:
    try:
        jms_target(name)
    except LookupError:
        return False
    return True


simple_names = st.sampled_from(NAMES).map(Identifier)
any_jms_name = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(_allowed).map(Identifier)
any_sql_name = st.one_of(
    st.builds(Identifier, st.text(st.characters(exclude_categories=["Cs"]), max_size=8)),
    st.builds(
        Identifier,
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        st.sampled_from(["application_properties", "message_annotations"]),
    ),
    st.sampled_from([Identifier("subject", "properties"), Identifier("priority", SECTIONS["h"]), Identifier("and")]),
)


def _patterns() -> st.SearchStrategy[tuple[str, str]]:
    pieces = st.lists(st.sampled_from(["a", "b", "%", "_", "!%", "!_", "!!", "!a", "é"]), max_size=6)
    escaped = pieces.map(lambda found: ("".join(found), "!"))
    return st.one_of(st.tuples(texts, st.just("")), escaped)


def _likes(operands: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.builds(
        lambda operand, pattern, negated: Like(operand, pattern[0], pattern[1], negated),
        operands,
        _patterns(),
        st.booleans(),
    )


def _joined(conditions: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    operands = st.lists(conditions, min_size=2, max_size=3).map(tuple)
    return st.one_of(st.builds(Not, conditions), st.builds(Junction, st.sampled_from(["AND", "OR"]), operands))


def jms_trees(names: st.SearchStrategy[Identifier]) -> st.SearchStrategy[Node]:
    """Return trees whose known types are correct, so that they parse."""
    sums: st.SearchStrategy[Node] = st.recursive(
        st.one_of(names, numbers.map(Literal)),
        lambda inner: st.one_of(
            st.builds(Sign, st.sampled_from("+-"), inner), st.builds(Binary, st.sampled_from("+-*/"), inner, inner)
        ),
        max_leaves=4,
    )
    strings: st.SearchStrategy[Node] = st.one_of(names, texts.map(Literal))
    choices = st.lists(st.one_of(texts, numbers).map(Literal), min_size=1, max_size=3).map(tuple)
    predicates: st.SearchStrategy[Node] = st.one_of(
        names,
        st.booleans().map(Literal),
        st.builds(Binary, st.sampled_from(COMPARISONS), sums, sums),
        st.builds(Binary, st.sampled_from(["=", "<>"]), strings, strings),
        st.builds(Binary, st.sampled_from(["=", "<>"]), names, st.booleans().map(Literal)),
        st.builds(Between, sums, sums, sums, st.booleans()),
        st.builds(In, st.one_of(sums, strings), choices, st.booleans()),
        _likes(strings),
        st.builds(IsNull, st.one_of(sums, strings), st.booleans()),
    )
    return st.recursive(predicates, _joined, max_leaves=5)


def sql_trees(names: st.SearchStrategy[Identifier]) -> st.SearchStrategy[Node]:
    """Return trees of any types."""
    constants = st.one_of(numbers, st.integers(0, 2**64 - 1), texts, st.booleans(), st.binary(min_size=1, max_size=3))
    leaves: st.SearchStrategy[Node] = st.one_of(names, constants.map(Literal), st.just(Call("UTC")))

    def grown(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        return st.one_of(
            st.builds(Sign, st.sampled_from("+-"), inner),
            st.builds(Binary, st.sampled_from("+-*/%"), inner, inner),
            st.builds(Binary, st.sampled_from(COMPARISONS), inner, inner),
            st.builds(In, inner, st.lists(inner, min_size=1, max_size=3).map(tuple), st.booleans()),
            _likes(inner),
            st.builds(IsNull, inner, st.booleans()),
            _joined(inner),
        )

    return st.recursive(leaves, grown, max_leaves=6)
