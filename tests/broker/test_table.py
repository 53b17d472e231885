"""The mapping behind bindings, below and above the number of entries at which it is split."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from leveret.broker.table import SHRINK_AT, SPLIT_ABOVE, Table


@pytest.mark.parametrize("count", [0, 1, SPLIT_ABOVE, SPLIT_ABOVE + 1, 3 * SPLIT_ABOVE])
def test_a_table_finds_what_was_put_into_it(count: int) -> None:
    table: Table[str, int] = Table()
    for number in range(count):
        table.put(f"a.{number}", number)
    assert len(table) == count
    assert all(table.get(f"a.{number}") == number for number in range(count))
    assert table.get(f"a.{count}") is None
    assert sorted(table.values()) == list(range(count))


def test_a_table_agrees_with_a_dictionary() -> None:
    chance = random.Random(1)
    table: Table[tuple[str, int], int] = Table()
    known: dict[tuple[str, int], int] = {}
    for number in range(8 * SPLIT_ABOVE):
        key = ("k", chance.randrange(2 * SPLIT_ABOVE))
        if chance.randrange(4):
            table.put(key, number)
            known[key] = number
        else:
            assert table.pop(key) == known.pop(key, None)
        assert len(table) == len(known)
    assert len(table) > SPLIT_ABOVE
    assert sorted(table.values()) == sorted(known.values())


@pytest.mark.parametrize("count", [3, 2 * SPLIT_ABOVE])
def test_draining_removes_each_value(count: int) -> None:
    table: Table[int, int] = Table()
    for number in range(count):
        table.put(number, number)
    found = []
    for value in table.drain():
        found.append(value)
        assert len(table) == count - len(found)
        assert table.get(value) is None
    assert sorted(found) == list(range(count))
    assert table.values() == []


def popped(table: Table[str, int], count: int) -> Iterator[int | None]:
    return (table.pop(str(number)) for number in range(count))


def drained(table: Table[str, int], count: int) -> Iterator[int | None]:
    return table.drain()


@pytest.mark.parametrize("empty", [popped, drained])
def test_a_table_releases_memory_while_it_is_emptied(empty: Callable[[Table[str, int], int], Iterator[int | None]]) -> None:
    """The remainder would be released at once, which takes as long as hundreds of removals."""
    count = 64 * SHRINK_AT * 2
    tracemalloc.start()
    try:
        table: Table[str, int] = Table()
        for number in range(count):
            table.put(str(number), number)
        full = tracemalloc.get_traced_memory()[0]
        values = empty(table, count)
        for _ in range(count - count // 16):
            next(values)
        assert tracemalloc.get_traced_memory()[0] < full / 4
        assert len(table) == len(table.values()) == count // 16
        assert all(table.get(str(number)) == number for number in table.values())
    finally:
        tracemalloc.stop()
