"""A broker on the running event loop: opened, listening, opened again when its store has failed, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from leveret.broker.errors import BrokerError, StorageFailed
from leveret.config import Config, ConfigError
from leveret.node.composition import Composition
from leveret.node.errors import CallRefused, StartFailed
from leveret.security.tls import TlsError
from leveret.storage.salvage import NOTHING_LOST, Salvage

log = logging.getLogger("leveret.broker")

# The pause before a store that failed is opened again.
REOPEN_AFTER = 1.0


class Node:
    """One run of a broker. `config_name` and `owner` as for `Composition`, `salvage` too, for the first start."""

    def __init__(self, config: Config, config_name: str, owner: str, salvage: Salvage = NOTHING_LOST) -> None:
        self.config = config
        self._salvage = salvage
        self._config_name = config_name
        self._owner = owner
        # A port that was found free is kept when the store is opened again.
        self._ports = {False: config.server.port, True: config.tls.port}
        self._composition: Composition | None = None
        self._reopening: asyncio.Task[None] | None = None
        self.listeners: list[str] = []

    async def start(self) -> None:
        """Open the store and listen. Raises `StartFailed`."""
        try:
            await self._open(self._salvage)
        except (ConfigError, TlsError, StorageFailed) as error:
            raise StartFailed(str(error)) from error

    async def stop(self) -> None:
        """Close listeners, connections and the store. Ends also where the store cannot be closed properly."""
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.wait([self._reopening])
        composition, self._composition = self._composition, None
        if composition is not None:
            await _close(composition, "the broker stops")

    async def call(self, call: str, /, **arguments: Any) -> Any:
        """Carry out a call of an operator, see `Admin.call`. Raises `CallRefused`; RuntimeError while nothing runs."""
        composition = self._composition
        if composition is None:
            raise RuntimeError("the broker does not run")
        try:
            return await composition.admin.call(call, arguments)
        except BrokerError as error:
            raise CallRefused(str(error), error.condition) from None

    async def _open(self, salvage: Salvage) -> None:
        composition = Composition(self.config, self._config_name, self._store_failed, self._owner, salvage=salvage)
        try:
            await composition.server.start()
            await composition.listen(self._ports)
        except BaseException:
            await _close(composition, "the broker does not start")
            raise
        self._composition = composition
        self.listeners = composition.listeners

    def _store_failed(self) -> None:
        if self._composition is not None:
            self._reopening = asyncio.get_running_loop().create_task(self._reopen(self._composition))

    async def _reopen(self, failed: Composition) -> None:
        """What `leveret serve` does too: confirmed is what the store finds again, and clients connect anew."""
        self._composition = None
        await _close(failed, "the store failed")
        while self._composition is None:
            await asyncio.sleep(REOPEN_AFTER)
            log.error("opening the store again")
            try:
                await self._open(NOTHING_LOST)
            except (ConfigError, TlsError, StorageFailed, StartFailed) as error:
                log.error("%s", error)


async def _close(composition: Composition, reason: str) -> None:
    """Stop a server, to the end also where the caller is cancelled: a store that stays locked could not be opened again."""
    stopping = asyncio.ensure_future(_stop(composition, reason))
    try:
        await asyncio.shield(stopping)
    except asyncio.CancelledError:
        with contextlib.suppress(asyncio.CancelledError):
            await stopping
        raise


async def _stop(composition: Composition, reason: str) -> None:
    try:
        await composition.server.stop(reason)
    except StorageFailed as error:
        log.error("%s", error)
    # Its threads have nothing to do any more than to end.
    composition.server.executor.shutdown(cancel_futures=True)
