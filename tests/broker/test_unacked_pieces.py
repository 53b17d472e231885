"""Unacked entries in pieces, while they are settled and delivered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leveret.broker.consumer import UNACKED_PIECE, Deliveries
from leveret.broker.message import Entry
from tests.broker.support import World

MASK = (1 << 32) - 1
COUNT = 3 * UNACKED_PIECE + 7


@pytest.fixture(scope="module")
def entries() -> Iterator[list[Entry]]:
    world = World()
    queue = world.queue()
    yield [Entry(queue, world.message("m"), seq) for seq in range(COUNT)]


@pytest.mark.parametrize("first", [1, MASK - UNACKED_PIECE - 5])
def test_pieces_are_small_and_complete(entries: list[Entry], first: int) -> None:
    numbered = {first + at & MASK: entry for at, entry in enumerate(entries)}
    pieces = list(Deliveries(1, 1, numbered, first, first + COUNT & MASK, MASK).pieces())
    assert [len(piece) for piece in pieces] == [UNACKED_PIECE] * 3 + [7]
    assert [entry.seq for piece in pieces for entry in piece] == list(range(COUNT))


def test_entries_may_be_settled_and_delivered_between_pieces(entries: list[Entry]) -> None:
    numbered = dict(enumerate(entries))
    pieces = Deliveries(1, 1, numbered, 0, COUNT, -1).pieces()
    first = next(pieces)
    for number in (0, 1, UNACKED_PIECE, COUNT - 1):
        del numbered[number]
    numbered[COUNT] = entries[0]
    rest = [entry.seq for piece in pieces for entry in piece]
    assert [entry.seq for entry in first] == list(range(UNACKED_PIECE))
    assert rest == list(range(UNACKED_PIECE + 1, COUNT - 1))


def test_few_entries_among_many_numbers_are_one_piece(entries: list[Entry]) -> None:
    numbered = {at * 1000: entry for at, entry in enumerate(entries)}
    assert list(Deliveries(1, 1, numbered, 0, 1000 * COUNT, -1).pieces()) == [entries]
    numbered = {at * 60: entry for at, entry in enumerate(entries)}
    pieces = list(Deliveries(1, 1, numbered, 0, 60 * COUNT, -1).pieces())
    assert [entry for piece in pieces for entry in piece] == entries
    assert max(map(len, pieces)) <= UNACKED_PIECE
