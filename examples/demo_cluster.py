"""Cluster demo: confirmed messages survive the death of a node and of the primary of PostgreSQL.

The demo starts PostgreSQL with a synchronous standby and three nodes on loopback. Clients publish to three vhosts through
all nodes. It kills the node that owns one of the vhosts, with all its processes, then the primary, and promotes the
standby. Finally it compares the queues with the confirmed messages. It needs PostgreSQL 15 or later on this machine.

    make cluster-demo
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import leveret  # noqa: E402
from leveret.client.errors import Error  # noqa: E402
from tests.support.broker import free_port  # noqa: E402
from tests.support.postgres import PostgresServer, obstacle  # noqa: E402

NODES = ("one", "two", "three")
VHOSTS = ("orders", "shop", "logs")
QUEUE = "demo"
# Seconds of publishing before and after each death, and for everything to work again.
SECONDS = 3.0
TIMEOUT = 60.0
START_TIMEOUT = 30.0

CONFIG = "\n".join(
    [
        *(f"[vhosts.{vhost}]" for vhost in VHOSTS),
        "[users.demo]",
        'password = "demo"',
        *(f'permissions.{vhost} = {{ configure = ".*", write = ".*", read = ".*" }}' for vhost in VHOSTS),
    ]
)

console = Console(highlight=False)


class Node:
    """A node: a `leveret serve` process, and the processes of its shards."""

    def __init__(self, name: str, directory: Path, dsn: str) -> None:
        self.name = name
        self.directory = directory / name
        self.directory.mkdir()
        self.port = free_port()
        config = self.directory / "leveret.toml"
        config.write_text(CONFIG)
        settings = {
            "storage.engine": "postgresql",
            "storage.dsn": dsn,
            "cluster.shards": "4",
            "cluster.name": name,
            # After the death of the primary, there is no second server.
            "cluster.unreplicated": "true",
            "management.enabled": "false",
        }
        self._command = [sys.executable, "-P", "-m", "leveret", "serve", "--config", str(config)]
        self._command += ["--host", "127.0.0.1", "--port", str(self.port), "--data-dir", str(self.directory / "data")]
        self._command += ["--ready-file", str(self.directory / "ready.json")]
        for key, value in settings.items():
            self._command += ["--set", f"{key}={value}"]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the node and wait until it accepts clients."""
        with (self.directory / "node.log").open("ab") as log:
            # A session of its own, so that `kill` hits all of its processes.
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=_environment(), start_new_session=True
            )
        deadline = time.monotonic() + START_TIMEOUT
        while not (self.directory / "ready.json").exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"node {self.name} did not start:\n{(self.directory / 'node.log').read_text()}")
            time.sleep(0.01)

    def command(self, *arguments: str) -> str:
        """Return the output of a command that is run at this node."""
        command = [sys.executable, "-P", "-m", "leveret", *arguments, "--data-dir", str(self.directory / "data")]
        return subprocess.run(command, env=_environment(), capture_output=True, text=True, check=True).stdout

    def url(self, vhost: str) -> str:
        return f"amqp://demo:demo@127.0.0.1:{self.port}/{vhost}"

    def kill(self) -> None:
        """Send SIGKILL to all processes of the node."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "src")}


class Publisher(threading.Thread):
    """Publishes numbered messages to a vhost, one after another, first through one node, then through any that lives."""

    def __init__(self, vhost: str, nodes: list[Node]) -> None:
        super().__init__(daemon=True)
        self.vhost = vhost
        self.name = f"{vhost} through {nodes[0].name}"
        self.confirmed: list[str] = []
        # When the last message was confirmed, and the longest time between two confirms so far.
        self.last = time.monotonic()
        self.gap = 0.0
        self.ended = threading.Event()
        self._urls = [node.url(vhost) for node in nodes]

    def run(self) -> None:
        number = 0
        with (
            leveret.sync.connect(self._urls, reconnect_delay=0.05, reconnect_max_delay=0.2) as connection,
            connection.channel() as channel,
        ):
            channel.declare_queue(QUEUE, durable=True)
            self.last = time.monotonic()
            while not self.ended.is_set():
                number += 1
                body = f"{self.name} {number}"
                try:
                    channel.publish(body, QUEUE, persistent=True)
                except Error:
                    continue  # not confirmed, so that it may be lost
                now = time.monotonic()
                self.gap = max(self.gap, now - self.last)
                self.last = now
                self.confirmed.append(body)


@contextmanager
def servers() -> Iterator[tuple[PostgresServer, PostgresServer, str]]:
    """Run PostgreSQL with a synchronous standby. Yields both, and the address of a database on whichever is the primary."""
    primary = PostgresServer().create().start()
    standby = PostgresServer()
    try:
        database = primary.database().rpartition("/")[2]
        standby.clone(primary, "standby").start()
        primary.reload(synchronous_standby_names="standby")
        hosts = f"{primary.host}:{primary.port},{standby.host}:{standby.port}"
        yield primary, standby, f"postgresql://leveret@{hosts}/{database}?target_session_attrs=read-write"
    finally:
        standby.remove()
        primary.remove()


def wait_for_confirms(publishers: list[Publisher], since: float) -> None:
    """Wait until each publisher has got a confirm after a moment."""
    deadline = time.monotonic() + TIMEOUT
    while any(publisher.last < since for publisher in publishers):
        if time.monotonic() > deadline:
            late = ", ".join(publisher.name for publisher in publishers if publisher.last < since)
            raise SystemExit(f"no confirm within {TIMEOUT:g} s: {late}")
        time.sleep(0.05)


def drained(node: Node, vhost: str) -> Counter[str]:
    """Return the messages of a vhost and how often each is there."""
    found: Counter[str] = Counter()
    with leveret.sync.connect(node.url(vhost)) as connection, connection.channel() as channel:
        while (message := channel.get(QUEUE, no_ack=True)) is not None:
            found[message.text()] += 1
    return found


def main() -> int:
    if missing := obstacle():
        raise SystemExit(f"the demo needs PostgreSQL: {missing} (Debian: apt install postgresql)")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leveret-cluster-")))
        console.print("Starting PostgreSQL with a synchronous standby, and three nodes")
        primary, standby, dsn = stack.enter_context(servers())
        nodes = [Node(name, directory, dsn) for name in NODES]
        for node in nodes:
            stack.callback(node.stop)
            node.start()
        turned = [[*nodes[index:], *nodes[:index]] for index in range(len(nodes))]
        publishers = [Publisher(vhost, order) for vhost in VHOSTS for order in turned]
        for publisher in publishers:
            publisher.start()
        began = time.monotonic()
        wait_for_confirms(publishers, began)
        console.print(nodes[0].command("shards").rstrip(), style="dim")
        time.sleep(SECONDS)

        owner_name = next(
            shard["node"] for shard in json.loads(nodes[0].command("shards", "--json")) if VHOSTS[0] in shard["vhosts"]
        )
        owner = next(node for node in nodes if node.name == owner_name)
        survivors = [node for node in nodes if node is not owner]
        for publisher in publishers:
            publisher.gap = 0.0
        console.print(f"Killing node {owner.name}, which owns the vhost '{VHOSTS[0]}'")
        owner.kill()
        wait_for_confirms(publishers, time.monotonic())
        after_kill = max(publisher.gap for publisher in publishers)
        console.print(survivors[0].command("shards").rstrip(), style="dim")
        time.sleep(SECONDS)

        for publisher in publishers:
            publisher.gap = 0.0
        console.print("Killing the primary of PostgreSQL, and promoting the standby")
        primary.crash()
        standby.promote()
        wait_for_confirms(publishers, time.monotonic())
        after_promotion = max(publisher.gap for publisher in publishers)
        time.sleep(SECONDS)

        for publisher in publishers:
            publisher.ended.set()
        for publisher in publishers:
            publisher.join(TIMEOUT)
        table = Table("vhost", "confirmed", "found", "lost", "more than once")
        lost_any = False
        for vhost in VHOSTS:
            confirmed = {body for publisher in publishers if publisher.vhost == vhost for body in publisher.confirmed}
            found = drained(survivors[0], vhost)
            lost = confirmed - found.keys()
            lost_any = lost_any or bool(lost)
            # A message whose confirm was lost with its connection is published again.
            repeated = sum(count > 1 for count in found.values())
            table.add_row(vhost, *(f"{count:,}" for count in (len(confirmed), found.total(), len(lost), repeated)))
        console.print(table)
        console.print(f"Longest time between two confirms: {after_kill:.2f} s at the death of the node,")
        console.print(f"{after_promotion:.2f} s at the death of the primary, with its promotion at once.")
        return 1 if lost_any else 0


if __name__ == "__main__":
    raise SystemExit(main())
