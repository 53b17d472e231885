"""The checker itself detects each broken guarantee."""

from __future__ import annotations

import pytest

from tests.faults.crash.model import Found, Group, Key, Model


def scene() -> tuple[Model, Group, list[Key]]:
    """Three confirmed messages in one queue."""
    model = Model()
    group = model.group("q")
    keys = [model.next(1) for _ in range(3)]
    for key in keys:
        model.published([group], key)
        model.confirmed([group], key)
    return model, group, keys


def look(model: Model, *keys: Key | None, queue: str = "q", redelivered: bool = True, **others: list[Key]) -> list[str]:
    found = {queue: [Found(queue, key, redelivered) for key in keys]}
    found |= {name: [Found(name, key, True) for key in listed] for name, listed in others.items()}
    return [text.split(":")[0] for text in model.check(found, True)]


def test_correct_contents() -> None:
    model, _, keys = scene()
    assert look(model, *keys) == []
    assert look(model, *keys) == []


@pytest.mark.parametrize(
    "present,verdict", [([0, 2], ["lost"]), ([0, 2, 1], ["out of order"]), ([0, 1, 1, 2], ["twice", "out of order"])]
)
def test_wrong_contents(present: list[int], verdict: list[str]) -> None:
    model, _, keys = scene()
    assert look(model, *(keys[index] for index in present)) == verdict


def test_invented_messages() -> None:
    model, _, keys = scene()
    assert look(model, *keys, (1, 99)) == ["invented"]
    assert look(model, *keys, (9, 1)) == ["invented"]
    assert look(model, *keys, None) == ["damaged"]


def test_settled_messages_must_not_return() -> None:
    model, group, keys = scene()
    transaction = model.begin()
    model.acked_in(transaction, group, keys[0])
    transaction.asked = True
    model.committed(transaction)
    assert look(model, *keys) == ["came back"]


def test_plain_acks_may_be_lost_once() -> None:
    model, group, keys = scene()
    model.acked(group, keys[0])
    model.acked(group, keys[1])
    assert look(model, keys[1], keys[2]) == []
    assert look(model, keys[0], keys[1], keys[2]) == ["came back"]
    assert look(model, keys[2]) == ["lost"]


def test_unconfirmed_messages_may_be_lost_until_seen() -> None:
    model, group, keys = scene()
    more = model.next(1)
    model.published([group], more)
    assert look(model, *keys, more) == []
    assert look(model, *keys) == ["lost"]


def test_transactions_are_atomic() -> None:
    for both, verdict in ((True, []), (False, ["half a transaction"])):
        model = Model()
        group, other = model.group("q"), model.group("r")
        transaction = model.begin()
        keys = [model.next(1), model.next(1)]
        model.published([group], keys[0], transaction=transaction)
        model.published([other], keys[1], transaction=transaction)
        transaction.asked = True
        assert look(model, keys[0], r=[keys[1]] if both else []) == verdict


def test_acks_and_publishes_of_a_transaction_belong_together() -> None:
    for acked, published, verdict in (
        (True, True, []),
        (False, False, []),
        (True, False, ["half a transaction"]),
        (False, True, ["half a transaction"]),
    ):
        model, group, keys = scene()
        other = model.group("r")
        transaction = model.begin()
        model.acked_in(transaction, group, keys[0])
        result = model.next(2)
        model.published([other], result, transaction=transaction)
        transaction.asked = True
        assert look(model, *(keys[1:] if acked else keys), r=[result] if published else []) == verdict


def test_transactions_are_invisible_before_their_commit() -> None:
    model = Model()
    group = model.group("q")
    transaction = model.begin()
    key = model.next(1)
    model.published([group], key, transaction=transaction)
    assert model.delivered(group, key) is not None
    assert look(model, key) == ["uncommitted"]


def test_moved_messages_are_in_one_place() -> None:
    for source, target, verdict in (
        ([2, 3], [1], []),
        ([2, 3], [], ["lost"]),
        ([1, 2, 3], [1], ["twice"]),
        ([1, 2], [3], ["out of order", "out of order"]),
    ):
        model = Model()
        group = model.group("q", "dead", moves_oldest=True)
        for _ in range(3):
            key = model.next(1)
            model.published([group], key)
            model.confirmed([group], key)
        assert look(model, *((1, number) for number in source), dead=[(1, number) for number in target]) == verdict


def test_redelivered() -> None:
    model, group, keys = scene()
    model.delivered(group, keys[0])
    assert look(model, *keys, redelivered=False) == ["not marked as redelivered"]


def test_priorities() -> None:
    for order, verdict in (([2, 0, 1], []), ([0, 2, 1], ["out of order"]), ([2, 1, 0], ["out of order"])):
        model = Model()
        group = model.group("q", prioritized=True)
        keys = [model.next(1) for _ in range(3)]
        for key, priority in zip(keys, (1, 1, 5), strict=True):
            model.published([group], key, priority)
            model.confirmed([group], key)
        assert look(model, *(keys[index] for index in order)) == verdict
