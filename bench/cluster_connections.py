"""Many connections to a node, which all come back at once when a node is killed, and their memory in the front.

    python -m bench.cluster_connections owner --count 10000    clients of the owner, which is killed
    python -m bench.cluster_connections relay --count 9000     clients that another node relays; the owner is killed
    python -m bench.cluster_connections owner --max-delay 1    clients that wait a second at most before the next attempt

A front needs two file descriptors for each client that it relays.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from pamqp import commands, frame, header

from bench.cluster_cost import COMPILED
from bench.cluster_rig import Rig
from tests.support.polling import wait_until_async

START: Final = b"\x00\x0a\x00\x0a"
TUNE: Final = b"\x00\x0a\x00\x1e"
OPEN_OK: Final = b"\x00\x0a\x00\x29"
# The position of class and method in a frame.
METHOD: Final = slice(7, 11)
HEADER: Final = frame.marshal(header.ProtocolHeader(), 0)
START_OK: Final = frame.marshal(commands.Connection.StartOk(mechanism="PLAIN", response="\0guest\0guest"), 0)
OPEN: Final = frame.marshal(commands.Connection.TuneOk(2047, 131072, 0), 0) + frame.marshal(commands.Connection.Open(), 0)
# Maximum seconds before the next attempt after a failed one, twice as many after each.
RETRY_DELAY: Final = 0.5
TIMEOUT: Final = 150.0
# Connections that are opened at a time before the kill.
BATCH: Final = 500


class Clients:
    """Connections to the default vhost, each of which is opened again when it ends.

    Args:
        port: The port to connect to.
        max_delay: Maximum seconds before the next attempt.

    Attributes:
        port: The port to connect to.
        opened: The number of open connections.
        failures: How many connections have failed before they were open.
    """

    def __init__(self, port: int, max_delay: float) -> None:
        self.port = port
        self._max_delay = max_delay
        self.opened = 0
        self.failures = 0
        self._connecting: set[asyncio.Task[None]] = set()

    def connect(self, failures: int = 0) -> None:
        """Open a connection, after a while if some attempts have failed."""
        task = asyncio.get_running_loop().create_task(self._connect(failures))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, failures: int) -> None:
        if failures:
            self.failures += 1
            await asyncio.sleep(random.uniform(0.0, min(RETRY_DELAY * 2**failures, self._max_delay)))
        try:
            client = partial(Client, self, failures)
            await asyncio.get_running_loop().create_connection(client, "127.0.0.1", self.port)
        except OSError:
            self.connect(failures + 1)

    async def open(self, count: int) -> None:
        """Wait until this number of connections is open."""
        await wait_until_async(lambda: self.opened == count, lambda: f"{self.opened} of {count} are open", TIMEOUT)


class Client(asyncio.Protocol):
    """One connection. Its end opens another one."""

    def __init__(self, clients: Clients, failures: int) -> None:
        self._clients = clients
        self._failures = failures
        self._transport: asyncio.Transport
        self._is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(HEADER)

    def data_received(self, data: bytes) -> None:
        method = data[METHOD]
        if method == START:
            self._transport.write(START_OK)
        elif method == TUNE:
            self._transport.write(OPEN)
        elif method == OPEN_OK:
            self._is_open = True
            self._clients.opened += 1
        else:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_open:
            self._clients.opened -= 1
        self._clients.connect(0 if self._is_open else self._failures + 1)


def memory(pid: int) -> int:
    """Return the resident bytes of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS:"))) << 10


async def run(rig: Rig, kind: str, count: int, max_delay: float) -> None:
    owner = rig.owner(0)
    other = next(node for node in rig.nodes if node is not owner)
    node = owner if kind == "owner" else other
    pids = {"front": node.pid, "shard": rig.shard_in(owner, 0)[0]}
    before = {name: memory(pid) for name, pid in pids.items()}
    clients = Clients(node.port, max_delay)
    begun = time.monotonic()
    for first in range(0, count, BATCH):
        for _ in range(first, min(first + BATCH, count)):
            clients.connect()
        await clients.open(min(first + BATCH, count))
    print(f"{count} connections open after {time.monotonic() - begun:.1f} s, {clients.failures} failed attempts")
    for name, pid in pids.items():
        print(f"{name}: {(memory(pid) - before[name]) / count / 1024:.1f} KiB for each connection")
    clients.port = other.port
    clients.failures = 0
    killed = time.monotonic()
    await asyncio.to_thread(rig.kill, owner)
    await wait_until_async(lambda: clients.opened < count, "the end of a connection", TIMEOUT)
    await clients.open(count)
    print(f"after the kill: all open after {time.monotonic() - killed:.1f} s, {clients.failures} failed attempts")
    print(f"the other node: {memory(other.pid) >> 20} MiB; load {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster_connections", description=__doc__.split("\n", 1)[0])
    parser.add_argument("kind", choices=["owner", "relay"])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--max-delay", type=float, default=8.0)
    chosen = parser.parse_args()
    with ExitStack() as stack:
        rig = Rig(stack, count=2, settings=COMPILED)
        rig.start()
        asyncio.run(run(rig, chosen.kind, chosen.count, chosen.max_delay))


if __name__ == "__main__":
    main()
