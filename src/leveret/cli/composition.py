"""Puts a broker together from a configuration: log, users, broker, vhosts, services, server, management."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leveret import __version__, build_info
from leveret.broker.broker import Broker, VhostSettings
from leveret.broker.errors import PreconditionFailed, StorageFailed
from leveret.broker.log import Log
from leveret.broker.vhost import Vhost
from leveret.cli.machine import memory_limit
from leveret.config import Config, ConfigError, TlsConfig, VhostConfig
from leveret.management.admin import Admin
from leveret.management.vhosts import DEFAULT_VHOST, stored_vhosts
from leveret.protocols.services import Services, SessionSettings, VhostSessionSettings
from leveret.protocols.v0_9_1.content import make_header_reader
from leveret.security.declared import declared_users, read_password
from leveret.security.tls import ServerTls, TlsSettings
from leveret.security.users import UserStore
from leveret.server.server import Server
from leveret.server.watch import resident_octets
from leveret.storage.registry import make_logs

log = logging.getLogger("leveret.serve")


class Composition:
    """A broker that is recovered and ready to start.

    config_name  what to call the configuration in messages: its file
    listeners    the addresses that it listens on, as URLs, once it does
    """

    def __init__(self, config: Config, config_name: str, on_failure: Callable[[], None]) -> None:
        self.config = config
        self.config_name = config_name
        self.listeners: list[str] = []
        self.tls = make_tls(config.tls)
        # Everything that may refuse the configuration comes before the store is opened.
        declared = declared_users(config.users)
        users = UserStore(self._put, loopback_users=config.auth.loopback_users, declared_in=config_name)
        try:
            users.declare(declared)
        except PreconditionFailed as error:
            raise ConfigError(f"{config_name}: {error}") from None
        self.users = users
        self.log, self.overflow = _make_logs(config)
        recovery = self.log.open()
        if self.overflow is not None:
            self.overflow.open()
        users.load(recovery.metadata)
        self.broker = Broker(self.log, self.overflow)
        self.broker.header_readers.update([make_header_reader()])
        self.services = Services(
            self.broker, users, _session_settings(config), mechanisms=list(config.auth.mechanisms),
            anonymous_user=config.auth.anonymous_user, external_name=config.auth.external_name,
            server_properties={"version": __version__},
        )
        self.vhost_settings = stored_vhosts(recovery.metadata)
        self.broker.recover(recovery)
        for name, vhost in {DEFAULT_VHOST: VhostConfig(), **self.vhost_settings, **config.vhosts}.items():
            self.apply_vhost(name, vhost)
        for user in users.users():
            for name in user.permissions.keys() - self.broker.vhosts.keys():
                log.warning("user '%s' has permissions in vhost '%s', which does not exist", user.name, name)
        self.server = Server(
            self.services, handshake_timeout=config.server.handshake_timeout,
            shutdown_timeout=config.server.shutdown_timeout,
            memory_limit=memory_limit(config.limits.memory_high_watermark), disk_free=config.limits.disk_free,
            data_path=config.server.data_path, on_failure=on_failure,
        )
        self.admin = Admin(
            self.broker, users, sessions=lambda: self.services.sessions, config=config, config_name=config_name,
            apply_vhost=self.apply_vhost, facts=self.facts, alarm=lambda: self.services.alarm,
            executor=self.server.executor, vhost_settings=self.vhost_settings,
        )
        self._started = time.monotonic()

    def _put(self, kind: str, key: str, value: bytes | None) -> None:
        self.log.put(kind, key, value)

    def apply_vhost(self, name: str, vhost: VhostConfig) -> Vhost:
        """Create a vhost, or give an existing one new settings; connections of now keep the old ones."""
        queues = vhost.limits.max_queues or self.config.limits.queues_per_vhost or -1
        settings = VhostSettings(vhost.compat.strict, queues, vhost.limits.max_connections or -1)
        qos_spec = None if vhost.qos_global is None else vhost.qos_global == "spec"
        self.services.vhost_settings[name] = VhostSessionSettings(qos_spec, round(vhost.consumer_timeout * 1000))
        return self.broker.add_vhost(name, settings)

    def facts(self) -> dict[str, Any]:
        """What `leveret status` says of the process."""
        return {
            "version": __version__,
            "build": str(build_info()),
            "pid": os.getpid(),
            "uptime": round(time.monotonic() - self._started, 3),
            "listeners": list(self.listeners),
            "data_dir": str(self.config.server.data_path),
            "config": self.config_name,
            "engine": self.config.storage.engine,
            "memory": resident_octets(),
            "memory_limit": self.server.watch.memory_limit,
        }


def _make_logs(config: Config) -> tuple[Log, Log | None]:
    """The log of what is durable, and the one that deep queues page to; the latter is empty at every start."""
    path = config.server.data_path
    storage = config.storage
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageFailed(f"the data directory {path} cannot be made: {error.strerror}; choose another by"
                            " --data-dir or server.data_dir") from None
    return make_logs(storage.engine, path, synchronous=storage.synchronous.upper(), reserve=storage.reserve)


def make_tls(tls: TlsConfig) -> ServerTls | None:
    """What the TLS listener needs, None without one. Raises `TlsError` or `ConfigError`."""
    settings = tls_settings(tls)
    return ServerTls(settings) if settings is not None else None


def tls_settings(tls: TlsConfig) -> TlsSettings | None:
    """The files of `[tls]`."""
    if tls.cert is None:
        return None
    password = None
    if tls.key_password_file is not None:
        password = read_password(Path(tls.key_password_file), "tls.key_password_file")
    return TlsSettings(Path(tls.cert), Path(tls.key) if tls.key else None, password, Path(tls.ca) if tls.ca else None,
                       tls.verify, tls.min_version)


def _session_settings(config: Config) -> SessionSettings:
    return SessionSettings(
        frame_max=config.amqp.frame_max, channel_max=config.amqp.channel_max, heartbeat=config.amqp.heartbeat,
        max_message_size=config.amqp.max_message_size, spool_threshold=config.storage.body_spool_threshold,
        max_transaction=config.limits.transaction_size, qos_spec=config.amqp.qos_global == "spec",
        connections=config.limits.connections, connections_per_user=config.limits.connections_per_user,
        consumers_per_channel=config.limits.consumers_per_channel,
        unacked_per_channel=config.limits.unacked_per_channel,
    )
