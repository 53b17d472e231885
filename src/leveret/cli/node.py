"""The front of a node: a broker of several processes with their logs in PostgreSQL, which other nodes may join."""

from __future__ import annotations

import logging
import socket
from functools import partial

import msgspec

from leveret.cli.front import FrontServing
from leveret.cli.running import stop_timeout
from leveret.cli.shard_main import serve_forked
from leveret.cluster.directory import Directory
from leveret.cluster.layout import SHARDS
from leveret.cluster.links import NodeClient, NodeServer, join_address, split_address
from leveret.cluster.nodes import NodeShards
from leveret.cluster.parts import NodePart
from leveret.cluster.settings import ShardSettings
from leveret.management.control_socket import ControlServer
from leveret.node.composition import Composition, cluster_settings, cluster_tls_settings, make_data_directory
from leveret.node.errors import StartFailed
from leveret.node.forked import CAN_FORK
from leveret.node.listening import PLAIN, TLS
from leveret.node.nursery import Nursery
from leveret.node.part import Part, Record
from leveret.security.tls import MutualTls, TlsError

logger = logging.getLogger("leveret.serve")

# Addresses that no other machine can connect to.
_WILDCARDS = ("", "0.0.0.0", "::")


class NodeServing(FrontServing):
    """One run of `leveret serve` with `cluster.shards` above 1 and PostgreSQL. Arguments are as for `Serving`."""

    _shards: NodeShards
    _directory: Directory
    _nodes: NodeServer | None = None
    _tls: MutualTls | None = None

    async def _serve(self) -> int:
        try:
            return await super()._serve()
        finally:
            if self._nodes is not None:
                await self._nodes.stop()
            self._directory.close()
            if self._shards.nursery is not None:
                self._shards.nursery.close()

    def _prepare(self) -> None:
        config = self._config
        make_data_directory(config.server.data_path)
        make_data_directory(config.server.data_path / SHARDS)
        settings = cluster_settings(config)
        assert settings is not None
        self._directory = Directory(settings)
        self._shards = NodeShards(
            config,
            self._config_name,
            self._salvage,
            self._directory,
            stop_timeout=stop_timeout(config.server.shutdown_timeout),
        )
        if CAN_FORK:
            # Imported here because each process of a shard needs it.
            import leveret.storage.postgres  # noqa: F401

            try:
                self._shards.use(Nursery(_serve_shard))
            except OSError as error:
                raise StartFailed(f"cannot start the process that starts shards: {error.strerror}") from None

    async def _make_part(self) -> Part:
        directory, shards = self._directory, self._shards
        settings = cluster_tls_settings(self._config.cluster.tls)
        self._tls = None if settings is None else MutualTls(settings)
        start = self._begin_start(directory.settings)
        await self._until_stopped(start.reach())
        await self._until_stopped(start.repeat(directory.join))
        client = NodeClient(directory.secret, directory.name, self._tls, lambda: directory.link_format)
        shards.connect(client, self._fail)
        control = partial(shards.control_of, own=self._control_path)
        self._nodes = NodeServer(directory.secret, directory.name, shards.target, control, self._tls)
        await self._until_stopped(shards.join(await self._listen_for_nodes(self._nodes), start))
        return NodePart(shards, directory.describe())

    async def _listen_for_nodes(self, server: NodeServer) -> str:
        """Listen for other nodes. Return the address that they connect to. Raises `StartFailed`."""
        cluster = self._config.cluster
        host = cluster.host if cluster.host is not None else self._config.server.host
        try:
            bound = await server.start(host, cluster.port)
        except OSError as error:
            address = join_address(host, cluster.port)
            raise StartFailed(f"cannot listen for nodes on {address}: {error.strerror}; see 'cluster.host'") from None
        if cluster.advertised is not None:
            return cluster.advertised
        host, port = split_address(bound)
        return join_address(socket.gethostname() if host in _WILDCARDS else host, port)

    async def _start(self, composition: Composition, control: ControlServer) -> None:
        self._shards.pass_on(partial(_take, composition))
        await super()._start(composition, control)
        addresses = self._client_addresses(composition)
        self._shards.announce(addresses, partial(_is_limited, composition), composition.announce)
        self._shards.close_while_draining(partial(self._take_clients, composition))

    def _client_addresses(self, composition: Composition) -> tuple[str, str]:
        """Return where clients connect to this node: without TLS and with TLS, "" if it does not listen there."""
        cluster = self._config.cluster
        host = cluster.client_host
        if host is None:
            host = self._config.server.host if cluster.advertised is None else split_address(cluster.advertised)[0]
        if host in _WILDCARDS:
            host = socket.gethostname()
        plain = join_address(host, self._ports[PLAIN.section]) if self._config.server.plain else ""
        return plain, join_address(host, self._ports[TLS.section]) if composition.tls is not None else ""

    async def _stop_server(self, composition: Composition) -> None:
        if self._stopping:
            await self._shards.retire()
        self._shards.client.stop(self._stop_reason())
        await super()._stop_server(composition)

    def _apply(self, composition: Composition) -> None:
        super()._apply(composition)
        settings = cluster_tls_settings(self._config.cluster.tls)
        if self._tls is not None and settings is not None:
            try:
                self._tls.reload(settings)
            except TlsError as error:
                logger.error("SIGHUP: certificates of 'cluster.tls' not reloaded: %s", error)

    async def _take_clients(self, composition: Composition, takes: bool) -> None:
        """Close the listeners when this node drains, and listen again when it does not any more."""
        if not takes:
            composition.close_listeners(f"node '{self._directory.name}' is draining")
            return
        try:
            await composition.listen(self._ports)
        except StartFailed as error:
            self._fail(f"the node does not drain any more, but {error}")

    def _fail(self, reason: str) -> None:
        """Stop, because this node must not serve."""
        self._fenced = reason
        self._end.set()


def _serve_shard(request: bytes, descriptor: int) -> int:
    """Serve a shard in a process of the nursery. Returns the exit code."""
    settings = msgspec.json.decode(request, type=ShardSettings)
    return serve_forked(msgspec.structs.replace(settings, descriptor=descriptor))


def _is_limited(composition: Composition, name: str) -> bool:
    """Return whether a user has a limit on connections or channels."""
    user = composition.users.get(name)
    limits = None if user is None else user.limits
    return bool(
        composition.services.settings.connections_per_user
        or (limits is not None and (limits.max_connections or limits.max_channels))
    )


def _take(composition: Composition, records: list[Record]) -> None:
    """Apply shared records that another node has changed."""
    composition.users.apply(records)
    composition.broker.global_parameters.apply(records)
    composition.broker.end_turn()
