"""Clients that wait for their shards at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from itertools import pairwise

from leveret.cluster.waiting import PER_TURN, Waiting

COUNT = 3 * PER_TURN


def run(test: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def test_one_look_serves_all_clients_of_a_shard_and_some_continue_in_each_turn() -> None:
    async def test() -> None:
        looks: list[str] = []
        is_due = False
        looked = asyncio.Event()

        def look(vhost: str) -> bool:
            looks.append(vhost)
            looked.set()
            return is_due and vhost == "a"

        waiting = Waiting(look)
        with ExitStack() as stack:
            turns = [stack.enter_context(waiting.turn("a")) for _ in range(COUNT)]
            other = stack.enter_context(waiting.turn("b"))
            await looked.wait()
            assert looks == ["a", "b"]
            is_due = True
            counts: list[int] = []
            while not turns[-1].done():
                counts.append(sum(turn.done() for turn in turns))
                # The first ones come first.
                assert all(turn.done() for turn in turns[: counts[-1]])
                await asyncio.sleep(0)
            assert {later - earlier for earlier, later in pairwise(counts)} <= {0, PER_TURN}
            assert not other.done()

    run(test())


def test_clients_that_leave() -> None:
    async def test() -> None:
        is_due = False
        waiting = Waiting(lambda vhost: is_due)
        with waiting.turn("a") as first, waiting.turn("a") as second:
            with waiting.turn("a") as third:
                pass
            is_due = True
            await asyncio.gather(first, second)
        assert not third.done()
        # The next client begins a new search.
        with waiting.turn("a") as fourth:
            await fourth

    run(test())
