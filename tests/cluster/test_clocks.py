"""A node whose clock is an hour off, or is set while it runs: deadlines of messages are by PostgreSQL's clock."""

from __future__ import annotations

import time
from pathlib import Path

import pika
import pytest

from tests.cluster.sharded import running
from tests.cluster.test_nodes import Node, dsn, owners
from tests.support.polling import wait_until

__all__ = ["dsn"]

# Seconds, and milliseconds of a TTL or a delay that no test reaches.
HOUR = 3600
HALF_AN_HOUR = str(HOUR * 500)


def set_clock(node: Node, seconds: int) -> None:
    """Set the clock of a node ahead of the machine's, also while it runs."""
    path = node.directory / "clock"
    # Replaced at once, so that the node never reads half a file.
    (new := path.with_suffix(".new")).write_text(f"{seconds:+d}\n")
    new.replace(path)


def with_clock(node: Node, seconds: int) -> Node:
    """Give a node a clock of its own. Skips the test if libfaketime is missing."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries:
        pytest.skip("libfaketime is not installed (Debian package faketime)")
    node.directory.mkdir(parents=True, exist_ok=True)
    set_clock(node, seconds)
    node.environment |= {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME_TIMESTAMP_FILE": str(node.directory / "clock"),
        "FAKETIME_NO_CACHE": "1",
        # As on a real machine, whose monotonic clock never jumps.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    return node


def clock(node: Node) -> float:
    """Return by how many seconds a node says that its clock is ahead."""
    found = next(finding for finding in node.ask("cluster.check") if finding["check"] == "clocks")
    return 0.0 if found["good"] else float(found["text"].partition(" seconds ")[0].rpartition(" ")[2])


@pytest.mark.parametrize("skew", [HOUR, -HOUR])
def test_a_take_over_by_a_node_with_another_clock(tmp_path: Path, dsn: str, skew: int) -> None:
    # Each call of libfaketime reads a file, so that a busy machine makes the front of the second node slow.
    first = Node(tmp_path / "first", dsn, LEVERET_CLUSTER__LEASE="5")
    second = with_clock(Node(tmp_path / "second", dsn, LEVERET_CLUSTER__LEASE="5"), skew)
    with running(first), running(second):
        assert owners(dsn)[0] == "first"
        wait_until(lambda: abs(clock(first) - HOUR) < 60, lambda: first.ask("cluster.check"))
        client = first.open("/")
        channel = client.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.queue_declare("short", durable=True)
        channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
        channel.queue_bind("q", "later", "q")
        channel.basic_publish("", "q", b"kept", pika.BasicProperties(delivery_mode=2, expiration=HALF_AN_HOUR))
        later = pika.BasicProperties(delivery_mode=2, headers={"x-delay": int(HALF_AN_HOUR)})
        channel.basic_publish("later", "q", b"delayed", later)
        began = time.monotonic()
        channel.basic_publish("", "short", b"expires", pika.BasicProperties(delivery_mode=2, expiration="3000"))
        first.kill()
        wait_until(lambda: owners(dsn)[0] == "second", second.log)
        # Not an hour early, and not an hour late.
        second.publish("/", b"after")
        client = second.open("/")
        channel = client.channel()
        wait_until(lambda: not channel.queue_declare("short", passive=True).method.message_count, second.log)
        assert time.monotonic() - began >= 2.5
        client.close()
        # Its clock is set while it owns the shard. That takes over nothing, and the next owner does not notice either.
        epoch = second.ask("shards.list")[0]["epoch"]
        set_clock(second, 0)
        second.publish("/", b"after the clock was set")
        wait_until(lambda: clock(second) == 0.0, lambda: second.ask("cluster.check"))
        assert (owners(dsn)[0], second.ask("shards.list")[0]["epoch"]) == ("second", epoch), second.log()
        set_clock(second, -skew)
        wait_until(lambda: abs(clock(second) - HOUR) < 60, lambda: second.ask("cluster.check"))
        first.start()
        second.kill()
        wait_until(lambda: owners(dsn)[0] == "first", first.log)
        assert first.bodies("/") == [b"kept", b"after", b"after the clock was set"]
        lines = (first.log() + second.log()).splitlines()
        assert not [line for line in lines if "shard" in line and "clock was set" in line]
