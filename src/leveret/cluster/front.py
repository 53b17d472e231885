"""The front's part of management: it executes operations here, or has the shards execute them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from leveret.broker.errors import PreconditionFailed
from leveret.cluster.calls import PART, RESULT, TIMEOUT, ShardCalls, ShardUnavailable, check_ready
from leveret.cluster.readers import Readers
from leveret.cluster.requests import FrontCall
from leveret.cluster.shard_logs import ShardLogs
from leveret.management.admin import Admin
from leveret.management.control_socket import encode_result
from leveret.management.operations.connections import Closed
from leveret.management.operations.shards import READY
from leveret.management.operations.table import OPERATIONS

if TYPE_CHECKING:
    from leveret.cluster.shards import Shard, Shards

_EMPTY: Final = b"[]"
_END: Final = b"}\n"


def _unchanged(shard: Shard, items: bytes) -> bytes:
    return items


class Front:
    """Management of a broker of several processes.

    Args:
        admin: The executor of the operations of this process, whose broker has no vhosts.
        shards: The shards.
    """

    def __init__(self, admin: Admin, shards: Shards) -> None:
        self.admin = admin
        self.managed = admin.managed
        self.shards = shards
        self.calls = ShardCalls()
        self.logs = ShardLogs(self.calls, self.managed.log)
        self.readers = Readers()
        self.managed.log = self.logs.records
        self.managed.vhost_names = self.vhost_names
        # Vhosts that are being added.
        self._placing: dict[str, Shard] = {}

    def vhost_names(self) -> set[str]:
        """Return the names of all vhosts."""
        return {name for shard in self.shards.all for name in shard.vhosts}

    def shard_of(self, vhost: str) -> Shard:
        """Return the shard of a vhost. An unknown one gets the first shard, which knows how to refuse the operation."""
        return self._placing.get(vhost) or self.shards.of_vhost(vhost) or self.shards.all[0]

    def ready(self) -> list[Shard]:
        """Return the shards that take calls."""
        return [shard for shard in self.shards.all if shard.state == READY]

    async def here(self, call: FrontCall) -> AsyncGenerator[bytes, None]:
        """Execute an operation in this process, and yield the reply when all live shards know of its changes."""
        result = await self.admin.call(call.name, call.arguments, call.principal)
        if OPERATIONS[call.name].changes:
            await self.shards.applied()
        async for line in encode_result(result):
            yield line

    async def forward(self, call: FrontCall, shard: Shard) -> AsyncGenerator[bytes, None]:
        """Have a shard execute an operation, and yield the reply."""
        async with aclosing(self.calls.lines(shard, call.line())) as lines:
            async for line in lines:
                yield line

    async def concatenate(
        self, call: FrontCall, edit: Callable[[Shard, bytes], bytes] = _unchanged
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lists of all shards as one. Only two parts of a list are in memory at a time.

        A shard that is not ready is refused, or left out if the caller accepts that.

        Args:
            call: The call.
            edit: Changes a part of the list of a shard: an encoded list.
        """
        shards = self.shards.used
        if not call.is_partial:
            for shard in shards:
                check_ready(shard)
        request = call.line()
        last = _EMPTY
        for shard in shards:
            try:
                async with aclosing(self.calls.lines(shard, request, TIMEOUT)) as lines:
                    async for line in lines:
                        is_part = line.startswith(PART)
                        if not is_part and not line.startswith(RESULT):
                            yield line  # an error ends the list
                            return
                        items = edit(shard, line[len(PART if is_part else RESULT) : -len(_END)])
                        if items == _EMPTY:
                            continue
                        if last != _EMPTY:
                            yield PART + last + _END
                        last = items
            except ShardUnavailable:
                if not call.is_partial:
                    raise
        yield RESULT + last + _END

    async def close_user(self, user: str, reason: str) -> int:
        """Close the connections of a user in all shards and return their number. The audit log does not get that.

        Raises:
            ShardUnavailable: A shard does not answer.
        """
        request = msgspec.json.encode(
            {"v": 1, "audit": False, "call": "connections.close_user", "arguments": {"user": user, "reason": reason}}
        )
        # A shard that is not ready has no connections.
        return sum(found.connections for found in await self.calls.call_all(self.ready(), request + b"\n", Closed))

    @contextmanager
    def placing(self, name: str, wanted: int | None = None) -> Iterator[Shard]:
        """Choose the shard of a vhost that is being added: the wanted one, or the least busy one.

        Raises:
            PreconditionFailed: There is no shard with this number.
            ShardUnavailable: No shard takes calls.
        """
        found = self._placing.get(name) or self.shards.of_vhost(name)
        if found is not None:
            yield found  # it refuses to add the vhost again
            return
        shard = self._placing[name] = self._least_busy() if wanted is None else self._numbered(wanted)
        try:
            yield shard
        finally:
            del self._placing[name]

    def _numbered(self, number: int) -> Shard:
        last = len(self.shards.all) - 1
        if not 0 <= number <= last:
            raise PreconditionFailed(f"shard {number} does not exist; expected 0 to {last}")
        return self.shards.all[number]

    def _least_busy(self) -> Shard:
        ready = self.ready()
        if not ready:
            check_ready(self.shards.all[0])
        placing = list(self._placing.values())
        return min(ready, key=lambda shard: (len(shard.vhosts) + placing.count(shard), shard.connections, shard.number))
