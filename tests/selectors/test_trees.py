"""Trees against their texts, against a plain evaluator, and against SQLite."""

from __future__ import annotations

import sqlite3
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leveret.selectors.compilation import compiled
from leveret.selectors.evaluate import Selector
from leveret.selectors.lexer import JMS, SQL
from leveret.selectors.parser import parse_jms, parse_sql
from leveret.selectors.syntax import Between, Binary, Identifier, In, IsNull, Junction, Like, Literal, Node, Not
from tests.selectors import reference, strategies
from tests.selectors.support import NOW, View

messages = st.fixed_dictionaries(dict.fromkeys("abcd", strategies.values))


@given(strategies.jms_trees(strategies.any_jms_name))
def test_the_text_of_a_jms_tree_parses_to_the_tree(tree: Node) -> None:
    text = JMS.text(tree)
    again = parse_jms(text)
    assert again == tree
    # 1, 1.0 and TRUE are equal in Python.
    assert repr(again) == repr(tree)


@given(strategies.sql_trees(strategies.any_sql_name))
def test_the_text_of_an_sql_tree_parses_to_the_tree(tree: Node) -> None:
    text = SQL.text(tree)
    again = parse_sql(text)
    assert again == tree
    assert repr(again) == repr(tree)


@given(strategies.jms_trees(strategies.simple_names), messages)
def test_jms_trees_evaluate_like_the_reference(tree: Node, message: dict[str, Any]) -> None:
    found = Selector("", compiled(tree, JMS)).evaluate(View(message))
    assert found is reference.evaluate(tree, lambda name: message.get(name.name), NOW, False)


@given(strategies.sql_trees(strategies.simple_names), messages)
def test_sql_trees_evaluate_like_the_reference(tree: Node, message: dict[str, Any]) -> None:
    found = Selector("", compiled(tree, SQL)).evaluate(View(message))
    assert found is reference.evaluate(tree, lambda name: message.get(name.name), NOW, True)


# The common subset of JMS and SQLite: numbers with numbers, strings with strings, small enough to be exact.

_number_names = st.sampled_from(["a", "b"]).map(Identifier)
_text_names = st.sampled_from(["c", "d"]).map(Identifier)
_small = st.integers(-9, 9)
_sums: st.SearchStrategy[Node] = st.recursive(
    st.one_of(_number_names, _small.map(Literal)),
    lambda inner: st.builds(Binary, st.sampled_from("+-*/"), inner, inner),
    max_leaves=4,
)
_strings: st.SearchStrategy[Node] = st.one_of(_text_names, strategies.texts.map(Literal))
_choices = st.lists(strategies.texts.map(Literal), min_size=1, max_size=3).map(tuple)
_patterns = st.lists(st.sampled_from(["a", "b", "%", "_", "!%", "!_", "!!", "é"]), max_size=6).map("".join)
_agreed: st.SearchStrategy[Node] = st.recursive(
    st.one_of(
        st.builds(Binary, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), _sums, _sums),
        st.builds(Binary, st.sampled_from(["=", "<>"]), _strings, _strings),
        st.builds(Between, _sums, _sums, _sums, st.booleans()),
        st.builds(In, _strings, _choices, st.booleans()),
        st.builds(Like, _strings, _patterns, st.just("!"), st.booleans()),
        st.builds(Like, _strings, strategies.texts, st.just(""), st.booleans()),
        st.builds(IsNull, st.one_of(_sums, _strings), st.booleans()),
    ),
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(Junction, st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=5,
)
_rows = st.tuples(*[st.one_of(st.none(), _small)] * 2, *[st.one_of(st.none(), strategies.texts)] * 2)


@given(_agreed, _rows)
def test_sqlite_agrees(tree: Node, row: tuple[Any, ...]) -> None:
    text = JMS.text(tree)
    with sqlite3.connect(":memory:") as database:
        database.execute("PRAGMA case_sensitive_like = ON")
        database.execute("CREATE TABLE message (a INTEGER, b INTEGER, c TEXT, d TEXT)")
        database.execute("INSERT INTO message VALUES (?, ?, ?, ?)", row)
        (expected,) = database.execute(f"SELECT {text} FROM message").fetchone()
    database.close()
    found = Selector("", compiled(parse_jms(text), JMS)).evaluate(View(dict(zip("abcd", row, strict=True))))
    assert found is (None if expected is None else bool(expected))
