"""The calls of an operator over the broker and its users, whoever serves them: the control socket for one."""

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
    staged,
    stages,
    status,
    streams,
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
    **stages.CALLS,
    **branches.CALLS,
    **staged.CALLS,
    **exchanges.CALLS,
    **bindings.CALLS,
    **connections.CALLS,
    **links.CALLS,
    **users.CALLS,
    **vhosts.CALLS,
    **permissions.CALLS,
}


class BadCall(BrokerError):
    """A call that does not exist, or arguments that do not fit it."""

    condition = "bad-call"


class ConnectedSession(Protocol):
    """What management needs of a connection."""

    number: int

    def describe(self) -> Item: ...

    def describe_channels(self) -> Iterable[Item]: ...

    def shut_down(self, reason: str) -> None: ...


class Admin:
    """What the calls work on.

    sessions      the connections of now
    config        the configuration that the broker runs with; `config_name` what to call it in a refusal
    apply_vhost   creates a vhost, or gives an existing one new settings
    facts         of the process, for `status`: version, build, listeners and the like
    alarm         why publishers are held back, "" when they are not
    vhost_settings  those that operators gave, by vhost
    links         of AMQP 1.0
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
        """Carry out a call; a change is on disk when this returns. Raises `BrokerError`."""
        call = CALLS.get(name)
        if call is None:
            raise BadCall(f"unknown call '{name}'; known are {', '.join(sorted(CALLS))}")
        try:
            wanted = msgspec.convert(arguments, call.arguments)
        except msgspec.ValidationError as error:
            raise BadCall(f"{name}: {error}") from None
        if call.prepare is not None:
            wanted = await asyncio.get_running_loop().run_in_executor(self._executor, call.prepare, self, wanted)
        if not call.changes:
            return call.function(self, wanted)
        try:
            result: Result = call.function(self, wanted)
        finally:
            removed = _Done(asyncio.get_running_loop())
            taken_apart = not call.removes or not self.broker.jobs.removals.after(removed.call)
            # Also where the call failed half-way: what it did touch is to be drained and committed.
            committed = self._commit()
        await self._on_disk(committed)
        if not taken_apart:
            await removed.future
            await self._on_disk(self._commit())
        return await result if isinstance(result, Awaitable) else result

    async def stored(self) -> None:
        """Wait until everything that was done so far is on disk."""
        await self._on_disk(self._commit())

    def _commit(self) -> _Done:
        """End the turn; what is done once it is on disk."""
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
            raise StorageFailed(f"done, but not on disk yet: {reason}") from None

    def vhost(self, name: str) -> Vhost:
        """The vhost of that name, or NotFound."""
        return self.broker.vhost(name)

    def vhosts(self, name: str | None) -> list[Vhost]:
        """The one vhost of that name, or all by name."""
        if name is not None:
            return [self.vhost(name)]
        return [self.broker.vhosts[one] for one in sorted(self.broker.vhosts)]

    def session(self, number: int) -> ConnectedSession:
        """The connection of that number, or NotFound."""
        for session in self.sessions():
            if session.number == number:
                return session
        raise NotFound(f"no connection {number}")


class _Done(CommitWaiter):
    """Waits for the batch that a call wrote into, or for the end of what it has removed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[None] = loop.create_future()

    def committed(self, batch: int) -> None:
        self.call()

    def call(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
