"""Execution of operations on the broker as a whole, independent of the transport."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from leveret.broker.errors import BrokerError, StorageFailed
from leveret.broker.log import OK, CommitWaiter
from leveret.management.managed import ManagedBroker
from leveret.management.operations.operation import (
    NO_AUDITOR,
    Context,
    Later,
    Operation,
    Principal,
    Q,
    R,
    VhostContext,
    admit,
    execute,
    perform,
    read,
)
from leveret.management.operations.table import DEFINITIONS, OPERATIONS
from leveret.management.structs import Reply

COMMIT_TIMEOUT = 10.0


class BadCall(BrokerError):
    """An unknown operation, or an invalid request."""

    condition = "bad-call"


def read_request(name: str, request: type[Q], fields: object) -> Q:
    """Return a request. Raises `BadCall` if a field is missing, unknown or of the wrong type."""
    try:
        return read(name, request, fields)
    except ValueError as error:
        raise BadCall(str(error)) from None


class Admin:
    """Executor of operations on a broker."""

    def __init__(self, managed: ManagedBroker) -> None:
        self.managed = managed

    async def call(
        self, name: str, fields: object, principal: Principal, is_audited: bool = True
    ) -> Reply | Iterator[Reply | None] | None:
        """Execute an operation, and return when its changes are on disk. Raises `BrokerError`.

        Args:
            name: The name of the operation.
            fields: The fields of the request.
            principal: The caller.
            is_audited: Whether the audit log gets its changes.
        """
        operation = OPERATIONS.get(name)
        if operation is None:
            raise BadCall(f"unknown call '{name}'; expected one of {', '.join(sorted(OPERATIONS))}")
        request = read_request(name, operation.request, fields)
        context = Context(self.managed, principal)
        if not is_audited:
            context.auditor = NO_AUDITOR
        admit(name, operation, context)
        if not operation.early:
            await self._indexed()
        if operation.changes:
            result = await self._change(operation, context, request)
        else:
            result = await execute(operation, context, request)
        return await _resolved(result) if isinstance(result, Later) else result

    async def call_in_vhost(self, name: str, fields: object, vhost: str, principal: Principal) -> Reply:
        """Execute an operation inside a vhost, and return when its changes are on disk. Raises `BrokerError`.

        Args:
            name: The name of the operation in `DEFINITIONS`.
            fields: The fields of the request.
            vhost: The name of the vhost.
            principal: The caller.
        """
        operation = DEFINITIONS.get(name)
        if operation is None:
            raise BadCall(f"unknown call '{name}' in a vhost; expected one of {', '.join(sorted(DEFINITIONS))}")
        request = read_request(name, operation.request, fields)
        await self._indexed()
        context = VhostContext(self.managed.vhost(vhost), principal, None, self.managed.auditor)
        removed = _Done(asyncio.get_running_loop())
        is_removed = True
        try:
            result = perform(operation, context, request)
            is_removed = not self.managed.broker.jobs.removals.after(removed.call)
        finally:
            committed = self._commit()
        await self._on_disk(committed)
        if not is_removed:
            await removed.future
            await self._on_disk(self._commit())
        await self.managed.audit.written()
        return await _resolved(result) if isinstance(result, Later) else result

    async def _change(self, operation: Operation[Q, R], context: Context, request: Q) -> R | Later[R] | Iterator[R | None]:
        """Execute an operation that writes to the log, and wait until its records are on disk."""
        try:
            result = await execute(operation, context, request)
        finally:
            removed = _Done(asyncio.get_running_loop())
            is_removed = not operation.removes or not self.managed.broker.jobs.removals.after(removed.call)
            # Also after a partial failure, because the changed queues must be drained and committed.
            committed = self._commit()
        await self._on_disk(committed)
        if not is_removed:
            await removed.future
            await self._on_disk(self._commit())
        await self.managed.audit.written()
        return result

    async def committed(self) -> None:
        """End the turn, and return when its changes are on disk. Raises `StorageFailed`."""
        await self._on_disk(self._commit())

    async def _indexed(self) -> None:
        """Wait until all messages are indexed, since most operations count, read or remove some."""
        indexing = self.managed.broker.indexing
        if indexing.is_active() and not indexing.given_up:
            done = _Done(asyncio.get_running_loop())
            indexing.after(done.call)
            await done.future
        if indexing.given_up:
            raise StorageFailed("the broker stops before all messages are indexed")

    def _commit(self) -> _Done:
        """End the turn. Returns a waiter for the changes to be on disk."""
        committed = _Done(asyncio.get_running_loop())
        self.managed.broker.log.wait(committed)
        self.managed.broker.end_turn()
        return committed

    async def _on_disk(self, committed: _Done) -> None:
        log = self.managed.broker.log
        try:
            await asyncio.wait_for(committed.future, COMMIT_TIMEOUT)
        except TimeoutError:
            reason = log.reason if log.state != OK else "the disk is slow"
            raise StorageFailed(f"the change is applied, but not on disk yet: {reason}") from None


async def _resolved(later: Later[Reply]) -> Reply:
    """Return a deferred reply, or raise its error."""
    future: asyncio.Future[Reply | BrokerError] = asyncio.get_running_loop().create_future()
    later.when_resolved(future.set_result)
    outcome = await future
    if isinstance(outcome, BrokerError):
        raise outcome
    return outcome


class _Done(CommitWaiter):
    """Waiter for the commit of an operation's changes, or for the end of its removals."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[None] = loop.create_future()

    def committed(self, batch: int) -> None:
        self.call()

    def call(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
