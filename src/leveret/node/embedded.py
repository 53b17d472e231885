"""`leveret.Broker`, a broker embedded in a program, on its event loop or in a thread.

It does not change process-wide state: no signal handlers, logging configuration, or garbage collector and interpreter
settings. It ignores environment variables. Log records go to loggers under `leveret`; those of the HTTP server under
`uvicorn`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import msgspec

from leveret.config import Config, ConfigError, UserConfig, combine_config
from leveret.config.values import Setting
from leveret.node.choices import CHOICES
from leveret.node.errors import CallRefused
from leveret.node.running import Node
from leveret.node.threaded import Threaded
from leveret.security.tags import ADMINISTRATOR
from leveret.storage.registry import MEMORY, SQLITE
from leveret.storage.salvage import Salvage

# The user of a broker without configured users.
OWNER = "guest"
OWNER_PASSWORD = "guest"
# Defaults that differ from `leveret serve`: free ports, a short wait for clients on shutdown, no HTTP API, and no memory
# alarm, because the broker shares the process's memory with the program.
_DEFAULTS: Mapping[str, Setting] = {
    "server": {"host": "127.0.0.1", "port": 0, "shutdown_timeout": 0.2},
    "tls": {"port": 0},
    "limits": {"memory_high_watermark": 0},
    "management": {"enabled": False, "port": 0, "metrics_port": 0},
}
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
_NOWHERE = Path("/nowhere")


class Broker:
    """A broker inside this process.

    `async with Broker() as broker` runs it on the current event loop and returns an `AsyncBroker`. `with Broker() as
    broker` runs it in a thread with its own event loop and returns a `SyncBroker`. It can run again after it has
    stopped.

    If the configuration has no users, the broker adds the user `guest` with the password `guest` and all permissions in
    every vhost.

    Args:
        host: The address to listen on. Default: the configured address, or 127.0.0.1.
        port: The port to listen on. Default: the configured port, or a free one.
        data_dir: The data directory. Without one, here or in the configuration, everything is in memory.
        config: Additional configuration: a table with the structure of the TOML file, or the path of a file.
        accept_missing: Start even if files are missing from the data directory; their contents are lost.
        drop_damaged: Start even if parts of the store are damaged; the broker drops them and logs what they contained.

    Raises:
        ConfigError: The configuration is invalid.
        StartFailed: On entry: the port is taken, or the data directory is in use or cannot be opened.
    """

    def __init__(
        self,
        *,
        host: str | None = None,
        port: int | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, Setting] | str | os.PathLike[str] | None = None,
        accept_missing: bool = False,
        drop_damaged: bool = False,
    ) -> None:
        self._salvage = Salvage(accept_missing, drop_damaged)
        self._config, self._config_name, self._owner = _combine(host, port, data_dir, config)
        self._entered = False
        self._running: AsyncBroker | SyncBroker | None = None

    async def __aenter__(self) -> AsyncBroker:
        node = self._node()
        try:
            await node.start()
        except BaseException:
            self._entered = False
            raise
        running = AsyncBroker(node)
        self._running = running
        return running

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running, self._running = self._running, None
        assert isinstance(running, AsyncBroker)
        try:
            await running.stop()
        finally:
            self._entered = False

    def __enter__(self) -> SyncBroker:
        node = self._node()
        try:
            thread = Threaded(node)
        except BaseException:
            self._entered = False
            raise
        running = SyncBroker(node, thread)
        self._running = running
        return running

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        running, self._running = self._running, None
        assert isinstance(running, SyncBroker)
        try:
            running.stop()
        finally:
            self._entered = False

    def _node(self) -> Node:
        if self._entered:
            raise RuntimeError("this broker is already running; create another leveret.Broker to run a second one")
        self._entered = True
        return Node(self._config, self._config_name, self._owner, self._salvage)


class RunningBroker:
    """A running broker.

    Attributes:
        host: The address of its first listener.
        port: The port of its first listener.
        url: The URL of the vhost `/`, with the credentials of `guest`, or of the first configured user with a plain text
            password.
        data_dir: The data directory, or None if everything is in memory.
        management_url: The address of the HTTP API and the console, or None if `management.enabled` is not set.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.management_url = node.http_listeners[0] if node.http_listeners else None
        config = node.config
        scheme, _, address = node.listeners[0].partition("://")
        host, _, port = address.rpartition(":")
        self._base = f"{scheme}://{_credentials(config)}{_WILDCARDS.get(host, host)}:{port}/"
        self.host = host.strip("[]")
        self.port = int(port)
        self.url = self._base
        self.data_dir = None if config.storage.engine == MEMORY else config.server.data_path

    def url_of(self, vhost: str) -> str:
        """Return the URL of a vhost, which need not exist."""
        return self._base + quote(vhost, safe="") if vhost != "/" else self.url


class AsyncBroker(RunningBroker):
    """A running broker on the caller's event loop. It stops at the end of the `async with` block, or on `stop`."""

    async def create_vhost(self, name: str) -> str:
        """Create a vhost and return its URL. Raises `CallRefused` if it exists."""
        await self._node.call("vhosts.add", name=name)
        return self.url_of(name)

    async def delete_vhost(self, name: str) -> None:
        """Delete a vhost with everything in it, and close its connections.

        Raises:
            CallRefused: The vhost does not exist, is `/`, or is defined in the configuration.
        """
        await self._node.call("vhosts.delete", name=name)

    async def add_user(
        self,
        name: str,
        password: str,
        *,
        vhosts: Iterable[str] = ("/",),
        configure: str = ".*",
        write: str = ".*",
        read: str = ".*",
        tags: Iterable[str] = (),
    ) -> None:
        """Add a user with permissions in each of the vhosts. Permissions are regular expressions for names.

        Raises:
            CallRefused: The user exists, a vhost does not exist, or an expression is invalid. The user is not added.
        """
        await _add_user(self._node, name, password, list(vhosts), (configure, write, read), list(tags))

    async def stop(self) -> None:
        """Close the listeners, the connections and the store. A second call does nothing."""
        await self._node.stop()


class SyncBroker(RunningBroker):
    """A running broker in a thread. Its methods may be called from any other thread.

    It stops at the end of the `with` block, on `stop`, or with the process.
    """

    def __init__(self, node: Node, thread: Threaded) -> None:
        super().__init__(node)
        self._thread = thread

    def create_vhost(self, name: str) -> str:
        """Create a vhost and return its URL. Raises `CallRefused` if it exists."""
        self._thread.run(self._node.call("vhosts.add", name=name))
        return self.url_of(name)

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost with everything in it, and close its connections.

        Raises:
            CallRefused: The vhost does not exist, is `/`, or is defined in the configuration.
        """
        self._thread.run(self._node.call("vhosts.delete", name=name))

    def add_user(
        self,
        name: str,
        password: str,
        *,
        vhosts: Iterable[str] = ("/",),
        configure: str = ".*",
        write: str = ".*",
        read: str = ".*",
        tags: Iterable[str] = (),
    ) -> None:
        """Add a user with permissions in each of the vhosts. Permissions are regular expressions for names.

        Raises:
            CallRefused: The user exists, a vhost does not exist, or an expression is invalid. The user is not added.
        """
        self._thread.run(_add_user(self._node, name, password, list(vhosts), (configure, write, read), list(tags)))

    def stop(self) -> None:
        """Close the listeners, the connections and the store, and end the thread. A second call does nothing."""
        self._thread.stop()


async def _add_user(
    node: Node, name: str, password: str, vhosts: list[str], permissions: tuple[str, str, str], tags: list[str]
) -> None:
    configure, write, read = permissions
    await node.call("users.add", name=name, password=password, tags=tags)
    try:
        for vhost in vhosts:
            await node.call("permissions.set", user=name, vhost=vhost, configure=configure, write=write, read=read)
    except CallRefused:
        await node.call("users.delete", name=name)
        raise


def _combine(
    host: str | None,
    port: int | None,
    data_dir: str | os.PathLike[str] | None,
    config: Mapping[str, Setting] | str | os.PathLike[str] | None,
) -> tuple[Config, str, str]:
    """Return the configuration, its name in messages, and the user with all permissions."""
    given = {"host": host, "port": port, "data_dir": data_dir}
    arguments = ("argument", {"server": {key: value for key, value in given.items() if value is not None}})
    layer = config if isinstance(config, Mapping) else Path(config) if config is not None else {}
    name = str(layer) if isinstance(layer, Path) else "config"
    # Detect a missing data directory, because the default of `leveret serve` must not apply here.
    probe = combine_config(("default", {"server": {"data_dir": _NOWHERE}}), (name, layer), arguments, choices=CHOICES)
    engine = MEMORY if probe.server.data_path == _NOWHERE else SQLITE
    defaults = ("default", {**_DEFAULTS, "storage": {"engine": engine}})
    combined = combine_config(defaults, (name, layer), arguments, choices=CHOICES)
    if engine == MEMORY and combined.storage.engine != MEMORY:
        raise ConfigError(
            f"{name}: 'storage.engine' is '{combined.storage.engine}', which requires a data directory; set data_dir too"
        )
    if combined.cluster.shards != 1:
        raise ConfigError(
            f"{name}: 'cluster.shards' is {combined.cluster.shards}; expected 1, because an embedded broker is one process"
        )
    if combined.users:
        return combined, name, ""
    owner = UserConfig(password=OWNER_PASSWORD, tags=[ADMINISTRATOR])
    return msgspec.structs.replace(combined, users={OWNER: owner}), name, OWNER


def _credentials(config: Config) -> str:
    for name, user in config.users.items():
        if user.password is not None:
            return f"{quote(name, safe='')}:{quote(user.password, safe='')}@"
    return ""
