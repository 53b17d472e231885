"""A broker on the current event loop, with a restart after its store fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from leveret.broker.errors import BrokerError, StorageFailed
from leveret.config import Config, ConfigError
from leveret.management.operations.operation import Operator
from leveret.management.structs import Reply
from leveret.node.composition import Composition, configured_ports
from leveret.node.errors import CallRefused, StartFailed
from leveret.node.loading import executor, load_definitions
from leveret.node.management import NodeManagement
from leveret.security.tls import TlsError
from leveret.storage.salvage import NOTHING_LOST, Salvage

logger = logging.getLogger("leveret.broker")

# Seconds before a failed store is reopened.
REOPEN_DELAY = 1.0


class Node:
    """One run of a broker. Arguments are as for `Composition`; `salvage` applies only to the first start."""

    def __init__(self, config: Config, config_name: str, owner: str, salvage: Salvage = NOTHING_LOST) -> None:
        self.config = config
        self._salvage = salvage
        self._config_name = config_name
        self._owner = owner
        # The broker keeps an automatically picked port when the store is reopened.
        self._ports = configured_ports(config)
        self._composition: Composition | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._management: NodeManagement | None = None
        self.listeners: list[str] = []

    @property
    def http_listeners(self) -> list[str]:
        """The addresses of the HTTP API, as URLs."""
        return [] if self._management is None else self._management.listeners

    async def start(self) -> None:
        """Open the store and listen. Raises `StartFailed`."""
        if self.config.management.enabled:
            self._management = NodeManagement(self.config)
        try:
            await self._open(self._salvage, first=True)
        except (ConfigError, TlsError, StorageFailed) as error:
            await self._stop_management()
            raise StartFailed(str(error)) from error
        except BaseException:
            await self._stop_management()
            raise

    async def stop(self) -> None:
        """Close listeners, connections and the store. Returns even if the store cannot be closed properly."""
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.wait([self._reopening])
        await self._stop_management()
        composition, self._composition = self._composition, None
        if composition is not None:
            await _close(composition, "the broker stops")

    async def _stop_management(self) -> None:
        management, self._management = self._management, None
        if management is not None:
            await management.stop()

    async def call(self, call: str, /, **arguments: Any) -> Reply | Iterator[Reply] | None:
        """Execute an operation; see `Admin.call`. Raises `CallRefused`, or `RuntimeError` if the broker is stopped."""
        composition = self._composition
        if composition is None:
            raise RuntimeError("the broker is not running")
        try:
            result = await composition.admin.call(call, arguments, Operator())
        except BrokerError as error:
            raise CallRefused(str(error), error.condition) from None
        return (item for item in result if item is not None) if isinstance(result, Iterator) else result

    async def _open(self, salvage: Salvage, *, first: bool = False) -> None:
        composition = Composition(self.config, self._config_name, self._store_failed, self._owner, salvage=salvage)
        try:
            await composition.server.start()
            await composition.part.started(composition.log, composition.broker)
            if first:
                await load_definitions(self.config.management.load_definitions, executor(composition.admin))
            await composition.listen(self._ports)
            if self._management is not None:
                await self._management.serve(composition.admin)
            composition.shovels.start()
        except BaseException:
            await _close(composition, "the broker does not start")
            raise
        self._composition = composition
        self.listeners = composition.listeners

    def _store_failed(self) -> None:
        if self._composition is not None:
            self._reopening = asyncio.get_running_loop().create_task(self._reopen(self._composition))

    async def _reopen(self, failed: Composition) -> None:
        """Reopen a failed store, as `leveret serve` does. Clients reconnect; all confirmed messages are recovered."""
        self._composition = None
        if self._management is not None:
            await self._management.suspend()
        await _close(failed, "the store failed")
        if not failed.log.may_reopen:
            return  # another broker serves its messages
        while self._composition is None:
            await asyncio.sleep(REOPEN_DELAY)
            logger.error("reopening the store")
            try:
                await self._open(NOTHING_LOST)
            except (ConfigError, TlsError, StorageFailed, StartFailed) as error:
                logger.error("%s", error)


async def _close(composition: Composition, reason: str) -> None:
    """Stop a server. Completes even if the caller is cancelled, because a locked store cannot be reopened."""
    stopping = asyncio.ensure_future(_stop(composition, reason))
    try:
        await asyncio.shield(stopping)
    except asyncio.CancelledError:
        with contextlib.suppress(asyncio.CancelledError):
            await stopping
        raise


async def _stop(composition: Composition, reason: str) -> None:
    await composition.shovels.stop()
    try:
        await composition.server.stop(reason)
    except StorageFailed as error:
        logger.error("%s", error)
    # Its threads are idle.
    composition.server.executor.shutdown(cancel_futures=True)
