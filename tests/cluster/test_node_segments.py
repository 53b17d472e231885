"""Sealed streams of nodes: their files are in a directory that all nodes share."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.sharded import KEPT, running
from tests.cluster.test_nodes import Node, Refused
from tests.support.polling import wait_until
from tests.support.postgres import execute, require_postgres, shared_server

STREAM = {"x-queue-type": "stream"}


@pytest.fixture
def dsn() -> str:
    require_postgres()
    return shared_server().database()


def publish(node: Node, first: int, stop: int) -> None:
    connection = node.open("a")
    channel = connection.channel()
    channel.queue_declare("s", durable=True, arguments=STREAM)
    channel.confirm_delivery()
    for number in range(first, stop):
        channel.basic_publish("", "s", b"%d" % number, KEPT)
    connection.close()


def read(node: Node, count: int) -> list[bytes]:
    """Return the first messages of the stream."""
    connection = node.open("a")
    channel = connection.channel()
    channel.basic_qos(prefetch_count=100)
    found: list[bytes] = []
    for method, _, body in channel.consume("s", arguments={"x-stream-offset": "first"}, inactivity_timeout=60):
        assert method is not None, f"{len(found)} of {count} messages"
        found.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    connection.close()
    return found


def show(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = node.ask("streams.show", vhost="a", name="s")
    return found


@pytest.mark.slow
def test_another_node_reads_and_continues_the_segments(tmp_path: Path, dsn: str) -> None:
    shared: dict[str, Any] = {
        "LEVERET_STREAMS__DIRECTORY": str(tmp_path / "shared"),
        "LEVERET_STREAMS__SHARED": "true",
        "LEVERET_STREAMS__GRACE": "0",
    }
    first = Node(tmp_path / "first", dsn, "a", **shared)
    second = Node(tmp_path / "second", dsn, "a", **shared)
    with running(first), running(second):
        publish(first, 0, 50)
        first.ask("streams.seal", vhost="a", name="s")
        wait_until(lambda: show(second)["unsealed"] == 0, lambda: str(show(second)))
        publish(first, 50, 60)
        files = {path.name for path in (tmp_path / "shared").rglob("*.parquet")}
        assert len(files) == 1
        # The owner's sealer survives a freeze of its broker, and the take-over by another node.
        frozen = first.shard_pid(first.placed()["a"])
        os.kill(frozen, signal.SIGSTOP)
        wait_until(lambda: execute(dsn, "SELECT node FROM leveret.owner WHERE shard = 1") == [("second",)], second.log)
        assert read(second, 60) == [b"%d" % number for number in range(60)]
        publish(second, 60, 70)
        second.ask("streams.seal", vhost="a", name="s")
        with contextlib.suppress(ProcessLookupError):  # its node may have killed it
            os.kill(frozen, signal.SIGCONT)
        wait_until(lambda: "has taken over shard 1" in first.log(), first.log)
        first.kill()
        wait_until(lambda: show(second)["unsealed"] == 0, lambda: str(show(second)))
        assert files < {path.name for path in (tmp_path / "shared").rglob("*.parquet")}
        second.stop()
        second.start()
        assert read(second, 70) == [b"%d" % number for number in range(70)]
        # Nothing but the segments in the manifest is left.
        segments = second.ask("streams.segments", vhost="a", name="s")
        named = {Path(str(segment["path"])).name for segment in segments}
        wait_until(lambda: {path.name for path in (tmp_path / "shared").rglob("*") if path.is_file()} == named, second.log)
        first.start()


def test_without_a_shared_directory_streams_are_not_sealed(tmp_path: Path, dsn: str) -> None:
    with running(Node(tmp_path / "only", dsn, "a")) as node:
        assert node.ask("status")["unsealed"] == ""
        publish(node, 0, 3)
        why = node.ask("status")["unsealed"]
        assert "'streams.directory' to a URL" in why and "'streams.shared' = true" in why
        assert show(node)["unsealed_because"] == why
        with pytest.raises(Refused, match=r"'streams\.shared' = true"):
            node.ask("streams.seal", vhost="a", name="s")
        assert read(node, 3) == [b"0", b"1", b"2"]
