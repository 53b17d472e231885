"""A shovel: a supervised task that starts again after a failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from importlib import import_module

from leveret.client.errors import Error
from leveret.client.parameters import Parameters
from leveret.shovel.definition import Definition, End
from leveret.shovel.uris import at_address, is_local, read_uri, without_credentials

logger = logging.getLogger("leveret.shovel")


class Shovel:
    """A shovel of a vhost.

    Args:
        vhost: The name of the vhost.
        name: The name of the shovel.
        definition: The definition.
        address: Returns the address of the broker that runs the shovel, for URIs without a host. Raises `Error`.
        ended: Called when the shovel has moved as many messages as its definition says.
    """

    def __init__(
        self,
        vhost: str,
        name: str,
        definition: Definition,
        address: Callable[[], tuple[str, int]],
        ended: Callable[[Shovel], None],
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.definition = definition
        self._address = address
        self._ended = ended
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task."""
        self._task = asyncio.get_running_loop().create_task(self._supervise(), name=f"leveret shovel {self.name}")

    def cancel(self) -> asyncio.Task[None]:
        """End the shovel, and return the task, which closes the connections. The shovel must have been started."""
        assert self._task is not None
        self._task.cancel()
        return self._task

    async def _supervise(self) -> None:
        delay = self.definition.reconnect_delay
        while True:
            try:
                await self._run()
            except (Error, OSError) as error:
                logger.warning("shovel '%s' in vhost '%s': %s", self.name, self.vhost, error)
            except Exception:
                logger.exception("shovel '%s' in vhost '%s' failed", self.name, self.vhost)
            else:
                logger.info("shovel '%s' in vhost '%s' has ended", self.name, self.vhost)
                self._ended(self)
                return
            if not delay:
                return
            await asyncio.sleep(delay)

    async def _run(self) -> None:
        # The first shovel imports the client's engines, which takes longer than a turn.
        await asyncio.to_thread(import_module, "leveret.shovel.transfer")
        from leveret.shovel.transfer import run

        await run(self.definition, self._hosts, self._headers(), self._note_running)

    def _note_running(self) -> None:
        logger.info("shovel '%s' in vhost '%s' is running", self.name, self.vhost)

    def _hosts(self, end: End) -> list[Parameters]:
        hosts = []
        for uri in end.uris:
            parameters = read_uri(uri, end.protocol, f"Shovel {self.name}")
            hosts.append(at_address(parameters, self._address) if is_local(uri) else parameters)
        return hosts

    def _headers(self) -> dict[str, str]:
        """Return what the definition's forward headers say."""
        definition = self.definition
        source, destination = definition.source, definition.destination
        headers = {
            "shovel-type": "dynamic",
            "shovel-name": self.name,
            "shovel-vhost": self.vhost,
            "src-uri": without_credentials(source.uris[0]),
            "dest-uri": without_credentials(destination.uris[0]),
            "src-queue": source.queue,
            "src-exchange": source.exchange,
            "src-exchange-key": source.exchange_key,
            "src-address": source.address,
            "dest-queue": destination.queue,
            "dest-exchange": destination.exchange,
            "dest-exchange-key": destination.exchange_key,
            "dest-address": destination.address,
        }
        return {name: value for name, value in headers.items() if value}
