"""The process of a shard that is stopped while it recovers its log, and one whose recovery takes long."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psycopg

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
    with running(Node(tmp_path / "first", dsn, "a", LEVERET_CLUSTER__SHARD_TIMEOUT="1")) as node:
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
        assert "the process of shard 1 has been stopped for 1 seconds ('cluster.shard_timeout'): killing it" in node.log()
        assert shard(node, 0)["hangs"] == 0
