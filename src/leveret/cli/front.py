"""The front of a broker of several processes, which is the process of `leveret serve`."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from leveret.cli.running import stop_timeout
from leveret.cli.serving import Serving
from leveret.cli.shard_main import serve_forked
from leveret.cluster.control import FrontControl
from leveret.cluster.layout import SHARDS, check_shards, has_shared
from leveret.cluster.parts import FrontPart
from leveret.cluster.settings import front_config
from leveret.cluster.shards import Shards
from leveret.config import Config
from leveret.management.control_socket import ControlServer
from leveret.management.operations.shards import READY
from leveret.management.socket_path import CONTROL_SOCKET
from leveret.node.composition import Composition, make_data_directory, memory_limit
from leveret.node.errors import StartFailed
from leveret.node.forked import CAN_FORK
from leveret.node.loading import load_definitions
from leveret.node.part import Part
from leveret.storage.registry import SQLITE

logger = logging.getLogger("leveret.serve")

# Bytes of memory that a shard needs for itself and for a few queues.
_MIN_MEMORY: Final = 96 << 20


class FrontServing(Serving):
    """One run of `leveret serve` with `cluster.shards` above 1. Arguments are as for `Serving`."""

    _shards: Shards
    _control: FrontControl
    # Whether the shared records are still those in the log of shard 0.
    _asks_shared = False
    _is_started = False

    async def _serve(self) -> int:
        try:
            return await super()._serve()
        finally:
            await self._shards.stop(self._stop_reason())

    def _prepare(self) -> None:
        """Fork the shards, which need not import the modules of this process again."""
        config = self._config
        data = config.server.data_path
        is_stored = config.storage.engine == SQLITE
        make_data_directory(data)
        if is_stored:
            check_shards(data, config.cluster.shards)
        make_data_directory(data / SHARDS)
        self._asks_shared = is_stored and not has_shared(data)
        self._shards = Shards(
            config,
            self._config_name,
            self._salvage,
            asks_shared=self._asks_shared,
            stop_timeout=stop_timeout(config.server.shutdown_timeout),
        )
        _warn_about_memory(memory_limit(config.limits.memory_high_watermark), config.cluster.shards)
        if CAN_FORK:
            try:
                self._shards.fork(serve_forked)
            except OSError as error:
                raise StartFailed(f"cannot start {config.cluster.shards} shards: {error.strerror}") from None

    async def _make_part(self) -> Part:
        shards = self._shards
        if self._is_started:
            return FrontPart(shards, None)
        self._is_started = True
        shards.start()
        if not self._asks_shared:
            return FrontPart(shards, None)
        await self._until_stopped(shards.opened_all())
        return FrontPart(shards, shards.all[0].shared)

    def _part_config(self) -> Config:
        return front_config(self._config)

    def _make_control(self, composition: Composition) -> FrontControl:
        self._control = FrontControl(composition.admin, self._shards, self._config.server.data_path / CONTROL_SOCKET)
        return self._control

    async def _start(self, composition: Composition, control: ControlServer) -> None:
        shards = self._shards
        shards.report(
            composition.managed.audit,
            lambda name: _forget_vhost(composition, name),
            lambda: self._show_states(composition),
        )
        await composition.server.start()
        await composition.part.started(composition.log, composition.broker)
        self._open_audit(composition)
        if not self._announced:
            await self._until_stopped(shards.opened_all())
            await self._until_stopped(shards.begin())
            await load_definitions(composition.config.management.load_definitions, self._control.call)
        composition.warn_about_vhosts({name for shard in shards.all for name in shard.vhosts})
        await composition.listen(self._ports)
        self._open_http()
        shards.note_listeners(list(composition.listeners))
        await self._start_control(control)

    async def _stop_server(self, composition: Composition) -> None:
        if not self._stopping:
            await super()._stop_server(composition)
            return
        await asyncio.gather(super()._stop_server(composition), self._shards.stop(self._stop_reason()))

    def _apply(self, composition: Composition) -> None:
        super()._apply(composition)
        self._shards.reload(self._config)

    def _show_states(self, composition: Composition) -> None:
        """Report the shards that do not serve to the service manager."""
        if composition.listeners and not self._stopping:
            others = [f"shard {shard.number} is {shard.state}" for shard in self._shards.used if shard.state != READY]
            self._manager.status("; ".join([self._status(composition), *others]))

    def _more_facts(self) -> dict[str, list[int]]:
        return {"shards": [shard.pid for shard in self._shards.all]}

    def _served(self, composition: Composition) -> str:
        return f"{super()._served(composition)} with {len(self._shards.all)} shards"


def _warn_about_memory(limit: int, shards: int) -> None:
    """Log a warning if the share of a shard is so small that publishers would always be blocked."""
    if 0 < limit < shards * _MIN_MEMORY:
        logger.warning(
            "each of %d shards may use %d MiB ('limits.memory_high_watermark'), but needs %d MiB: publishers may be"
            " blocked; use fewer shards or more memory",
            shards,
            limit // shards >> 20,
            _MIN_MEMORY >> 20,
        )


def _forget_vhost(composition: Composition, name: str) -> None:
    """Remove the permissions in a deleted vhost."""
    composition.users.forget_vhost(name)
    composition.broker.end_turn()
