"""Unacknowledged deliveries of a channel."""

from __future__ import annotations

from random import Random

import pytest

from leveret.broker.errors import PreconditionFailed
from leveret.broker.message import Entry
from leveret.protocols.amqp091.channel.unacked import PIECE, UnackedDeliveries, tags_between
from tests.protocols.support import Site


@pytest.fixture
def entries() -> list[Entry]:
    """Five acquired entries of one queue."""
    site = Site()
    channel = site.channel()
    channel.declare("q")
    for number in range(5):
        channel.publish("q", b"%d" % number)
    channel.run()
    queue = site.vhost.queues["q"]
    found = [queue.get(False) for _ in range(5)]
    return [entry for entry in found if entry is not None]


def deliveries(entries: list[Entry]) -> UnackedDeliveries:
    unacked = UnackedDeliveries(entries[0].queue.broker.timers)
    for number, entry in enumerate(entries, 1):
        unacked.count(entry)
        assert unacked.add(entry) == number
    return unacked


def test_deliveries_during_a_requeue_in_steps_can_be_acknowledged_together(entries: list[Entry]) -> None:
    unacked = deliveries(entries[:3])
    steps = unacked.requeuing()
    next(steps)
    last = [unacked.add(entry) for entry in entries[3:]][-1]
    list(steps)
    assert [entry for _, entry in unacked.take(last, True)] == entries[3:]


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("last", [0, 2, 5])
def test_tags_up_to_one(entries: list[Entry], last: int, newest_first: bool) -> None:
    unacked = deliveries(entries)
    tags = [tag for piece in unacked.taking_up_to(last, newest_first) for tag in piece]
    expected = list(range(1, (last or 5) + 1))
    assert tags == (expected[::-1] if newest_first else expected)


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("spread", [1, 3, 1000])
def test_many_tags_are_in_order_and_in_pieces_whatever_the_order_of_the_deliveries(
    entries: list[Entry], spread: int, newest_first: bool
) -> None:
    numbers = [spread * number for number in range(1, 2 * PIECE + 8)]
    shuffled = numbers.copy()
    Random(7).shuffle(shuffled)
    unacked = dict.fromkeys(shuffled, entries[0])
    last = numbers[-7]
    pieces = list(tags_between(unacked, 1, last, newest_first))
    expected = numbers[:-6]
    assert [tag for piece in pieces for tag in piece] == (expected[::-1] if newest_first else expected)
    assert max(map(len, pieces)) <= PIECE


@pytest.mark.parametrize("spread", [1, 1000])
def test_tags_are_listed_while_deliveries_are_removed_and_added(entries: list[Entry], spread: int) -> None:
    numbers = [spread * number for number in range(1, 2 * PIECE + 8)]
    unacked = dict.fromkeys(numbers, entries[0])
    found: list[int] = []
    for piece in tags_between(unacked, 1, numbers[-1], False):
        for tag in piece:
            found.append(tag)
            del unacked[tag]
            unacked[numbers[-1] + tag] = entries[0]
    assert found == numbers


def test_a_restored_delivery_can_be_acknowledged_with_later_ones(entries: list[Entry]) -> None:
    unacked = deliveries(entries)
    taken = unacked.take(2, True)
    for tag, entry in taken:
        unacked.restore(tag, entry)
    assert [tag for tag, _ in unacked.take(5, True)] == [1, 2, 3, 4, 5]


def test_a_tag_is_acknowledged_once(entries: list[Entry]) -> None:
    unacked = deliveries(entries)
    unacked.take(3, False)
    for multiple in (False, True):
        with pytest.raises(PreconditionFailed, match="unknown delivery tag 3"):
            unacked.take(3, multiple)


def test_bytes_are_counted_from_a_window_by_size_on(entries: list[Entry]) -> None:
    unacked = deliveries(entries[:4])
    assert unacked.size == 0 and unacked.gets == 4
    unacked.begin_sizes(entries[:4])
    unacked.count(entries[4])
    assert unacked.size == 5 and unacked.gets == 5
    [(tag, entry)] = unacked.take(1, False)
    unacked.uncount(tag, entry)
    assert unacked.size == 4 and unacked.gets == 4
