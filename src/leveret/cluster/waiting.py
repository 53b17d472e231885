"""Clients that wait for shards, which may be about to start in any node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

# Seconds between looks at a shard for which clients wait.
INTERVAL: Final = 0.05
# Clients of a shard that continue in one turn. All in one turn would hold up those in the handshake.
PER_TURN: Final = 64


class Waiting:
    """The clients that wait, in the order of their arrival.

    One look at a shard serves all of them: thousands of clients of a node that was killed wait at the same time.

    Args:
        is_due: Returns whether the clients of a vhost should continue.
    """

    def __init__(self, is_due: Callable[[str], bool]) -> None:
        self._is_due = is_due
        # A dict is an ordered set, from which any client can leave.
        self._turns: dict[str, dict[asyncio.Future[None], None]] = {}
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def turn(self, vhost: str) -> Iterator[asyncio.Future[None]]:
        """Wait for the shard of a vhost until the context ends. The future is done when the client should continue."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._turns.setdefault(vhost, {})[turn] = None
        if self._looking is None or self._looking.done():
            self._looking = loop.create_task(self._look())
        try:
            yield turn
        finally:
            self._turns.get(vhost, {}).pop(turn, None)

    async def _look(self) -> None:
        while self._turns:
            has_more = False
            for vhost, turns in list(self._turns.items()):
                if turns and self._is_due(vhost):
                    for turn in list(turns)[:PER_TURN]:
                        del turns[turn]
                        turn.set_result(None)
                    has_more = has_more or bool(turns)
                if not turns:
                    del self._turns[vhost]
            await asyncio.sleep(0 if has_more else INTERVAL)
