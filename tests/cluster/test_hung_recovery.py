"""The process of a shard that is stopped or hangs while it recovers its log, and one whose recovery takes long."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psycopg

from leveret.node.child_process import processor_time
from tests.cluster.sharded import running
from tests.cluster.test_nodes import Node, dsn
from tests.support.polling import wait_until

__all__ = ["dsn"]


def shard(node: Node, number: int) -> dict[str, Any]:
    found: dict[str, Any] = node.ask("shards.list")[number]
    return found


def kill(node: Node, number: int) -> int:
    """Kill the process of a shard. Returns the id of the next one, which does not serve yet."""
    killed = node.kill_shard(number)
    wait_until(lambda: shard(node, number)["pid"] not in (0, killed), node.log)
    pid: int = shard(node, number)["pid"]
    return pid


def test_a_process_that_is_stopped_while_it_recovers_is_killed(tmp_path: Path, dsn: str) -> None:
    with running(Node(tmp_path / "first", dsn, "a", LEVERET_CLUSTER__SHARD_TIMEOUT="3")) as node:
        for vhost in ("/", "a"):
            node.publish(vhost, b"kept")
        with psycopg.connect(dsn) as connection:
            # Recovery waits for these locks, until the transaction ends.
            connection.execute("LOCK TABLE leveret_s0.log, leveret_s1.log IN ACCESS EXCLUSIVE MODE")
            slow, hung = kill(node, 0), kill(node, 1)
            os.kill(hung, signal.SIGSTOP)
            wait_until(lambda: shard(node, 1)["hangs"] == 1, node.log)
            # This recovery takes longer than the timeout, too.
            assert (shard(node, 0)["pid"], shard(node, 0)["state"]) == (slow, "starting")
        assert node.shard_pid(0) == slow
        assert node.shard_pid(1) != hung
        assert node.bodies("/") == node.bodies("a") == [b"kept"]
        assert "the process of shard 1 has been stopped for 3 seconds ('cluster.shard_timeout'): killing it" in node.log()
        assert shard(node, 0)["hangs"] == 0


# The recovery of shard 0 makes progress, that of shard 1 does not, until a file exists. Without progress, it may use 1.8
# seconds of processor time, and a process that serves may be silent ten times as long.
SLOW = """
import os

from leveret.cluster import shards
from leveret.storage.indexing import RowScan

shards._SPINS = 0.1
run = RowScan.run


def run_slowly(scan):
    marker = os.environ["TEST_MARKER"]
    while not os.path.exists(marker):
        if scan._breaks._report is not None and not scan._breaks._report.__self__.shard:
            scan._breaks.take()
    run(scan)


RowScan.run = run_slowly
"""


def test_a_process_whose_recovery_does_not_get_on_is_killed(tmp_path: Path, dsn: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    marker = tmp_path / "marker"
    marker.touch()
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    node = Node(tmp_path / "first", dsn, "a", LEVERET_CLUSTER__SHARD_TIMEOUT="18")
    node.environment |= {"TEST_MARKER": str(marker), "LEVERET_PURE": "1", "PYTHONPATH": path}
    with running(node):
        for vhost in ("/", "a"):
            node.publish(vhost, b"kept")
        marker.unlink()
        slow_pid, hung = kill(node, 0), kill(node, 1)
        wait_until(lambda: shard(node, 1)["hangs"] == 1, node.log)
        wait_until(lambda: (processor_time(slow_pid) or 0.0) > 2.5, node.log)
        # It works for longer than the other one was allowed to, too.
        assert (shard(node, 0)["pid"], shard(node, 0)["state"]) == (slow_pid, "starting")
        marker.touch()
        assert node.shard_pid(0) == slow_pid
        assert node.shard_pid(1) != hung
        assert node.bodies("/") == node.bodies("a") == [b"kept"]
        assert "has used 1.8 seconds of processor time without progress of its recovery" in node.log()
        assert shard(node, 0)["hangs"] == 0
