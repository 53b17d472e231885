"""Lists of all objects, at most one second old.

They are read from the broker only while clients ask for them. A change through the API expires them, and so does one of
exchanges, queues or bindings by a client, so that a list shows what was answered before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from leveret.management.http.control import Control, Row

MAX_AGE: Final = 1.0


class _List:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        # The rows in the form of the API, or None until a reader asks for them.
        self.shown: list[Row] | None = None
        # The change before which the rows were read, the topology then, and the time at which their reading began.
        self.change = -1
        self.topology: list[int] = []
        self.read_at = 0.0
        self.lock = asyncio.Lock()


class Snapshot:
    """Cache of the results of list operations."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lists: dict[str, _List] = {}
        self._change = 0

    def expire(self) -> None:
        """Have the next reader of each list read it again."""
        self._change += 1

    async def rows(self, call: str) -> list[Row]:
        """Return the result of a list operation without arguments. Callers must not modify it."""
        return (await self._read(call)).rows

    async def shown(self, call: str, show: Callable[[Row], Row]) -> list[Row]:
        """Return the result in the form of the API. `show` must be the same function for every call of an operation."""
        cached = await self._read(call)
        if cached.shown is None:
            cached.shown = [show(row) for row in cached.rows]
        return cached.shown

    async def _read(self, call: str) -> _List:
        cached = self._lists.setdefault(call, _List())
        wanted, asked = self._change, time.monotonic()
        # Connections and channels are not in these lists.
        topology = [row["changes"] for row in await self._control.topology()]
        if not self._is_fresh(cached, wanted, topology):
            async with cached.lock:
                # Another reader may have read it meanwhile.
                if cached.read_at < asked and not self._is_fresh(cached, wanted, topology):
                    change, began = self._change, time.monotonic()
                    cached.rows = await self._control.list(call)
                    cached.shown = None
                    cached.change, cached.topology, cached.read_at = change, topology, began
        return cached

    @staticmethod
    def _is_fresh(cached: _List, change: int, topology: list[int]) -> bool:
        return cached.change >= change and cached.topology == topology and time.monotonic() - cached.read_at < MAX_AGE
