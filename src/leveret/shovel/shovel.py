"""A shovel: a supervised task that starts again after a failure."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from leveret.broker.errors import BrokerError
from leveret.broker.node_name import node_name
from leveret.client.errors import BROKEN, Error, ProtocolMismatch
from leveret.client.parameters import Parameters
from leveret.management.descriptions import RUNNING, STARTING, TERMINATED, ShovelInfo
from leveret.shovel.definition import Definition, End
from leveret.shovel.rights import Rights
from leveret.shovel.uris import without_credentials

if TYPE_CHECKING:
    from leveret.shovel.transfer import Transfer

logger = logging.getLogger("leveret.shovel")


class Shovel:
    """A shovel of a vhost.

    Args:
        vhost: The name of the vhost.
        name: The name of the shovel.
        type: `DYNAMIC` or `STATIC`.
        definition: The definition.
        rights: What the shovel may do.
        ended: Called when the shovel has moved as many messages as its definition says.
    """

    def __init__(
        self,
        vhost: str,
        name: str,
        type: str,
        definition: Definition,
        rights: Rights,
        ended: Callable[[Shovel], None],
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.type = type
        self.definition = definition
        self._rights = rights
        # Whether it acts with the permissions of its user, the basis of its rights when it began to connect, and the URIs
        # of the brokers that it may have connected to.
        self._acts = False
        self._basis: object = None
        self._places: dict[tuple[str, str, int, str], str] = {}
        self._ended = ended
        self._task: asyncio.Task[None] | None = None
        self._former: asyncio.Task[None] | None = None
        self._state = STARTING
        self._changed = time.time()
        self._uris = (definition.source.uris[0], definition.destination.uris[0])
        # The messages of the current run, and the numbers of those of earlier ones.
        self._transfer: Transfer | None = None
        self._published = 0
        self._forwarded = 0
        self._restarts = 0
        self._error = ""

    def start(self, former: asyncio.Task[None] | None = None) -> None:
        """Start the task.

        Args:
            former: The cancelled task of the shovel, or of the one that this one replaces. Its messages return to their
                queue before this one takes any.
        """
        self._former = former
        supervising = self._supervise() if former is None else self._supervise_after(former)
        self._task = asyncio.get_running_loop().create_task(supervising, name=f"leveret shovel {self.name}")

    def set_rights(self, rights: Rights) -> None:
        """Set the rights with which the shovel connects from now on."""
        self._rights = rights

    def has_changed_rights(self) -> bool:
        """Return whether the shovel is connected, or about to connect, and its rights have changed since."""
        return self._state != TERMINATED and self._basis is not None and self._basis != self._rights.basis(self._acts)

    def cancel(self) -> asyncio.Task[None]:
        """End the shovel, and return a task that ends when its connections are closed. It must have been started."""
        task, former = self._task, self._former
        assert task is not None
        task.cancel()
        # A cancelled task waits no longer for the former one, whose connections may still be open.
        return task if former is None or former.done() else asyncio.get_running_loop().create_task(_wait_for(task, former))

    def describe(self) -> ShovelInfo:
        """Return the state of the shovel."""
        source, destination = self.definition.source, self.definition.destination
        transfer = self._transfer
        return ShovelInfo(
            vhost=self.vhost,
            name=self.name,
            type=self.type,
            state=self._state,
            user=self._rights.user,
            changed=round(self._changed, 3),
            src_uri=without_credentials(self._uris[0]),
            src_protocol=source.protocol,
            src_queue=source.queue,
            src_exchange=source.exchange or "",
            src_exchange_key=source.exchange_key or "",
            src_address=source.address,
            dest_uri=without_credentials(self._uris[1]),
            dest_protocol=destination.protocol,
            dest_queue=destination.queue,
            dest_exchange=destination.exchange or "",
            dest_exchange_key=destination.exchange_key or "",
            dest_address=destination.address,
            published=self._published + (0 if transfer is None else transfer.published),
            forwarded=self._forwarded + (0 if transfer is None else transfer.forwarded),
            pending=0 if transfer is None else transfer.pending,
            remaining=None if transfer is None else transfer.remaining,
            restarts=self._restarts,
            error=self._error,
        )

    async def _supervise_after(self, former: asyncio.Task[None]) -> None:
        await asyncio.wait([former])
        await self._supervise()

    async def _supervise(self) -> None:
        delay = self.definition.reconnect_delay
        while True:
            self._enter(STARTING)
            try:
                await self._run()
            except ProtocolMismatch as error:
                self._fail(f"no AMQP server at {error.host}:{error.port}; expected one, or amqps:// if the port uses TLS")
            except (Error, BrokerError, OSError) as error:
                before, broken, _ = str(error).partition(BROKEN)
                self._fail(before + broken)
            except Exception as error:
                logger.exception("shovel '%s' in vhost '%s' failed", self.name, self.vhost)
                self._error = f"internal error: {error!r}; see the broker's log"
            else:
                logger.info("shovel '%s' in vhost '%s' has ended", self.name, self.vhost)
                self._ended(self)
                return
            self._enter(TERMINATED)
            if not delay:
                return
            await asyncio.sleep(delay)
            self._restarts += 1

    def _fail(self, reason: str) -> None:
        """Note why the run failed, without bytes of a server that does not speak AMQP: it may be another service."""
        logger.warning("shovel '%s' in vhost '%s': %s", self.name, self.vhost, reason)
        self._error = reason

    async def _run(self) -> None:
        # The first shovel imports the client's engines, which takes longer than a turn.
        await asyncio.to_thread(import_module, "leveret.shovel.transfer")
        from leveret.shovel.transfer import run

        self._acts = self._rights.check(self.definition)
        self._basis = self._rights.basis(self._acts)
        self._places.clear()
        try:
            await run(self.definition, self._hosts, self._headers(), self._note_running)
        finally:
            self._note_stopped()

    def _note_running(self, transfer: Transfer) -> None:
        logger.info("shovel '%s' in vhost '%s' is running", self.name, self.vhost)
        self._transfer = transfer
        source, destination = transfer.hosts
        self._uris = (self._places[_place("src", source)], self._places[_place("dest", destination)])
        self._enter(RUNNING)

    def _note_stopped(self) -> None:
        """Keep the numbers of a run that has ended."""
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            self._published += transfer.published
            self._forwarded += transfer.forwarded

    def _enter(self, state: str) -> None:
        self._state = state
        self._changed = time.time()

    async def _hosts(self, side: str, end: End) -> list[Parameters]:
        found = await self._rights.hosts(side, end, f"Shovel {self.name}")
        for parameters, uri in found:
            self._places.setdefault(_place(side, parameters), uri)
        return [parameters for parameters, _ in found]

    def _headers(self) -> dict[str, str]:
        """Return what the definition's forward headers say."""
        definition = self.definition
        source, destination = definition.source, definition.destination
        headers = {
            "shovelled-by": node_name(),
            "shovel-type": self.type,
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


def _place(side: str, parameters: Parameters) -> tuple[str, str, int, str]:
    return side, parameters.host, parameters.port, parameters.vhost


async def _wait_for(*tasks: asyncio.Task[None]) -> None:
    await asyncio.wait(tasks)
