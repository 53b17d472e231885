"""Uploads of AMQP 0-9 over a take-over: another node finds them in a shared directory, or their senders start again."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.sharded import running
from tests.cluster.test_nodes import Node
from tests.support.peers.engine_amqp09 import Client
from tests.support.polling import wait_until
from tests.support.postgres import execute, require_postgres, shared_server

SIZE = 300_000
BODY = os.urandom(SIZE)


@pytest.fixture
def dsn() -> str:
    require_postgres()
    return shared_server().database()


def connect(node: Node) -> Client:
    """Connect to vhost a, as soon as its shard serves."""
    clients: list[Client] = []

    def is_open() -> bool:
        with contextlib.suppress(ConnectionError):
            clients.append(Client(node))
        return bool(clients)

    node.vhost = "a"
    wait_until(is_open, node.log)
    return clients[0]


def stage(client: Client, at: int, until: int) -> None:
    client.begin_stage(SIZE - at)
    client.stage_octets(BODY[at:until])


def published(client: Client) -> bytes:
    """Publish the upload `one`, and return what a consumer gets."""
    client.call("tx.select", "tx.select-ok")
    client.send("file.publish", routing_key="files", identifier="one")
    client.call("tx.commit", "tx.commit-ok")
    client.call("file.consume", "file.consume-ok", queue="files")
    client.expect("file.open")
    client.send("file.open-ok", staged_size=0)
    pieces: list[bytes] = []
    while len(b"".join(pieces)) < SIZE:
        pieces.append(getattr(client.next(), "data", b""))
    return b"".join(pieces)


def interrupted(node: Node) -> int:
    """Send half of an upload to a node, and return the number of bytes that it has on disk for sure."""
    client = connect(node)
    client.call("queue.declare", "queue.declare-ok", queue="files", durable=True)
    assert client.open_file("one", SIZE) == 0
    stage(client, 0, SIZE // 2)
    client.close()
    return connect(node).open_file("one", SIZE)


def test_another_node_resumes_an_upload_and_a_frozen_owner_leaves_it_alone(tmp_path: Path, dsn: str) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    settings: dict[str, Any] = {"LEVERET_UPLOADS__DIRECTORY": str(shared), "LEVERET_UPLOADS__TIMEOUT": "1h"}
    first, second = (Node(tmp_path / name, dsn, "a", **settings) for name in ("first", "second"))
    with running(first), running(second):
        have = interrupted(first)
        assert have > SIZE // 3
        owner = connect(first)
        assert owner.open_file("one", SIZE) == have
        frozen = first.shard_pid(first.placed()["a"])
        os.kill(frozen, signal.SIGSTOP)
        # Bytes that the former owner reads when it continues.
        owner.begin_stage(SIZE - have)
        owner.stage_octets(b"\0" * 1000)
        owner.send("file.open", identifier="other", content_size=10)
        wait_until(lambda: execute(dsn, "SELECT node FROM leveret.owner WHERE shard = 1") == [("second",)], second.log)
        client = connect(second)
        assert client.open_file("one", SIZE) == have
        stage(client, have, SIZE)
        with contextlib.suppress(ProcessLookupError):  # its node may have killed it
            os.kill(frozen, signal.SIGCONT)
        wait_until(lambda: "has taken over shard 1" in first.log(), first.log)
        assert published(client) == BODY
        assert [path for path in shared.rglob("*") if path.is_file()] == []
        first.kill()
        first.start()


def test_without_a_shared_directory_the_sender_starts_again(tmp_path: Path, dsn: str) -> None:
    first, second = (Node(tmp_path / name, dsn, "a") for name in ("first", "second"))
    with running(first), running(second):
        assert interrupted(first) > 0
        first.kill()
        client = connect(second)
        assert client.open_file("one", SIZE) == 0
        assert "set 'uploads.directory' to a directory that all nodes share" in second.log()
        stage(client, 0, SIZE)
        assert published(client) == BODY
        first.start()
