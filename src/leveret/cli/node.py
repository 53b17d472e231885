"""The front of a broker of several processes with their logs in PostgreSQL."""

from __future__ import annotations

from leveret.cli.front import FrontServing
from leveret.cli.running import stop_timeout
from leveret.cluster.directory import Directory
from leveret.cluster.layout import SHARDS
from leveret.cluster.nodes import NodeShards
from leveret.cluster.parts import NodePart
from leveret.node.composition import cluster_settings, make_data_directory
from leveret.node.part import Part


class NodeServing(FrontServing):
    """One run of `leveret serve` with `cluster.shards` above 1 and PostgreSQL. Arguments are as for `Serving`."""

    _directory: Directory | None = None

    async def _serve(self) -> int:
        try:
            return await super()._serve()
        finally:
            if self._directory is not None:
                self._directory.close()

    async def _make_part(self) -> Part:
        config = self._config
        settings = cluster_settings(config)
        assert settings is not None
        make_data_directory(config.server.data_path / SHARDS)
        directory = self._directory = Directory(settings)
        records = await directory.join()
        self._shards = shards = NodeShards(
            config,
            self._config_name,
            self._salvage,
            directory,
            asks_shared=records is None,
            stop_timeout=stop_timeout(config.server.shutdown_timeout),
        )
        await self._until_stopped(shards.start())
        if records is None:
            records = await directory.begin(shards.all[0].shared)
        shards.recover(records)
        return NodePart(shards, directory.describe())
