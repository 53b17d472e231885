"""A front and its shards on the event loop of the test: brokers in memory, with the control sockets of real ones."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from leveret.broker.errors import StorageFailed
from leveret.cluster.control import FrontControl, ShardControl
from leveret.cluster.streams import Streams, open_control
from leveret.config import VhostConfig
from leveret.management import control_client
from leveret.management.control_client import CallFailed
from leveret.management.operations.shards import READY
from leveret.management.socket_path import CONTROL_SOCKET, short_path
from tests.management.harness import FakeSession, Harness
from tests.support.polling import DEADLINE

T = TypeVar("T")


@dataclass(eq=False)
class FakeShard:
    """A shard in the test's process."""

    number: int
    control: Path
    pid: int
    state: str = READY
    vhosts: dict[str, None] = field(default_factory=dict)
    connections: int = 0
    restarts: int = 0
    node: str = ""
    hangs: int = 0
    epoch: int = 0
    takeovers: int = 0
    takeover_age: float | None = None
    takeover_seconds: float | None = None
    users: Counter[str] = field(default_factory=Counter)

    def connections_of(self, user: str) -> int:
        return self.users[user]

    async def open_control(self) -> Streams:
        return await open_control(self.control)


class FakeShards:
    """Shards whose vhosts are looked up in their brokers."""

    def __init__(self, shards: list[FakeShard]) -> None:
        self.all = self.used = shards
        self.is_draining = False
        self.is_isolated = False
        self.waits = 0
        self.prepared: list[str] = []
        self.failing: set[str] = set()
        self.vhost_removed: Callable[[str], None] = lambda name: None

    def cluster_status(self) -> msgspec.UnsetType:
        return msgspec.UNSET

    def nodes(self) -> msgspec.UnsetType:
        return msgspec.UNSET

    def of_vhost(self, name: str) -> FakeShard | None:
        return next((shard for shard in self.all if name in shard.vhosts), None)

    def of_connection(self, number: int) -> FakeShard:
        return self.all[(number - 1) % len(self.all)]

    async def prepare(self, name: str, number: int | None) -> None:
        """Fail for the vhosts in `failing`."""
        self.prepared.append(name)
        if name in self.failing:
            raise StorageFailed("shard 7 does not start")

    async def applied(self) -> None:
        self.waits += 1

    def note_vhost(self, shard: Any, name: str, *, exists: bool) -> None:
        if exists:
            shard.vhosts[name] = None
        else:
            del shard.vhosts[name]
            self.vhost_removed(name)


class Cluster:
    """A front with shards, whose loop runs in a thread. All share the front's users and global parameters.

    The first shard has the vhost `/`, the second one the vhost `b`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.loop = asyncio.new_event_loop()
        self.front = Harness(loop=self.loop)
        self.front.broker.vhosts.clear()
        self.harnesses = [Harness(loop=self.loop) for _ in range(2)]
        self.harnesses[1].apply_vhost("b", VhostConfig())
        del self.harnesses[1].broker.vhosts["/"]
        for harness in self.harnesses:
            harness.managed.users = harness.users = self.front.users
            harness.managed.roles = self.front.managed.roles
        shards = [FakeShard(number, directory / f"{number}.sock", 1000 + number) for number in range(2)]
        for shard, harness in zip(shards, self.harnesses, strict=True):
            shard.vhosts.update(dict.fromkeys(harness.broker.vhosts))
        self.shards = FakeShards(shards)
        self.controls = [
            ShardControl(harness.admin, shard.control) for harness, shard in zip(self.harnesses, shards, strict=True)
        ]
        self.shards.vhost_removed = self.front.users.forget_vhost
        self.control = FrontControl(self.front.admin, self.shards, directory / CONTROL_SOCKET)  # type: ignore[arg-type]
        for control in (*self.controls, self.control):
            self.loop.run_until_complete(control.start())
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE)

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Return the result of an operation on the front's control socket."""
        return control_client.call(self.directory, name, arguments)

    def refusal(self, name: str, /, **arguments: Any) -> tuple[str, str]:
        """Return the condition and the text of the error of an operation."""
        try:
            result = self.call(name, **arguments)
        except CallFailed as error:
            return error.condition, str(error)
        raise AssertionError(f"not refused: {result}")

    def exchange(self, request: bytes) -> bytes:
        """Send a line to the front, and return the line of the reply."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(DEADLINE)
            with short_path(self.directory / CONTROL_SOCKET) as name:
                client.connect(name)
            client.sendall(request)
            with client.makefile("rb") as lines:
                return lines.readline()

    def end(self, number: int) -> None:
        """End the control socket of a shard, as its death does."""
        self.run(self.controls[number].stop())

    def connect(self, number: int, user: str) -> FakeSession:
        """Add a connection to a shard."""
        harness = self.harnesses[number]
        session = FakeSession(number + 1 + 2 * len(harness.sessions), user, "/b"[number])
        harness.sessions.append(session)
        self.shards.all[number].users[user] += 1
        return session

    def close(self) -> None:
        for control in (*self.controls, self.control):
            self.run(control.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
