"""The shovels that one process runs: those of the parameters of its vhosts.

A broker without shovels does not import the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.broker import Broker
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.parameters import SHOVEL, ParameterWatch, Value

if TYPE_CHECKING:
    from leveret.shovel.shovel import Shovel

# Seconds for brokers to answer the close of the connections of a shovel.
CLOSE_TIMEOUT: Final = 1.0

logger = logging.getLogger("leveret.shovel")


class Shovels(ParameterWatch):
    """The shovels of the parameters of component `shovel`.

    Args:
        broker: The broker.
        address: Returns the address of the broker, for URIs without a host.
    """

    def __init__(self, broker: Broker, address: Callable[[], tuple[str, int]]) -> None:
        self._broker = broker
        self._address = address
        self._shovels: dict[tuple[str, str], Shovel] = {}
        # The tasks of shovels that end.
        self._ending: set[asyncio.Task[None]] = set()
        self._started = False

    def check(self, name: str, value: Value) -> None:
        """Raise `PreconditionFailed` if a definition is invalid."""
        from leveret.shovel.definition import read_definition

        read_definition(name, value)

    def changed(self, vhost: str, name: str, value: Value | None) -> None:
        """Start a shovel, or end it if its parameter was deleted."""
        if not self._started:
            return
        self._end(vhost, name)
        if value is not None:
            self._start(vhost, name, value)

    def start(self) -> None:
        """Start the shovels of all vhosts."""
        self._started = True
        for vhost in list(self._broker.vhosts.values()):
            for component, name, value in vhost.parameters.items():
                if component == SHOVEL:
                    self._start(vhost.name, name, value)

    async def stop(self) -> None:
        """End all shovels, and wait until their connections are closed."""
        self._started = False
        for vhost, name in list(self._shovels):
            self._end(vhost, name)
        if self._ending:
            _, unfinished = await asyncio.wait(self._ending, timeout=CLOSE_TIMEOUT)
            for task in unfinished:
                task.cancel()

    def _start(self, vhost: str, name: str, value: Value) -> None:
        from leveret.shovel.definition import read_definition
        from leveret.shovel.shovel import Shovel

        try:
            definition = read_definition(name, value)
        except PreconditionFailed as error:
            # It was stored by a version that did not check it.
            logger.error("vhost '%s': %s", vhost, error)
            return
        shovel = self._shovels[vhost, name] = Shovel(vhost, name, definition, self._address, self._ended)
        shovel.start()

    def _end(self, vhost: str, name: str) -> None:
        shovel = self._shovels.pop((vhost, name), None)
        if shovel is not None:
            task = shovel.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _ended(self, shovel: Shovel) -> None:
        """Delete the parameter of a shovel that has moved its messages."""
        if self._shovels.get((shovel.vhost, shovel.name)) is shovel:
            del self._shovels[shovel.vhost, shovel.name]
            try:
                self._broker.vhost(shovel.vhost).parameters.delete(SHOVEL, shovel.name)
            except NotFound:
                pass  # deleted with its vhost
            self._broker.end_turn()
