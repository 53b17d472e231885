"""Execution of operations on a broker as a whole, whatever their transport."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import TypeVar

from leveret.broker.broker import Broker
from leveret.broker.errors import BrokerError, NotFound, StorageFailed
from leveret.broker.log import OK, CommitWaiter
from leveret.broker.vhost import Vhost
from leveret.config import Config, VhostConfig
from leveret.management.descriptions import ConnectedSession, LinkRegistry, ProcessInfo
from leveret.management.operations.operation import Context, Later, Operation, Principal, Q, R, Reply, admit, read
from leveret.management.operations.table import OPERATIONS
from leveret.security.users import UserStore

T = TypeVar("T")

COMMIT_TIMEOUT = 10.0


class BadCall(BrokerError):
    """An unknown operation, or an invalid request."""

    condition = "bad-call"


class Admin:
    """Executes operations.

    Args:
        broker: The broker.
        users: The users.
        sessions: Returns the current connections.
        config: The configuration of the broker.
        config_name: The name of the configuration in errors.
        apply_vhost: Creates a vhost, or changes the settings of an existing one.
        facts: Returns the state of the process.
        alarm: Returns the reason why publishers are blocked, or "".
        executor: The executor for slow work, such as password hashes.
        vhost_settings: The settings that operators gave to vhosts.
        links: The links of AMQP 1.0.
    """

    def __init__(self, broker: Broker, users: UserStore, *, sessions: Callable[[], Iterable[ConnectedSession]],
                 config: Config, config_name: str, apply_vhost: Callable[[str, VhostConfig], Vhost],
                 facts: Callable[[], ProcessInfo], alarm: Callable[[], str], executor: Executor | None = None,
                 vhost_settings: dict[str, VhostConfig] | None = None, links: LinkRegistry) -> None:
        self.broker = broker
        self.users = users
        self.sessions = sessions
        self.config = config
        self.config_name = config_name
        self.apply_vhost = apply_vhost
        self.facts = facts
        self.alarm = alarm
        self.vhost_settings = vhost_settings if vhost_settings is not None else {}
        self.links = links
        self._executor = executor

    async def call(self, name: str, fields: object, principal: Principal) -> Reply | Iterator[Reply | None] | None:
        """Execute an operation. Changes are on disk when it returns. Raises `BrokerError`.

        Args:
            name: The name of the operation.
            fields: The fields of the request.
            principal: Who asks.
        """
        operation = OPERATIONS.get(name)
        if operation is None:
            raise BadCall(f"unknown call '{name}'; expected one of {', '.join(sorted(OPERATIONS))}")
        try:
            request = read(name, operation.request, fields)
        except ValueError as error:
            raise BadCall(str(error)) from None
        context = Context(self, principal)
        admit(name, operation, context)
        if operation.changes:
            result = await self._change(operation, context, request)
        else:
            result = operation.function(context, request)
            if isinstance(result, Awaitable):
                result = await result
        return await _resolved(result) if isinstance(result, Later) else result

    async def _change(self, operation: Operation[Q, R], context: Context, request: Q) -> R | Later[R] | Iterator[R | None]:
        """Execute an operation that writes to the log, and wait until what it wrote is on disk."""
        try:
            result = operation.function(context, request)
            if isinstance(result, Awaitable):
                result = await result
        finally:
            removed = _Done(asyncio.get_running_loop())
            is_removed = not operation.removes or not self.broker.jobs.removals.after(removed.call)
            # Even if the operation failed half-way: the queues it changed must be drained and committed.
            committed = self._commit()
        await self._on_disk(committed)
        if not is_removed:
            await removed.future
            await self._on_disk(self._commit())
        return result

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run a function in a thread, and return what it returns."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def _commit(self) -> _Done:
        """End the turn. Returns a waiter that is done when the changes are on disk."""
        committed = _Done(asyncio.get_running_loop())
        self.broker.log.wait(committed)
        self.broker.end_turn()
        return committed

    async def _on_disk(self, committed: _Done) -> None:
        log = self.broker.log
        try:
            await asyncio.wait_for(committed.future, COMMIT_TIMEOUT)
        except TimeoutError:
            reason = log.reason if log.state != OK else "the disk is slow"
            raise StorageFailed(f"the change is done, but not on disk yet: {reason}") from None

    def vhost(self, name: str) -> Vhost:
        """Return the vhost with this name. Raises `NotFound`."""
        return self.broker.vhost(name)

    def vhosts(self, name: str | None) -> list[Vhost]:
        """Return the vhost with this name, or all vhosts sorted by name."""
        if name is not None:
            return [self.vhost(name)]
        return [self.broker.vhosts[known] for known in sorted(self.broker.vhosts)]

    def session(self, number: int) -> ConnectedSession:
        """Return the connection with this number. Raises `NotFound`."""
        for session in self.sessions():
            if session.number == number:
                return session
        raise NotFound(f"no connection {number}")


async def _resolved(later: Later[Reply]) -> Reply:
    """Wait for a reply."""
    future: asyncio.Future[Reply | BrokerError] = asyncio.get_running_loop().create_future()
    later.when_resolved(future.set_result)
    outcome = await future
    if isinstance(outcome, BrokerError):
        raise outcome
    return outcome


class _Done(CommitWaiter):
    """Waits for the commit of an operation's changes, or for the end of its removals."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[None] = loop.create_future()

    def committed(self, batch: int) -> None:
        self.call()

    def call(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
