"""`leveret.Broker`: a broker inside a program, on its event loop or in a thread.

Nothing of the process changes: no signal handlers, no logging, no settings of the garbage collector or the interpreter.
The environment is not read. Log lines go to the loggers under `leveret`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import msgspec

from leveret.config import Config, ConfigError, UserConfig, combine_config
from leveret.node.composition import MEMORY
from leveret.node.errors import CallRefused
from leveret.node.running import Node
from leveret.node.threaded import Threaded
from leveret.security.users import ADMINISTRATOR
from leveret.storage.salvage import Salvage

# The user of a broker whose configuration names none.
OWNER = "guest"
OWNER_PASSWORD = "guest"
# What differs from `leveret serve` where the configuration does not say otherwise: any free ports, no wait for clients
# that do not answer at the end, no alarm by the memory of a process whose memory is not the broker's.
_DEFAULTS: Mapping[str, Any] = {
    "server": {"host": "127.0.0.1", "port": 0, "shutdown_timeout": 0.2},
    "tls": {"port": 0},
    "limits": {"memory_high_watermark": 0},
}
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
_NOWHERE = Path("/nowhere")


class Broker:
    """A broker to run inside this process.

    host      address to listen on; 127.0.0.1 where the configuration does not name one
    port      port to listen on; a free one where the configuration does not name one
    data_dir  where messages live. Without one, here or in the configuration, everything is in memory, and the disk is
              not touched
    config    further configuration: a table of the structure of the TOML file, or the path of such a file
    accept_missing  start although files of the data directory are missing, and lose what was in them
    drop_damaged    start although parts of the store are damaged: log what they held, and drop them

    `async with Broker() as broker` runs it on the running event loop and gives an `AsyncBroker`; `with Broker() as broker`
    runs it in a thread with an event loop of its own and gives a `BlockingBroker`. It can be run any number of times, one
    after the other.

    Without users in the configuration there is `guest` with the password `guest`, who may do everything in every vhost.

    Raises `ConfigError` for a configuration that cannot be used; entering it raises `StartFailed` where the port is taken,
    or the data directory is in use or cannot be opened.
    """

    def __init__(self, *, host: str | None = None, port: int | None = None, data_dir: str | os.PathLike[str] | None = None,
                 config: Mapping[str, Any] | str | os.PathLike[str] | None = None, accept_missing: bool = False,
                 drop_damaged: bool = False) -> None:
        self._salvage = Salvage(accept_missing, drop_damaged)
        self._config, self._config_name, self._owner = _combine(host, port, data_dir, config)
        self._entered = False
        self._running: AsyncBroker | BlockingBroker | None = None

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

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        running, self._running = self._running, None
        assert isinstance(running, AsyncBroker)
        try:
            await running.stop()
        finally:
            self._entered = False

    def __enter__(self) -> BlockingBroker:
        node = self._node()
        try:
            thread = Threaded(node)
        except BaseException:
            self._entered = False
            raise
        running = BlockingBroker(node, thread)
        self._running = running
        return running

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        running, self._running = self._running, None
        assert isinstance(running, BlockingBroker)
        try:
            running.stop()
        finally:
            self._entered = False

    def _node(self) -> Node:
        if self._entered:
            raise RuntimeError("this broker runs already; another one is another leveret.Broker")
        self._entered = True
        return Node(self._config, self._config_name, self._owner, self._salvage)


class RunningBroker:
    """Where a running broker is.

    host, port  of its first listener
    url         to connect to the vhost `/`, with the name and password of `guest` or of the first user of the
                configuration whose password stands there in clear
    data_dir    None where everything is in memory
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        config = node.config
        scheme, _, address = node.listeners[0].partition("://")
        host, _, port = address.rpartition(":")
        self._base = f"{scheme}://{_credentials(config)}{_WILDCARDS.get(host, host)}:{port}/"
        self.host = host.strip("[]")
        self.port = int(port)
        self.url = self._base
        self.data_dir = None if config.storage.engine == MEMORY else config.server.data_path

    def url_of(self, vhost: str) -> str:
        """The URL of a vhost, whether or not it exists."""
        return self._base + quote(vhost, safe="") if vhost != "/" else self.url


class AsyncBroker(RunningBroker):
    """A broker that runs on the event loop of the caller. It ends with its `async with`, or by `stop`."""

    async def create_vhost(self, name: str) -> str:
        """Create a vhost and return its URL. `CallRefused` where it exists."""
        await self._node.call("vhosts.add", name=name)
        return self.url_of(name)

    async def delete_vhost(self, name: str) -> None:
        """Delete a vhost with everything in it, and close its connections. `CallRefused` where there is none, for `/`, and
        for those of the configuration."""
        await self._node.call("vhosts.delete", name=name)

    async def add_user(self, name: str, password: str, *, vhosts: Iterable[str] = ("/",), configure: str = ".*",
                       write: str = ".*", read: str = ".*", tags: Iterable[str] = ()) -> None:
        """Add a user with these permissions, regular expressions over names, in each of the vhosts.

        `CallRefused` where the user exists, a vhost does not, or an expression cannot be used; then there is no such user.
        """
        await _add_user(self._node, name, password, list(vhosts), (configure, write, read), list(tags))

    async def stop(self) -> None:
        """Close the listeners, the connections and the store. A second call does nothing."""
        await self._node.stop()


class BlockingBroker(RunningBroker):
    """A broker that runs in a thread. Its methods may be called from any other one. It ends with its `with`, by `stop`, or
    with the process."""

    def __init__(self, node: Node, thread: Threaded) -> None:
        super().__init__(node)
        self._thread = thread

    def create_vhost(self, name: str) -> str:
        """Create a vhost and return its URL. `CallRefused` where it exists."""
        self._thread.run(self._node.call("vhosts.add", name=name))
        return self.url_of(name)

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost with everything in it, and close its connections. `CallRefused` where there is none, for `/`, and
        for those of the configuration."""
        self._thread.run(self._node.call("vhosts.delete", name=name))

    def add_user(self, name: str, password: str, *, vhosts: Iterable[str] = ("/",), configure: str = ".*",
                 write: str = ".*", read: str = ".*", tags: Iterable[str] = ()) -> None:
        """Add a user with these permissions, regular expressions over names, in each of the vhosts.

        `CallRefused` where the user exists, a vhost does not, or an expression cannot be used; then there is no such user.
        """
        self._thread.run(_add_user(self._node, name, password, list(vhosts), (configure, write, read), list(tags)))

    def stop(self) -> None:
        """Close the listeners, the connections and the store, and end the thread. A second call does nothing."""
        self._thread.stop()


async def _add_user(node: Node, name: str, password: str, vhosts: list[str], permissions: tuple[str, str, str],
                    tags: list[str]) -> None:
    configure, write, read = permissions
    await node.call("users.add", name=name, password=password, tags=tags)
    try:
        for vhost in vhosts:
            await node.call("permissions.set", user=name, vhost=vhost, configure=configure, write=write, read=read)
    except CallRefused:
        await node.call("users.delete", name=name)
        raise


def _combine(host: str | None, port: int | None, data_dir: str | os.PathLike[str] | None,
             config: Mapping[str, Any] | str | os.PathLike[str] | None) -> tuple[Config, str, str]:
    """The configuration, what to call it, and the owner."""
    given = {"host": host, "port": port, "data_dir": data_dir}
    arguments = ("argument", {"server": {key: value for key, value in given.items() if value is not None}})
    layer = config if isinstance(config, Mapping) else Path(config) if config is not None else {}
    name = str(layer) if isinstance(layer, Path) else "config"
    # The directory of `leveret serve` is not taken by accident.
    probe = combine_config(("default", {"server": {"data_dir": _NOWHERE}}), (name, layer), arguments)
    engine = MEMORY if probe.server.data_path == _NOWHERE else "sqlite"
    combined = combine_config(("default", {**_DEFAULTS, "storage": {"engine": engine}}), (name, layer), arguments)
    if engine == MEMORY and combined.storage.engine != MEMORY:
        raise ConfigError(f"{name}: storage.engine: '{combined.storage.engine}' needs a directory; expected data_dir too")
    if combined.users:
        return combined, name, ""
    owner = UserConfig(password=OWNER_PASSWORD, tags=[ADMINISTRATOR])
    return msgspec.structs.replace(combined, users={OWNER: owner}), name, OWNER


def _credentials(config: Config) -> str:
    for name, user in config.users.items():
        if user.password is not None:
            return f"{quote(name, safe='')}:{quote(user.password, safe='')}@"
    return ""
