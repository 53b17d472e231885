"""The shovels that one process runs: those of its vhosts, from their parameters and from the configuration.

A broker without shovels does not import the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

from leveret.broker.broker import Broker
from leveret.broker.errors import AccessRefused, NotFound, PreconditionFailed
from leveret.broker.parameters import OPERATOR, SHOVEL, ParameterWatch, Setter, Value
from leveret.management.descriptions import DYNAMIC, STATIC, ShovelInfo
from leveret.security.destinations import SPECIAL, Destinations
from leveret.security.users import UserStore

if TYPE_CHECKING:
    from leveret.shovel.definition import Definition
    from leveret.shovel.rights import Rights
    from leveret.shovel.shovel import Shovel

# Seconds for brokers to answer the close of the connections of a shovel.
CLOSE_TIMEOUT: Final = 1.0
# Maximum number of shovels whose rights are compared in one turn.
CHECKED_PER_TURN: Final = 500

logger = logging.getLogger("leveret.shovel")


class Shovels(ParameterWatch):
    """The dynamic shovels, which are the parameters of component `shovel`, and the static ones.

    Args:
        broker: The broker.
        users: The users.
        address: Returns the address of the broker, for URIs without a host.
        networks: The networks to which shovels of other users than administrators may connect; none for all addresses
            except special ones.
        static: The static shovels by vhost and name, each with the user for whom it acts, "" for an operator. Those of
            other vhosts are not started.
    """

    def __init__(
        self,
        broker: Broker,
        users: UserStore,
        address: Callable[[], tuple[str, int]],
        networks: Iterable[str],
        static: Mapping[tuple[str, str], tuple[Definition, str]],
    ) -> None:
        self._broker = broker
        self._users = users
        users.watchers.append(self.users_changed)
        self._destinations = Destinations(networks, SPECIAL)
        self._address = address
        self._static = static
        # By type, vhost and name.
        self._shovels: dict[tuple[str, str, str], Shovel] = {}
        # The tasks of shovels that end.
        self._ending: set[asyncio.Task[None]] = set()
        self._started = False
        # The names of deleted users whose shovels are not marked yet.
        self._deleted: set[str] = set()
        self._checking: asyncio.Handle | None = None
        self._starting: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Import the definitions, which takes as long as several turns."""
        await asyncio.to_thread(import_module, "leveret.shovel.shovel")

    def check(self, name: str, value: Value, setter: Setter) -> None:
        """Raise `PreconditionFailed` if a definition is invalid, or if its setter may not set it."""
        from leveret.shovel.definition import read_definition

        definition = read_definition(name, value)
        try:
            self._rights(setter).check(definition)
        except AccessRefused as error:
            raise PreconditionFailed(f"shovel '{name}': {error}") from None

    def keeps(self, name: str, value: Value, setter: Setter) -> bool:
        """Return whether a shovel keeps its user, unless it cannot run without that user, who is unknown or was deleted."""
        try:
            self.check(name, value, setter)
        except PreconditionFailed:
            return not setter.is_deleted and self._users.get(setter.user) is not None
        return True

    def changed(self, vhost: str, name: str, value: Value | None, setter: Setter) -> None:
        """Start a shovel, or end it if its parameter was deleted."""
        if not self._started:
            return
        former = self._end(DYNAMIC, vhost, name)
        if value is not None:
            self._start_dynamic(vhost, name, value, setter, former)

    def users_changed(self) -> None:
        """Check the rights of all shovels in later turns, once for several changes."""
        if self._shovels:
            self._deleted.update(self._users.removed())
            if self._checking is None:
                self._checking = asyncio.get_running_loop().call_soon(self._check_all)

    def _check_all(self) -> None:
        self._checking = None
        deleted, self._deleted = self._deleted, set()
        self._mark_deleted(deleted)
        self._check_rights(list(self._shovels.items()))

    def _check_rights(self, unchecked: list[tuple[tuple[str, str, str], Shovel]]) -> None:
        """Restart the shovels whose rights have changed. If they may not run any more, they then say why."""
        for key, shovel in unchecked[:CHECKED_PER_TURN]:
            if self._shovels.get(key) is shovel and shovel.has_changed_rights():
                shovel.start(self._cancel(shovel))
        if len(unchecked) > CHECKED_PER_TURN:
            asyncio.get_running_loop().call_soon(self._check_rights, unchecked[CHECKED_PER_TURN:])

    def _mark_deleted(self, users: set[str]) -> None:
        """Mark the dynamic shovels of deleted users, which run again only when they are set again."""
        for vhost in list(self._broker.vhosts.values()):
            for name, setter in vhost.parameters.mark_deleted(SHOVEL, users).items():
                shovel = self._shovels.get((DYNAMIC, vhost.name, name))
                if shovel is not None:
                    shovel.set_rights(self._rights(setter))
        self._broker.end_turn()

    def vhost_added(self, name: str) -> None:
        """Start the static shovels of a new vhost."""
        if self._started:
            self._start_static(name)

    def vhost_removed(self, name: str) -> None:
        """End the static shovels of a deleted vhost."""
        for type, vhost, shovel in list(self._shovels):
            if type == STATIC and vhost == name:
                self._end(type, vhost, shovel)

    def describe(self) -> Iterator[ShovelInfo]:
        """Yield the state of each shovel."""
        return (shovel.describe() for shovel in list(self._shovels.values()))

    def show(self, vhost: str, name: str) -> ShovelInfo:
        """Return the state of a shovel. Raises `NotFound`."""
        return self._find(vhost, name).describe()

    def restart(self, vhost: str, name: str) -> None:
        """Close the connections of a shovel, and start it again. Raises `NotFound`."""
        shovel = self._find(vhost, name)
        shovel.start(self._cancel(shovel))

    def start(self) -> None:
        """Start the shovels of all vhosts, unless they have started."""
        if self._started:
            return
        self._started = True
        if self._static or any(component == SHOVEL for _, component, _, _ in self._parameters()):
            self._starting = asyncio.get_running_loop().create_task(self._start_all())

    async def stop(self) -> None:
        """End all shovels, and wait until their connections are closed."""
        self._started = False
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
        for type, vhost, name in list(self._shovels):
            self._end(type, vhost, name)
        if self._ending:
            _, unfinished = await asyncio.wait(self._ending, timeout=CLOSE_TIMEOUT)
            for task in unfinished:
                task.cancel()

    async def _start_all(self) -> None:
        """Start the shovels that have not started since."""
        await self.prepare()
        setters = {user for vhost in self._broker.vhosts.values() for user in vhost.parameters.setters(SHOVEL)}
        self._mark_deleted({user for user in setters if self._users.get(user) is None})
        for vhost, component, name, value in self._parameters():
            if component == SHOVEL and (DYNAMIC, vhost, name) not in self._shovels:
                setter = self._broker.vhost(vhost).parameters.setter(SHOVEL, name)
                self._start_dynamic(vhost, name, value, setter)
        for name in list(self._broker.vhosts):
            self._start_static(name)

    def _parameters(self) -> list[tuple[str, str, str, Value]]:
        """Return the parameters of all vhosts: vhost, component, name and value."""
        vhosts = list(self._broker.vhosts.values())
        return [(vhost.name, *parameter) for vhost in vhosts for parameter in vhost.parameters.items()]

    def _find(self, vhost: str, name: str) -> Shovel:
        for type in (DYNAMIC, STATIC):
            if (type, vhost, name) in self._shovels:
                return self._shovels[type, vhost, name]
        raise NotFound(f"shovel '{name}' does not exist in vhost '{vhost}'")

    def _start_static(self, wanted: str) -> None:
        for (vhost, name), (definition, user) in self._static.items():
            if vhost == wanted and (STATIC, vhost, name) not in self._shovels:
                self._start(STATIC, vhost, name, definition, Setter(user) if user else OPERATOR)

    def _start_dynamic(
        self, vhost: str, name: str, value: Value, setter: Setter, former: asyncio.Task[None] | None = None
    ) -> None:
        from leveret.shovel.definition import read_definition

        try:
            definition = read_definition(name, value, is_stored=True)
        except PreconditionFailed as error:
            # It was stored by a version that did not check it.
            logger.error("vhost '%s': %s", vhost, error)
            return
        self._start(DYNAMIC, vhost, name, definition, setter, former)

    def _start(
        self,
        type: str,
        vhost: str,
        name: str,
        definition: Definition,
        setter: Setter,
        former: asyncio.Task[None] | None = None,
    ) -> None:
        from leveret.shovel.shovel import Shovel

        rights = self._rights(setter, type == STATIC)
        shovel = self._shovels[type, vhost, name] = Shovel(vhost, name, type, definition, rights, self._ended)
        shovel.start(former)

    def _rights(self, setter: Setter, is_static: bool = False) -> Rights:
        from leveret.shovel.rights import Rights

        return Rights(self._users, setter, is_static, self._address, self._destinations)

    def _end(self, type: str, vhost: str, name: str) -> asyncio.Task[None] | None:
        """End a shovel, and return its task; None if there is none."""
        shovel = self._shovels.pop((type, vhost, name), None)
        return None if shovel is None else self._cancel(shovel)

    def _cancel(self, shovel: Shovel) -> asyncio.Task[None]:
        task = shovel.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    def _ended(self, shovel: Shovel) -> None:
        """Delete the parameter of a shovel that has moved its messages. Static ones do not end."""
        if self._shovels.get((shovel.type, shovel.vhost, shovel.name)) is shovel:
            del self._shovels[shovel.type, shovel.vhost, shovel.name]
            try:
                self._broker.vhost(shovel.vhost).parameters.delete(SHOVEL, shovel.name)
            except NotFound:
                pass  # deleted with its vhost
            self._broker.end_turn()
