"""Operator calls on the broker and its users, independent of their transport, such as the control socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import Any, Protocol

import msgspec

from leveret.broker.broker import Broker
from leveret.broker.errors import BrokerError, NotFound, StorageFailed
from leveret.broker.log import OK, CommitWaiter
from leveret.broker.vhost import Vhost
from leveret.config import Config, VhostConfig
from leveret.management import (
    bindings,
    branches,
    connections,
    exchanges,
    leases,
    links,
    permissions,
    queues,
    segments,
    sink_transactions,
    status,
    streams,
    uploads,
    users,
    vhosts,
)
from leveret.management.calls import Call, Item, Result
from leveret.management.links import LinkRegistry
from leveret.security.users import UserStore

COMMIT_TIMEOUT = 10.0

CALLS: dict[str, Call] = {
    **status.CALLS,
    **queues.CALLS,
    **streams.CALLS,
    **segments.CALLS,
    **leases.CALLS,
    **sink_transactions.CALLS,
    **branches.CALLS,
    **uploads.CALLS,
    **exchanges.CALLS,
    **bindings.CALLS,
    **connections.CALLS,
    **links.CALLS,
    **users.CALLS,
    **vhosts.CALLS,
    **permissions.CALLS,
}


class BadCall(BrokerError):
    """An unknown call, or invalid arguments."""

    condition = "bad-call"


class ConnectedSession(Protocol):
    """The part of a connection that management uses."""

    number: int

    def describe(self) -> Item: ...

    def describe_channels(self) -> Iterable[Item]: ...

    def shut_down(self, reason: str) -> None: ...


class Admin:
    """Executes operator calls.

    Args:
        broker: The broker.
        users: The users.
        sessions: Returns the current connections.
        config: The configuration of the broker.
        config_name: The name of the configuration in errors.
        apply_vhost: Creates a vhost, or changes the settings of an existing one.
        facts: Returns the state of the process for `status`: version, build, listeners and the like.
        alarm: Returns the reason why publishers are blocked, or "".
        executor: The executor for slow preparations, such as password hashes.
        vhost_settings: The settings that operators gave to vhosts.
        links: The links of AMQP 1.0.
    """

    def __init__(self, broker: Broker, users: UserStore, *, sessions: Callable[[], Iterable[ConnectedSession]],
                 config: Config, config_name: str, apply_vhost: Callable[[str, VhostConfig], Vhost],
                 facts: Callable[[], Item], alarm: Callable[[], str], executor: Executor | None = None,
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

    async def call(self, name: str, arguments: Any) -> Iterator[Item] | Any:
        """Execute a call. Changes are on disk when it returns. Raises `BrokerError`."""
        call = CALLS.get(name)
        if call is None:
            raise BadCall(f"unknown call '{name}'; expected one of {', '.join(sorted(CALLS))}")
        try:
            wanted = msgspec.convert(arguments, call.arguments)
        except msgspec.ValidationError as error:
            raise BadCall(f"{name}: {error}") from None
        if call.prepare is not None:
            wanted = await asyncio.get_running_loop().run_in_executor(self._executor, call.prepare, self, wanted)
        result: Result
        if not call.changes:
            result = call.function(self, wanted)
            return await result if isinstance(result, Awaitable) else result
        try:
            result = call.function(self, wanted)
        finally:
            removed = _Done(asyncio.get_running_loop())
            is_removed = not call.removes or not self.broker.jobs.removals.after(removed.call)
            # Even if the call failed half-way: the queues it changed must be drained and committed.
            committed = self._commit()
        await self._on_disk(committed)
        if not is_removed:
            await removed.future
            await self._on_disk(self._commit())
        return await result if isinstance(result, Awaitable) else result

    async def stored(self) -> None:
        """Wait until all changes so far are on disk."""
        await self._on_disk(self._commit())

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


class _Done(CommitWaiter):
    """Waits for the commit of a call's changes, or for the end of its removals."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[None] = loop.create_future()

    def committed(self, batch: int) -> None:
        self.call()

    def call(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
