"""The shards that a node claims, and the moment of the claim."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest

from leveret.cluster.watch import INTERVAL, MOVE_TIMEOUT, RECONNECT_TIME, STEP, NodeRow, OwnerRow, View, Watch

# Between two looks, so that rounding does not matter.
LEASE = 0.55


def node(name: str, *, live: bool = True, draining: bool = False) -> NodeRow:
    return NodeRow(name, "", "host:1", "0", 0, draining, live)


class Looking:
    """A watch of node `b`, whose clock the test moves, and what it finds in the database."""

    def __init__(self, *owners: OwnerRow, nodes: Collection[NodeRow] = (node("a"), node("b"), node("c"))) -> None:
        self.watch = Watch("b", LEASE)
        self.owners = {owner.shard: owner for owner in owners}
        self.nodes = list(nodes)
        self.now = 100.0
        self.started = 1.0

    def look(self, took: float = 0.0) -> None:
        asked, self.now = self.now, self.now + took
        self.watch.observe(View(1, 4, list(self.owners.values()), self.nodes, started=self.started), asked, self.now)

    def claims(self, *wanted: int, running: Collection[int] = ()) -> list[int]:
        return [owner.shard for owner in self.watch.claims(self.now, wanted, running)]

    def looks_until_claim(self, took: float = 0.0, most: int = 50) -> int:
        """Return how many looks it takes until shard 0 is claimed."""
        for number in range(most):
            self.look(took)
            if self.claims(0):
                return number
            self.now += INTERVAL - took
        return most

    def change(self, shard: int, **fields: object) -> None:
        self.owners[shard] = msgspec.structs.replace(self.owners[shard], **fields)


def owned(shard: int, by: str | None = "a", seen: str = "1") -> OwnerRow:
    return OwnerRow(shard, 3, 7, by, seen)


def test_a_shard_is_claimed_when_its_owner_has_shown_no_sign_of_life_for_the_lease() -> None:
    looking = Looking(owned(0), nodes=[node("b")])
    assert looking.looks_until_claim() == 6
    # Both commits and signs of life begin the lease again.
    for fields in ({"committed": 8}, {"seen": "2"}, {"epoch": 4}):
        looking.change(0, **fields)
        assert looking.looks_until_claim() == 6


@pytest.mark.parametrize("took", [0.0, 0.1, 0.15, 0.3, 1.0, 1.5, 5.0])
def test_the_slower_the_looks_the_longer_an_owner_has(took: float) -> None:
    """Its signs of life may take as long. But it is claimed after three slow looks, however slow the server stays."""
    looking = Looking(owned(0), nodes=[node("b")])
    looking.look(took)
    first = looking.now
    while not looking.claims(0):
        looking.now += max(0.0, INTERVAL - took)
        looking.look(took)
    allowed = LEASE + (2 * took if took > INTERVAL else 0)
    assert allowed <= looking.now - first < allowed + max(took, INTERVAL)
    looking.change(0, seen="2")
    looking.look(took)
    assert not looking.claims(0)


def test_one_slow_look_gives_an_owner_more_time() -> None:
    looking = Looking(owned(0), nodes=[node("b")])
    looking.look()
    looking.look(took=0.5)
    assert not looking.claims(0)
    assert looking.looks_until_claim() == 11


def test_a_pause_of_this_process_does_not_count() -> None:
    """The owners may have been held up, too, as by a pause of the whole machine."""
    looking = Looking(owned(0), nodes=[node("b")])
    for _ in range(3):
        looking.look()
        looking.now += INTERVAL
    looking.now += 60
    looking.look()
    assert not looking.claims(0)
    looking.now += INTERVAL
    assert looking.looks_until_claim() == 1


def test_after_an_interruption_every_owner_may_connect_again() -> None:
    looking = Looking(owned(0), owned(1, None), nodes=[node("b")])
    looking.looks_until_claim()
    looking.watch.interrupt()
    looking.now += 60
    looking.look()
    assert looking.claims(0, 1) == [1]
    assert looking.looks_until_claim() == 6 + round(RECONNECT_TIME / INTERVAL)
    looking.watch.interrupt()
    looking.look()
    looking.look(took=5.0)
    assert looking.looks_until_claim() > RECONNECT_TIME / INTERVAL
    # One that has connected again has its lease only.
    looking.watch.interrupt()
    looking.look()
    looking.change(0, seen="2")
    assert looking.looks_until_claim() == 6


def test_a_node_that_is_gone_stays_gone_until_its_shard_is_claimed_or_the_server_answers_again() -> None:
    gone = node("a", live=False)
    looking = Looking(owned(0), nodes=[gone, node("b")])
    looking.looks_until_claim()
    looking.watch.note_claim(0)
    assert (looking.watch.owner_of(0), looking.watch.is_gone(gone)) == (None, True)
    looking.watch.interrupt()
    assert (looking.watch.owner_of(0), looking.watch.is_gone(gone)) == (None, True)
    looking.look()
    assert (looking.watch.owner_of(0), looking.watch.is_gone(gone)) == ("a", False)


def test_a_released_shard_and_one_that_never_had_an_owner_are_claimed_at_once() -> None:
    looking = Looking(owned(0, None), owned(1), nodes=[node("b")])
    looking.look()
    assert looking.claims(0, 1, 2) == [0, 2]
    # No vhost needs the others, and a process of this node claims these.
    assert not looking.claims(1, running=[0, 2])


def test_the_node_whose_own_process_has_ended_does_not_wait() -> None:
    looking = Looking(owned(0, "b"), owned(1, "a"))
    looking.watch.note_death(0)
    looking.watch.note_death(1)
    looking.look()
    # Shard 1 has been taken over by another node meanwhile.
    assert looking.claims(0, 1) == [0]
    looking.watch.note_claim(0)
    looking.look()
    assert not looking.claims(0)


@pytest.mark.parametrize(("others", "rank"), [((), 2), (("a", "a"), 1), (("a", "c"), 1), (("a", "a", "c"), 0)])
def test_the_nodes_with_the_fewest_shards_are_first(others: tuple[str, ...], rank: int) -> None:
    looking = Looking(owned(0, None), *(owned(number + 1, name) for number, name in enumerate(others)))
    looking.watch.observe(View(1, 8, [owned(7, "b"), *looking.owners.values()], looking.nodes), 0, 0)
    steps = 0
    while not looking.watch.claims(steps * STEP, [0], [7]):
        steps += 1
    assert steps == rank


def test_a_draining_node_claims_nothing_and_does_not_delay_others_nor_does_a_dead_one() -> None:
    looking = Looking(owned(0, None), nodes=[node("b", draining=True)])
    assert looking.looks_until_claim() == 50
    looking.nodes = [node("a", draining=True), node("a0", live=False), node("b")]
    assert looking.looks_until_claim() == 0


def test_a_shard_that_moves_is_left_to_its_new_node_for_a_while() -> None:
    looking = Looking(owned(0, None), owned(1, None))
    looking.change(0, wanted="c")
    looking.change(1, wanted="b")
    looking.look()
    # The others have fewer shards, but shard 1 is to move here.
    assert looking.claims(0, 1, running=[2, 3]) == [1]
    looking.now += MOVE_TIMEOUT
    assert looking.claims(0) == [0]


def test_nodes_that_are_lost() -> None:
    """A node counts as lost once, after several looks that were answered in time."""
    looking = Looking()
    looking.look()
    looking.nodes = [node("a", live=False), node("b")]
    lost = []
    for took in (0.0, 0.0, 2 * INTERVAL, 0.0, 0.0):
        looking.look(took)
        lost += looking.watch.lost_nodes()
    looking.watch.interrupt()
    looking.look()
    looking.look()
    assert lost + looking.watch.lost_nodes() == []
    looking.look()
    assert looking.watch.lost_nodes() == ["a", "c"]
    for _ in range(5):
        looking.look()
    assert looking.watch.lost_nodes() == []
    looking.nodes.append(node("c"))
    looking.look()
    del looking.nodes[2]
    for _ in range(3):
        looking.look()
    assert looking.watch.lost_nodes() == ["c"]


def in_session(*, missing: bool = False) -> Looking:
    """Return what finds a shard of node `a`, whose session was there, and now may be missing."""
    looking = Looking(msgspec.structs.replace(owned(0), in_session=True))
    looking.look()
    if missing:
        looking.change(0, in_session=False)
        looking.look()
    return looking


def test_a_shard_of_a_node_without_sessions_that_does_not_listen_is_claimed_at_once() -> None:
    looking = in_session(missing=True)
    assert not looking.claims(0)
    assert looking.watch.suspects() == {"a": "host:1"}
    looking.watch.note_desertion("a", looking.now)
    # The node that is gone is not one that may claim it first, although it was live a moment ago.
    assert looking.claims(0) == [0]
    assert not looking.watch.suspects()
    looking.look()
    assert looking.claims(0) == [0]
    # Someone has been faster.
    looking.change(0, epoch=4, node="c", in_session=True)
    looking.look()
    assert not looking.claims(0)


def test_a_node_that_does_not_listen_keeps_a_shard_as_long_as_its_session_exists() -> None:
    looking = in_session()
    assert not looking.watch.suspects()
    looking.watch.note_desertion("a", looking.now)
    looking.look()
    assert not looking.claims(0)


@pytest.mark.parametrize("sign", [{"committed": 8}, {"seen": "2"}, {"epoch": 4}, {"in_session": True}])
def test_an_owner_that_shows_a_sign_of_life_without_its_session_is_not_suspect(sign: dict[str, object]) -> None:
    looking = in_session(missing=True)
    looking.watch.note_desertion("a", looking.now)
    looking.change(0, **sign)
    looking.look()
    assert not looking.watch.suspects()
    assert not looking.claims(0)


def test_the_sessions_of_a_server_that_was_restarted_or_does_not_answer_say_nothing() -> None:
    restarted = in_session()
    restarted.started = 2.0
    interrupted = in_session()
    interrupted.watch.interrupt()
    for looking in (restarted, interrupted):
        looking.change(0, in_session=False)
        looking.look()
        assert not looking.watch.suspects()
    slow = in_session()
    slow.change(0, in_session=False)
    slow.look(took=INTERVAL * 1.1)
    assert not slow.watch.suspects()
    slow.look()
    assert slow.watch.suspects()


def test_shards_of_nodes_that_drain_move_on() -> None:
    """Those that have left such a node, and after the stop of one that has drained, all."""
    looking = Looking(owned(0), owned(1, "c"), owned(2, "c"))
    watch = looking.watch

    def moving_on() -> list[int]:
        return [shard for shard in (0, 1, 2) if watch.is_moving_on(shard, looking.now, 2.0)]

    looking.look()
    looking.change(2, node="b")  # moved to balance the nodes
    looking.look()
    assert moving_on() == []
    looking.nodes[0] = node("a", draining=True)
    looking.look()
    looking.change(0, node=None)
    looking.look()
    assert moving_on() == []
    looking.change(0, node="c")
    looking.look()
    assert moving_on() == [0]
    looking.now += 2.0
    assert moving_on() == []
    del looking.nodes[0]
    looking.look()
    assert moving_on() == [0, 1, 2]
    looking.now += 2.0
    looking.look()
    assert moving_on() == []
    del looking.nodes[1]  # without a drain
    looking.look()
    assert moving_on() == []
