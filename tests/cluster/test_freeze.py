"""A node, or its front alone, that is frozen for a while: its shards move, and it comes back as a member."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pika.exceptions
import pytest

from tests.cluster.sharded import KEPT, running
from tests.cluster.test_nodes import Node, dsn, owners
from tests.support.broker import CONNECT_TIMEOUT
from tests.support.polling import wait_until
from tests.support.processes import family

__all__ = ["dsn"]


@contextlib.contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    """Freeze processes, of which some may end before."""
    try:
        send(pids, signal.SIGSTOP)
        yield
    finally:
        send(pids, signal.SIGCONT)


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to those of some processes that exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def place(node: Node) -> tuple[str, str]:
    """Return the owner and the state of shard 0, as a node sees them."""
    shard = next(shard for shard in node.ask("shards.list") if shard["number"] == 0)
    return shard["node"], shard["state"]


@pytest.mark.parametrize("part", ["front", pytest.param("node", marks=pytest.mark.slow)])
def test_a_frozen_node_loses_its_shards(tmp_path: Path, dsn: str, part: str) -> None:
    first, second = Node(tmp_path / "first", dsn), Node(tmp_path / "second", dsn)
    with running(first), running(second):
        assert owners(dsn)[0] == "first"
        first.publish("/", b"before")
        client = second.open("/")
        channel = client.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"through the second", KEPT)
        assert first.process is not None
        pids = family(first.process.pid) if part == "node" else [first.process.pid]
        with frozen(pids):
            wait_until(lambda: owners(dsn)[0] == "second", second.log)
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
                client.process_data_events(time_limit=CONNECT_TIMEOUT)
            assert closed.value.reply_code == 320
            second.publish("/", b"while the first is frozen")
        # It notices that it has lost the shard, and passes its clients on.
        wait_until(lambda: place(first) == ("second", "ready"), first.log)
        first.publish("/", b"after")
        assert owners(dsn)[0] == "second"
        assert second.bodies("/") == [b"before", b"through the second", b"while the first is frozen", b"after"]
        assert {node for node, _ in first.nodes().values()} == {"live"}


def test_a_node_that_joins_while_a_front_is_frozen_gets_its_shards(tmp_path: Path, dsn: str) -> None:
    """The front does not know the second node, which its shards find in the database."""
    first, second = Node(tmp_path / "first", dsn), Node(tmp_path / "second", dsn)
    with running(first):
        first.publish("/", b"before")
        assert first.process is not None
        with frozen([first.process.pid]), running(second):
            wait_until(lambda: owners(dsn)[0] == "second", second.log)
            second.publish("/", b"while the first is frozen")
            assert second.bodies("/") == [b"before", b"while the first is frozen"]
        assert "the front does not answer: releasing the shard for another node" in first.log()
