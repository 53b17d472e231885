"""The control sockets of a broker of several processes: that of the front, and those of shards."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import msgspec

from leveret.cluster.calls import PART, RESULT, ShardRefused
from leveret.cluster.front import Front
from leveret.cluster.requests import ACCOUNT, AUDIT, FrontCall, encode_request
from leveret.cluster.routing import ROUTES
from leveret.cluster.shards import Shards
from leveret.management.admin import Admin, read_request
from leveret.management.control_socket import VERSION, Call, ControlServer
from leveret.management.operations.operation import Context, admit
from leveret.management.operations.table import DEFINITIONS, OPERATIONS
from leveret.management.socket_path import MAX_REQUEST_SIZE
from leveret.security.accounts import Account, ExportedAccount, import_account

# Maximum bytes that the front adds to a request for a shard.
_MAX_ADDED: Final = 64 << 10


class FrontControl(ControlServer):
    """The control socket of the front, for all processes.

    Args:
        admin: The executor of operations in this process.
        shards: The shards.
        path: The path of the socket.
    """

    def __init__(self, admin: Admin, shards: Shards, path: Path) -> None:
        super().__init__(admin, path)
        self._front = Front(admin, shards)

    async def stop(self) -> None:
        """Close and remove the socket."""
        await super().stop()
        self._front.calls.close()

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Execute an operation for the operator, and return its decoded result. Raises `BrokerError`."""
        request = {"v": VERSION, "call": name, "arguments": arguments}
        items: list[Any] = []
        async with aclosing(self.replies(Call(encode_request(request), request, ("", "")))) as lines:
            async for line in lines:
                reply = msgspec.json.decode(line)
                if line.startswith(PART):
                    items += reply["part"]
                elif line.startswith(RESULT):
                    result = reply["result"]
                else:
                    raise ShardRefused(**reply["error"])
        return items + result if isinstance(result, list) else result

    async def replies(self, call: Call) -> AsyncGenerator[bytes, None]:
        """Execute a call in the process that it concerns, and yield the lines of the reply. Raises `BrokerError`."""
        operation = OPERATIONS.get(call.name)
        front_call = await self._front_call(call)
        if call.vhost is not None and call.name in DEFINITIONS:
            replies = self._front.forward(front_call, self._front.shard_of(call.vhost))
        elif call.vhost is None and operation is not None:
            front_call.fields = read_request(call.name, operation.request, call.arguments)
            admit(call.name, operation, Context(self.admin.managed, front_call.principal))
            replies = ROUTES[call.name](self._front, front_call)
        else:
            replies = super().replies(call)  # refuses an unknown operation
        async with aclosing(replies) as lines:
            async for line in lines:
                yield line

    async def _front_call(self, call: Call) -> FrontCall:
        account = None
        if call.user is not None and call.token is not None:
            account = (await self.account(call, call.user)).export()
        return FrontCall(call, await self.principal(call), account)


class ShardControl(ControlServer):
    """The control socket of a shard, for the front. The front checks the tokens of users."""

    max_request = MAX_REQUEST_SIZE + _MAX_ADDED

    def is_audited(self, call: Call) -> bool:
        """Return whether the audit log gets the changes of a call. The front records what it has several shards do."""
        return call.request.get(AUDIT) is not False

    async def account(self, call: Call, user: str) -> Account:
        """Return the account of the user of a call: the one that the front has found by a token, or that of the user."""
        exported = call.request.get(ACCOUNT)
        if exported is None:
            return await super().account(call, user)
        return import_account(msgspec.convert(exported, ExportedAccount), self.admin.managed.users)
