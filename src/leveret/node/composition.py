"""Composition of a broker from a configuration: log, users, broker, vhosts, services, server, management."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Container, Iterable
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from leveret._build import __version__, build_info, installation
from leveret.broker.broker import Broker, HeaderReader, VhostSettings
from leveret.broker.errors import PreconditionFailed, StorageFailed
from leveret.broker.log import Log, Recovery
from leveret.broker.message import FORMAT_AMQP0, FORMAT_AMQP1, FORMAT_BASIC_AMQP09, FORMAT_CLASS_AMQP09
from leveret.broker.parameters import SHOVEL
from leveret.broker.queues.registry import SERVE_UNINDEXED
from leveret.broker.transactions.branch import BranchSettings
from leveret.broker.transactions.sink_transactions import SinkTransactionSettings
from leveret.broker.uploads import UploadSettings
from leveret.broker.vhost import Vhost
from leveret.config import (
    Amqp09Config,
    Amqp10Config,
    ClusterTlsConfig,
    Config,
    ConfigError,
    LimitsConfig,
    RealmConfig,
    TlsConfig,
    VhostConfig,
)
from leveret.management.admin import Admin
from leveret.management.control_exchange import Requests
from leveret.management.descriptions import Histogram, Performance, ProcessInfo
from leveret.management.managed import ManagedBroker
from leveret.management.operations.vhosts import DEFAULT_VHOST, stored_vhosts
from leveret.node.listening import PLAIN, TLS, WS, WSS, Endpoint, listen
from leveret.node.logins import Logins
from leveret.node.part import Part, shared_records
from leveret.node.permissions import warn_about_permissions
from leveret.node.segments import make_store, segment_settings
from leveret.node.static_shovels import static_shovels
from leveret.protocols.amqp09.contents.content import ClassHeaderReader
from leveret.protocols.amqp09.contents.policy import content_policies
from leveret.protocols.amqp09.realms import RIGHTS, Realm, Realms
from leveret.protocols.amqp09.settings import OWNER, Amqp09Settings
from leveret.protocols.amqp091.content import BasicHeaderReader
from leveret.protocols.amqp10.settings import Amqp10Settings
from leveret.protocols.convert.to_amqp0 import Amqp10HeaderReader
from leveret.protocols.envelopes import Envelopes
from leveret.protocols.message_codec import MessageCodec
from leveret.protocols.services import Services, SessionSettings, VhostSessionSettings
from leveret.security.declared import check_realms, declared_users, read_password
from leveret.security.patterns import compile_pattern
from leveret.security.scram import Keyring
from leveret.security.tls import ServerTls, TlsError, TlsSettings
from leveret.security.users import UserStore
from leveret.server.server import Server
from leveret.server.watch import resident_bytes
from leveret.server.watchdog import Watchdog
from leveret.shovel.shovels import Shovels
from leveret.storage import disk
from leveret.storage.cluster import ClusterSettings, Observed
from leveret.storage.registry import MEMORY, make_logs
from leveret.storage.salvage import NOTHING_LOST, Salvage
from leveret.storage.upload_files import UploadFiles

if TYPE_CHECKING:
    from leveret.node.tokens import TokenLogins
    from leveret.shovel.definition import Definition

logger = logging.getLogger("leveret.serve")

UNSHARED_UPLOADS = (
    "uploads are in the data directory of the broker that received them; set 'uploads.directory' to a directory that all"
    " nodes share"
)


class Composition:
    """A recovered broker that is ready to start.

    Args:
        config: The configuration.
        config_name: The name of the configuration in messages, such as its file.
        on_failure: Called when the store fails.
        owner: A user with all permissions in every vhost, or "".
        salvage: The data losses that the operator accepts for this start.
        watchdog: The watchdog of the event loop; only `leveret serve` has one.
        part: The part of the broker that this process serves. Default: all of it.

    Attributes:
        listeners: The addresses that this process listens on, as URLs.
        front_listeners: In a shard, the addresses that the front listens on.

    Raises:
        ConfigError: The configuration is invalid.
        TlsError: The certificates are invalid.
        StorageFailed: The store cannot be opened.
    """

    def __init__(
        self,
        config: Config,
        config_name: str,
        on_failure: Callable[[], None],
        owner: str = "",
        salvage: Salvage = NOTHING_LOST,
        watchdog: Watchdog | None = None,
        part: Part | None = None,
    ) -> None:
        self.config = config
        self.part = part if part is not None else Part()
        self.config_name = config_name
        self.listeners: list[str] = []
        self.front_listeners: list[str] = []
        self.tokens: TokenLogins | None = None
        self.watchdog = watchdog
        self.tls = make_tls(config.tls)
        self._websocket = _websocket_endpoint(config, config_name) if self.part.has_listeners else None
        # Validate the configuration before opening the store.
        declared = declared_users(config.users)
        check_realms(config.vhosts)
        self._static_shovels = self._read_static_shovels(config)
        users = UserStore(
            self._put,
            loopback_users=config.auth.loopback_users,
            declared_in=config_name,
            owner=owner,
            keyring=Keyring(config.auth.mechanisms),
            rehash=config.auth.rehash,
            has_tokens=bool(config.auth.oauth.resource_server_id),
        )
        try:
            users.declare(declared)
        except PreconditionFailed as error:
            raise ConfigError(f"{config_name}: {error}") from None
        self.users = users
        self.log, self.overflow = self._make_logs(salvage)
        self.log.on_progress = self.part.on_progress
        try:
            recovery = self.log.open(index_later=True)
            if self.overflow is not None:
                self.overflow.open()
            if self.part.has_listeners:
                warn_about_permissions(config, self.on_disk)
            self._take_shared(recovery, salvage)
            self._recover(recovery, on_failure)
        except BaseException:
            self._close_logs()
            raise

    def _recover(self, recovery: Recovery, on_failure: Callable[[], None]) -> None:
        """Create the objects that depend on the store, and recover them."""
        config, users = self.config, self.users
        users.load(recovery.metadata, recovery.dropped)
        self.broker = self._make_broker(config)
        self.shovels = Shovels(
            self.broker, users, self._local_address, config.management.shovel_networks, self._static_shovels
        )
        self.broker.parameter_watches[SHOVEL] = self.shovels
        self.broker.global_parameters.put = self._put
        self.broker.indexing.begin(recovery, SERVE_UNINDEXED)
        self.services = Services(
            self.broker,
            users,
            _session_settings(config),
            mechanisms=list(config.auth.mechanisms),
            anonymous_user=config.auth.anonymous_user,
            external_name=config.auth.external_name,
            server_properties={"version": __version__},
            first_number=self.part.first_number,
            number_step=self.part.number_step,
        )
        self.broker.on_vhost_removed = self._vhost_removed
        self.protocols = self.part.make_protocols(
            self.services, _amqp10_settings(config.amqp10, config.cluster.redirect), _amqp09_settings(config.amqp09)
        )
        self.vhost_settings = stored_vhosts(recovery.metadata)
        for state in self.services.states:
            state.recover(recovery)
        self.broker.recover(recovery)
        self._apply_vhosts()
        self.server = Server(
            self.protocols,
            handshake_timeout=config.server.handshake_timeout,
            shutdown_timeout=config.server.shutdown_timeout,
            memory_limit=memory_limit(config.limits.memory_high_watermark),
            disk_free=config.limits.disk_free,
            data_path=self.path if self.on_disk else None,
            on_failure=on_failure,
            tls=self.tls.context if self.tls is not None else None,
            watchdog=self.watchdog,
            timer_interval=self.part.timer_interval,
        )
        self._apply_admission_limits()
        if config.auth.oauth.resource_server_id:
            self._accept_tokens(config)
        self.managed = self._make_managed(config)
        self.admin = Admin(self.managed)
        self.broker.request_handler = Requests(
            self.broker, self.services.numbered.get, Envelopes(), self.managed.auditor, self.managed.ready_ages
        )
        self.services.auditor = self.managed.auditor
        self._started = time.monotonic()

    def _read_static_shovels(self, config: Config) -> dict[tuple[str, str], tuple[Definition, str]]:
        try:
            return static_shovels(config.shovels)
        except ConfigError as error:
            raise ConfigError(f"{self.config_name}: {error}") from None

    def _make_broker(self, config: Config) -> Broker:
        """Create the broker with its settings, before it recovers."""
        broker = Broker(self.log, self.overflow)
        broker.compile_pattern = compile_pattern
        broker.event_sample = config.events.sample
        _apply_routing_limits(broker, config.limits)
        broker.droppable_backlog = config.amqp09.stream_backlog
        store = make_store(config, self.log) if self.part.has_vhosts else ""
        if isinstance(store, str):
            broker.unsealed = store
        else:
            broker.seal_streams(store, segment_settings(config.streams))
        sinks = config.sink_transactions
        broker.sink_transaction_settings = SinkTransactionSettings(
            sinks.max_bytes, round(sinks.timeout * 1000), sinks.max_per_vhost, sinks.max_apps
        )
        uploads = config.uploads
        broker.uploads.settings = UploadSettings(uploads.max_per_user, uploads.max_bytes, round(uploads.timeout * 1000))
        if self.on_disk and self.part.has_vhosts:
            self.staged_files = self._make_upload_files(config)
            broker.uploads.place = self.staged_files
        broker.branch_settings = BranchSettings(
            round(config.dtx.timeout * 1000), config.dtx.max_branches, config.dtx.max_bytes
        )
        broker.header_readers.update(header_readers())
        for format, policy in content_policies().items():
            broker.content_policies[format] = policy
        return broker

    def _make_upload_files(self, config: Config) -> UploadFiles:
        """Return the storage of uploads, in the data directory or the directory that all nodes share."""
        directory = config.uploads.directory
        rows = self.log.rows_address()
        unshared = "" if rows is None or rows.is_local or directory is not None else UNSHARED_UPLOADS
        shared = None if directory is None else Path(directory)
        if shared is not None and not shared.is_dir():
            raise ConfigError(
                f"{self.config_name}: 'uploads.directory' is '{shared}', which is not a directory; create or mount it"
            )
        return UploadFiles(config.server.data_path, config.limits.disk_free, shared, unshared)

    def _make_managed(self, config: Config) -> ManagedBroker:
        """Return the broker as management sees it."""
        users, executor = self.users, self.server.executor
        logins = Logins(users, self.services.logins, executor, self.broker.end_turn, self.tokens)
        return ManagedBroker(
            self.broker,
            users,
            sessions=lambda: self.services.sessions,
            config=config,
            config_name=self.config_name,
            apply_vhost=self.apply_vhost,
            facts=self.facts,
            performance=self.performance,
            alarm=lambda: self.services.alarm,
            executor=executor,
            vhost_settings=self.vhost_settings,
            links=self.protocols.amqp10.termini,
            shovels=self.shovels,
            codec=MessageCodec(self.broker),
            authenticate=logins.authenticate,
            audit=self.part.audit,
        )

    def _accept_tokens(self, config: Config) -> None:
        """Accept logins by token. Imports the extra, which takes time that other brokers need not spend at the start."""
        try:
            from leveret.node.tokens import make_token_logins
        except ImportError as error:
            raise ConfigError(
                f"{self.config_name}: 'auth.oauth.resource_server_id' is set without its extra"
                f" ({installation('oauth')}): {error}"
            ) from None
        self.tokens = self.services.tokens = make_token_logins(
            config.auth.oauth, self.users, self.services.logins, self.server.executor
        )

    @property
    def path(self) -> Path:
        """The directory of the log."""
        return self.part.store_path(self.config)

    @property
    def on_disk(self) -> bool:
        """Whether the broker stores data in its data directory."""
        return self.part.engine(self.config) != MEMORY

    def _make_logs(self, salvage: Salvage) -> tuple[Log, Log | None]:
        """Return the log of durable data, and the log that deep queues page out to, which starts empty."""
        config = self.config
        if self.on_disk:
            make_data_directory(self.path)
        return make_logs(
            self.part.engine(config),
            self.path,
            synchronous=config.storage.synchronous.upper(),
            reserve=config.storage.reserve,
            disk_free=config.limits.disk_free,
            salvage=salvage,
            cluster=cluster_settings(config, self.part.shard, self.part.observed),
        )

    def _close_logs(self) -> None:
        for opened in (self.log, self.overflow):
            if opened is not None:
                with contextlib.suppress(StorageFailed):
                    opened.close()

    async def listen(self, ports: dict[str, int]) -> None:
        """Listen on the configured addresses.

        Args:
            ports: The ports by `Endpoint.section`. Replaces a port of 0 with the picked port.

        Raises:
            StartFailed: An address cannot be listened on.
        """
        server, context = self.config.server, None if self.tls is None else self.tls.context
        self.start_tokens()
        if server.plain:
            await self._listen(PLAIN, server.host, None, ports)
        if context is not None:
            await self._listen(TLS, self.config.tls.host, context, ports)
        if self._websocket is not None:
            tls_only = self._websocket.scheme == WSS
            await self._listen(self._websocket, self.config.websocket.host, context if tls_only else None, ports)

    def _local_address(self) -> tuple[str, int]:
        """Return the address of the broker's plain listener. Raises `InvalidUrl` if there is none."""
        from leveret.client.errors import InvalidUrl
        from leveret.client.url import split_host

        server = self.config.server
        if not server.plain:
            raise InvalidUrl("a URI without a host needs a listener without TLS; set 'server.plain', or name the host")
        listeners = (*self.listeners, *self.front_listeners)
        listener = next((known for known in listeners if known.startswith("amqp://")), "")
        host, port = split_host(listener.partition("://")[2], server.port) if listener else (server.host, server.port)
        return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port

    def close_listeners(self, reason: str) -> None:
        """Take no new clients until `listen` is called again, and close those in the handshake for this reason.

        In a process without vhosts, these are all of its sessions.
        """
        self.server.close_listeners()
        self.listeners.clear()
        for session in list(self.services.sessions):
            session.shut_down(reason)

    def announce(self, hosts: str) -> None:
        """Announce hosts to clients of AMQP 0-9 that connect from now on, unless the configuration has others."""
        if not self.config.amqp09.known_hosts:
            self.server.protocols.amqp09.settings.known_hosts = hosts

    def start_tokens(self) -> None:
        """Start to check tokens, if the configuration accepts them."""
        if self.tokens is not None:
            self.tokens.start()

    async def _listen(
        self, endpoint: Endpoint, host: str | None, context: ssl.SSLContext | None, ports: dict[str, int]
    ) -> None:
        host = self.config.server.host if host is None else host
        section = endpoint.section
        bound, ports[section] = await listen(self.server, endpoint, host, ports[section], context)
        self.listeners += bound

    def _put(self, kind: str, key: str, value: bytes | None) -> None:
        self.part.put_shared(self.log, kind, key, value)

    def _take_shared(self, recovery: Recovery, salvage: Salvage) -> None:
        """Replace the shared records in the log by those of another process, if there are any."""
        records = self.part.take_shared(recovery, salvage)
        if records is None:
            return
        taken = {(kind, key): value for kind, key, value in records if value is not None}
        for kind, key, _ in shared_records(recovery):
            if (kind, key) not in taken:
                del recovery.metadata[kind, key]
                self._put(kind, key, None)
        for (kind, key), value in taken.items():
            if recovery.metadata.get((kind, key)) != value:
                recovery.metadata[kind, key] = value
                self._put(kind, key, value)

    def _vhost_removed(self, vhost: Vhost) -> None:
        self.services.vhost_removed(vhost)
        self.part.vhost_removed(vhost.name)
        self.shovels.vhost_removed(vhost.name)

    def _apply_vhosts(self) -> None:
        """Create the configured vhosts, and apply the settings of all vhosts from configuration, operators or defaults."""
        existing = (*self.broker.vhosts, *self.vhost_settings)
        for name in self.part.wanted_vhosts(existing, self.config.vhosts):
            self.apply_vhost(name, self._vhost_config(name))
        if self.part.has_listeners and self.part.has_vhosts:
            self.warn_about_vhosts(self.broker.vhosts)

    def _vhost_config(self, name: str) -> VhostConfig:
        return self.config.vhosts.get(name) or self.vhost_settings.get(name) or VhostConfig()

    def declare_vhosts(self, names: Iterable[str]) -> None:
        """Create vhosts of the configuration."""
        for name in names:
            self.apply_vhost(name, self._vhost_config(name))
        self.broker.end_turn()

    def warn_about_vhosts(self, existing: Container[str]) -> None:
        """Log a warning for each missing vhost in which a user has permissions, or a static shovel runs."""
        for user in self.users.users():
            for name in user.permissions:
                if name not in existing:
                    logger.warning("user '%s' has permissions in vhost '%s', which does not exist", user.name, name)
        for vhost, name in self._static_shovels:
            if vhost not in existing:
                logger.warning("'shovels.%s.vhost' is '%s', which does not exist: the shovel does not start", name, vhost)

    def reload(self, config: Config) -> None:
        """Apply the limits and vhosts of a changed configuration to the running broker.

        Users and certificates are reloaded separately; other settings must not differ. Limits and `compat.strict` apply
        at once (`limits.unacked_per_channel` to new channels), other vhost settings to new connections. A vhost that was
        removed from the configuration remains, with an operator's settings or the defaults.
        """
        removed = self.config.vhosts.keys() - config.vhosts.keys()
        self.config = self.managed.config = config
        _apply_limits(self.services.settings, config.limits)
        _apply_routing_limits(self.broker, config.limits)
        self.server.watch.memory_limit = memory_limit(config.limits.memory_high_watermark)
        self.server.watch.disk_free = config.limits.disk_free
        self._apply_admission_limits()
        if self.log.spool is not None:
            self.log.spool.leave_free(config.limits.disk_free)
        if self.on_disk and self.part.has_vhosts:
            self.staged_files.keep_free = config.limits.disk_free
        self._apply_vhosts()
        for name in sorted(removed & self.broker.vhosts.keys() - {DEFAULT_VHOST}):
            logger.warning(
                "vhost '%s' was removed from %s: its contents are kept, its settings are not; delete it with"
                " `leveret vhosts delete`",
                name,
                self.config_name,
            )
        self.broker.end_turn()

    def _apply_admission_limits(self) -> None:
        self.server.admission.total = self.config.limits.unauthenticated
        self.server.admission.per_address = self.config.limits.unauthenticated_per_address

    def start_shovels(self, front_listeners: list[str]) -> None:
        """Start the shovels of a shard, which may connect to these addresses of the front."""
        self.front_listeners = front_listeners
        self.shovels.start()

    def apply_vhost(self, name: str, vhost: VhostConfig) -> Vhost:
        """Create a vhost, or change the settings of an existing one.

        Existing connections keep their meaning of `global` in `basic.qos` and their consumer timeout.
        """
        settings = VhostSettings(
            vhost.compat.strict,
            maximum(vhost.limits.max_queues or self.config.limits.queues_per_vhost),
            maximum(vhost.limits.max_connections),
            vhost.default_queue_type,
        )
        qos_spec = None if vhost.qos_global is None else vhost.qos_global == "spec"
        self.services.vhost_settings[name] = VhostSessionSettings(qos_spec, round(vhost.consumer_timeout * 1000))
        realms = _make_realms(vhost.realms)
        known = self.protocols.amqp09.realms.get(name)
        if known is None:
            self.protocols.amqp09.realms[name] = realms
        else:
            known.configured = realms.configured  # existing tickets stay valid
        is_new = name not in self.broker.vhosts
        added = self.broker.add_vhost(name, settings)
        if is_new:
            self.part.vhost_added(name)
            self.shovels.vhost_added(name)
        return added

    def facts(self) -> ProcessInfo:
        """Return the state of the process for `leveret status`."""
        return ProcessInfo(
            version=__version__,
            build=str(build_info()),
            pid=os.getpid(),
            uptime=round(time.monotonic() - self._started, 3),
            listeners=list(self.listeners),
            data_dir=str(self.config.server.data_path),
            config=self.config_name,
            engine=self.config.storage.engine,
            store=self.part.describe(self.log),
            memory=resident_bytes(),
            memory_limit=self.server.watch.memory_limit,
            slow_turns=self.watchdog.slow if self.watchdog is not None else 0,
            longest_turn=round(self.watchdog.longest, 4) if self.watchdog is not None else 0.0,
        )

    def performance(self) -> Performance:
        """Return measurements of the process."""
        watchdog = self.watchdog
        return Performance(
            turns=Histogram.of(None if watchdog is None else watchdog.longest_turns),
            loop_cpu=0.0 if watchdog is None else watchdog.cpu,
            commits=Histogram.of(self.log.commit_durations()),
        )


def configured_ports(config: Config) -> dict[str, int]:
    """Return the ports of the listeners, by `Endpoint.section`."""
    return {"server": config.server.port, "tls": config.tls.port, "websocket": config.websocket.port}


def _websocket_endpoint(config: Config, config_name: str) -> Endpoint | None:
    """Return the listener for WebSockets, None if it is disabled. Imports the extra, which other brokers do not need."""
    settings = config.websocket
    if not settings.enabled:
        return None
    try:
        from leveret.server.websocket import WebSocketProtocol
        from leveret.server.websocket_request import WebSocketSettings
    except ImportError as error:
        raise ConfigError(
            f"{config_name}: 'websocket.enabled' is set without its extra ({installation('websocket')}): {error}"
        ) from None
    origins = frozenset(origin.lower() for origin in settings.allowed_origins)
    proxies = tuple(ip_network(network) for network in settings.trusted_proxies)
    accepted = WebSocketSettings(settings.path, origins, proxies)
    is_plain = config.server.plain if settings.plain is None else settings.plain
    return Endpoint("websocket", WS if is_plain else WSS, settings.path, partial(WebSocketProtocol, accepted))


def header_readers() -> dict[int, HeaderReader]:
    """Return the header readers by message format."""
    basic = BasicHeaderReader()
    return {
        FORMAT_AMQP0: basic,
        FORMAT_BASIC_AMQP09: basic,
        FORMAT_CLASS_AMQP09: ClassHeaderReader(),
        FORMAT_AMQP1: Amqp10HeaderReader(),
    }


def maximum(limit: int) -> int:
    """Return a limit of a vhost as in `VhostSettings`, where 0 allows none and -1 is unlimited."""
    return {0: -1, -1: 0}.get(limit, limit)


def cluster_settings(config: Config, shard: int = 0, observed: Observed | None = None) -> ClusterSettings | None:
    """Return the place of the log of a shard in PostgreSQL, None if it is in the data directory.

    Args:
        config: The configuration.
        shard: The number of the shard.
        observed: The state of the shard, if it is known that it has no living owner.
    """
    dsn = config.storage.dsn
    if config.storage.dsn_file is not None:
        dsn = read_password(Path(config.storage.dsn_file), "storage.dsn_file", "the address of the database").decode()
    if dsn is None:
        return None
    cluster = config.cluster
    name = cluster.name or socket.gethostname()
    return ClusterSettings(
        dsn, name, cluster.lease, cluster.unreplicated, shard=shard, shards=cluster.shards, observed=observed
    )


def make_data_directory(path: Path) -> None:
    """Create the data directory with access for its owner only, unless it exists. Raises `StorageFailed`."""
    try:
        disk.make_directories(path)
        disk.sync_to_root(path)
    except OSError as error:
        raise StorageFailed(
            f"cannot create data directory {path}: {error.strerror}; choose another one with"
            " --data-dir or 'server.data_dir'"
        ) from None


def make_tls(tls: TlsConfig) -> ServerTls | None:
    """Return the certificates of the TLS listener, or None without one. Raises `TlsError` or `ConfigError`."""
    settings = tls_settings(tls)
    if settings is None:
        return None
    try:
        return ServerTls(settings)
    except TlsError as error:
        raise TlsError(f"[tls]: {error}") from None


def tls_settings(tls: TlsConfig) -> TlsSettings | None:
    """Return the settings of `[tls]`, or None if it has no certificate."""
    return _tls_settings(tls, "tls", tls.verify)


def cluster_tls_settings(tls: ClusterTlsConfig) -> TlsSettings | None:
    """Return the settings of `[cluster.tls]`, or None if it has no certificate."""
    return _tls_settings(tls, "cluster.tls", "required")


def _tls_settings(tls: TlsConfig | ClusterTlsConfig, section: str, verify: str) -> TlsSettings | None:
    if tls.cert is None:
        return None
    password = None
    if tls.key_password_file is not None:
        password = read_password(Path(tls.key_password_file), f"{section}.key_password_file")
    return TlsSettings(
        Path(tls.cert),
        Path(tls.key) if tls.key else None,
        password,
        Path(tls.ca) if tls.ca else None,
        verify,
        tls.min_version,
    )


def _session_settings(config: Config) -> SessionSettings:
    settings = SessionSettings(
        frame_max=config.amqp.frame_max,
        channel_max=config.amqp.channel_max,
        heartbeat=config.amqp.heartbeat,
        max_message_size=config.amqp.max_message_size,
        spool_threshold=config.storage.body_spool_threshold,
        qos_spec=config.amqp.qos_global == "spec",
        strict=config.server.compat.strict,
    )
    _apply_limits(settings, config.limits)
    return settings


def _amqp09_settings(config: Amqp09Config) -> Amqp09Settings:
    return Amqp09Settings(
        known_hosts=",".join(config.known_hosts),
        redirect="" if config.redirect == OWNER else config.redirect,
        redirect_to_owner=config.redirect == OWNER,
        resume_timeout=config.resume_timeout,
        resume_channels=config.resume_channels,
    )


def _make_realms(realms: dict[str, RealmConfig]) -> Realms:
    """Return the realms of a vhost, with the rights of each user."""
    made: dict[str, Realm] = {}
    for name, realm in realms.items():
        rights: dict[str, set[str]] = {}
        for right in RIGHTS:
            for user in getattr(realm, right):
                rights.setdefault(user, set()).add(right)
        made[name] = Realm(name, realm.resources, {user: frozenset(granted) for user, granted in rights.items()})
    return Realms(made)


def _amqp10_settings(config: Amqp10Config, redirect: bool) -> Amqp10Settings:
    return Amqp10Settings(
        redirect=redirect,
        anonymous_user=config.anonymous_user,
        auto_create=config.auto_create,
        max_frame_size=config.max_frame_size,
        sessions=config.sessions,
        links=config.links,
        idle_timeout=config.idle_timeout,
        link_credit=config.link_credit,
        transaction_timeout=config.transaction_timeout,
        kept_links=config.kept_links,
        product=config.product,
        version=config.version,
        connection_links=config.connection_links,
        unsettled=config.unsettled,
    )


def _apply_limits(settings: SessionSettings, limits: LimitsConfig) -> None:
    """Apply the limits to new and existing sessions."""
    settings.max_transaction = limits.transaction_size
    settings.connections = limits.connections
    settings.connections_per_user = limits.connections_per_user
    settings.consumers_per_channel = limits.consumers_per_channel
    settings.unacked_per_channel = limits.unacked_per_channel


def _apply_routing_limits(broker: Broker, limits: LimitsConfig) -> None:
    broker.max_routing_keys = limits.routing_keys
    broker.max_routing_steps = limits.routing_steps
    broker.max_routing_queues = limits.routing_queues


# The memory limits of control groups (containers), version 2 and version 1.
_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_size(group_limits: tuple[Path, ...] = _GROUP_LIMITS) -> int:
    """Return the memory of the machine in bytes, or of the container if it has less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in group_limits:
        try:
            total = min(total, int(path.read_text()))
        except (OSError, ValueError):
            continue
    return total


def memory_limit(watermark: float) -> int:
    """Return `limits.memory_high_watermark` in bytes; up to 1, it is a fraction of the memory."""
    return int(watermark * memory_size()) if watermark <= 1 else int(watermark)
