"""The death of a whole node, which the others notice without waiting for its lease."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.cluster.sharded import running
from tests.cluster.test_nodes import Node, dsn, owners, wait_for_looks
from tests.support.polling import wait_until
from tests.support.postgres import execute

__all__ = ["dsn"]

# The last number of a lock of an owner is its epoch.
HOLDERS = (
    "SELECT pid FROM pg_locks JOIN leveret.owner ON objid::bigint = epoch AND classid::bigint & 65535 = shard"
    " WHERE locktype = 'advisory' AND objsubid = 2 AND shard = 0"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def epoch(dsn: str) -> int:
    ((found,),) = execute(dsn, "SELECT epoch FROM leveret.owner WHERE shard = 0")
    return int(found)


def test_a_node_that_is_killed_is_gone_at_once_and_one_that_loses_its_connection_is_not(tmp_path: Path, dsn: str) -> None:
    first = Node(tmp_path / "first", dsn, LEVERET_CLUSTER__LEASE="600")
    second = Node(tmp_path / "second", dsn, LEVERET_CLUSTER__LEASE="600")
    with running(first), running(second):
        assert owners(dsn)[0] == "first"
        first.publish("/", b"kept")
        claimed = epoch(dsn)
        ((session,),) = execute(dsn, HOLDERS)
        execute(dsn, f"SELECT pg_terminate_backend({session})")
        # The owner notices it when it commits, connects again, and keeps the shard.
        second.publish("/", b"after the loss")
        assert [pid for (pid,) in execute(dsn, HOLDERS) if pid != session]
        assert (owners(dsn)[0], epoch(dsn)) == ("first", claimed)
        # A session that comes back and ends between two looks would not count as the owner's.
        wait_for_looks(dsn, "second")

        shard = first.shard_pid(0)
        os.kill(first.pid, signal.SIGSTOP)  # it must not start the shard again
        os.kill(shard, signal.SIGKILL)
        first.kill()
        wait_until(lambda: owners(dsn)[0] == "second", lambda: f"{owners(dsn)} {second.log()}")
        assert second.bodies("/") == [b"kept", b"after the loss"]
        assert epoch(dsn) == claimed + 1
