"""The crash checker over two nodes: its clients are at the node that does not own their vhost, whose owner is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from leveret.management.control_client import call
from tests.cluster.test_nodes import Node, dsn, owners
from tests.faults.crash.rounds import CrashTest
from tests.support.polling import wait_until

__all__ = ["dsn"]


class Pair:
    """Two nodes, as one broker for the checker. The clients are at the one that does not own shard 0."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self.nodes = [Node(directory / name, dsn) for name in ("first", "second")]
        self._dsn = dsn
        self._running: list[Node] = []
        self.wrong = self.nodes[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrong, name)

    def start(self, timeout: float = 120.0) -> None:
        """Start what is not running, and wait until shard 0 is served."""
        for node in self.nodes:
            if node not in self._running:
                node.start(timeout)
                self._running.append(node)
        wait_until(self._is_served, lambda: "\n".join(node.log() for node in self.nodes))
        self.wrong = next(node for node in self.nodes if node.directory.name != owners(self._dsn)[0])

    def _is_served(self) -> bool:
        states = [{shard["number"]: shard["state"] for shard in node.ask("shards.list")}[0] for node in self.nodes]
        return states == ["ready", "ready"]

    def kill(self) -> None:
        """Kill the owner: its front and its shards."""
        owner = next(node for node in self._running if node is not self.wrong)
        pids = [shard["pid"] for shard in call(owner.data_dir, "shards.list", {}) if shard["pid"] > 0]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        owner.kill()
        self._running.remove(owner)

    def stop(self) -> None:
        for node in self._running:
            node.stop()
        self._running.clear()


@pytest.mark.slow
def test_rounds(tmp_path: Path, dsn: str) -> None:
    pair = Pair(tmp_path, dsn)
    test = CrashTest(pair, 1, tmp_path / "journal.jsonl")  # type: ignore[arg-type]
    try:
        test.run(3, (0.3, 1.5), graceful=0.0, again=0.0, found=100)
    finally:
        for node in pair.nodes:
            node.kill()
