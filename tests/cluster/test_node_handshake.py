"""Attacks on the listener for nodes, and control connections between nodes."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from leveret.cluster import links
from leveret.cluster.links import MAX_UNAUTHENTICATED, NodeClient, NodeInfo, NodeServer, split_address
from leveret.cluster.node_handshake import (
    MAX_MESSAGE,
    MAX_UNPROVEN,
    NONCE_SIZE,
    Accepted,
    Challenge,
    Hello,
    LinkFailed,
    Request,
)
from leveret.management.control_client import CallFailed
from leveret.management.socket_path import CONTROL_SOCKET, short_path
from leveret.storage.cluster import LINK_FORMAT
from tests.cluster.harness import Cluster
from tests.support.polling import wait_until

SECRET = os.urandom(32)


class Node:
    """A node whose control sockets are those of the shards of a broker in memory."""

    def __init__(self, directory: Path) -> None:
        self.cluster = Cluster(directory)
        controls = {shard.number: shard.control for shard in self.cluster.shards.all}
        self.server = NodeServer(SECRET, "a", lambda shard, epoch: None, lambda shard: controls.get(shard or 0))
        self.address = self.cluster.run(self.server.start("127.0.0.1", 0))
        self.info = NodeInfo("a", self.address)
        self.client = NodeClient(SECRET, "b")

    def connect(self) -> socket.socket:
        return socket.create_connection(split_address(self.address), 60)

    def status(self, client: NodeClient | None = None, shard: int | None = 1, address: str = "") -> bytes:
        """Return the status of a shard, over a control connection."""

        async def exchange() -> bytes:
            reader, writer = await (client or self.client).open_control(NodeInfo("a", address or self.address), shard)
            writer.write(b'{"v":1,"call":"vhosts.list"}\n')
            line = await reader.readline()
            writer.close()
            return line

        return self.cluster.run(exchange())

    def close(self) -> None:
        self.cluster.run(self.server.stop())
        self.cluster.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    running = Node(tmp_path)
    yield running
    running.close()


def message(value: msgspec.Struct) -> bytes:
    encoded = msgspec.msgpack.encode(value)
    return struct.pack(">I", len(encoded)) + encoded


def hello(version: int = LINK_FORMAT, node: str = "a", nonce: bytes = bytes(NONCE_SIZE)) -> bytes:
    return message(Hello(version, "b", node, nonce))


def received(sock: socket.socket) -> bytes:
    """Return all input up to the end."""
    data = b""
    try:
        while part := sock.recv(1 << 16):
            data += part
    except ConnectionResetError:
        pass
    return data


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b""),
        (b"AMQP\0\0\x09\x01", b""),
        (b"\xff" * 100, b""),
        (struct.pack(">I", MAX_UNPROVEN + 1) + b"x", b""),
        (b"\0\0\0\x03abc", b""),
        (b"\0\0\0\0", b""),
        (message(Accepted()), b""),
        (message(Request(b"", b"")), b""),
        (hello(version=2), b"link format 2 is not supported: node 'a' knows up to 1; install"),
        (hello(version=0), b"link format 0 is not supported"),
        (hello(node="c"), b"this is node 'a', not 'c'"),
        (hello(nonce=b""), b"a nonce of 0 bytes; expected 32"),
        (hello() + message(Request(bytes(32), b"")), b"the caller does not know the secret of the cluster"),
        (hello() + struct.pack(">I", MAX_MESSAGE + 1), b""),
    ],
)
def test_garbage(node: Node, attack: bytes, expected: bytes) -> None:
    with node.connect() as sock:
        sock.sendall(attack)
        assert expected in received(sock)
    assert node.server.refused == 1
    assert b'"/' not in node.status()


def test_connections_that_stay_silent(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest ones make room for others."""
    monkeypatch.setattr(links, "HANDSHAKE_TIMEOUT", 600)

    async def connect() -> list[socket.socket]:
        """Connect while the event loop accepts none, so that it finds all at once."""
        return [node.connect() for _ in range(MAX_UNAUTHENTICATED + 60)]

    silent = node.cluster.run(connect())
    with_start = node.connect()
    with_start.sendall(hello()[:7])
    assert node.status().startswith(b'{"v":1,"result":')
    for sock in silent[:60]:
        assert sock.recv(1) == b""
    assert len(node.server._unauthenticated) <= MAX_UNAUTHENTICATED
    silent[-1].setblocking(False)
    with pytest.raises(BlockingIOError):
        silent[-1].recv(1)
    for sock in (*silent, with_start):
        sock.close()
    wait_until(lambda: not node.server._unauthenticated)


def test_a_slow_handshake(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "HANDSHAKE_TIMEOUT", 0.05)
    with node.connect() as sock:
        sock.sendall(hello()[:7])
        assert received(sock) == b""
    assert node.server.refused == 1


def test_wrong_secrets(node: Node) -> None:
    """Each side refuses the other."""
    with pytest.raises(LinkFailed, match="node 'a' refuses the connection: it does not know the secret of the cluster"):
        node.status(NodeClient(bytes(32), "b"))
    wait_until(lambda: node.server.refused == 1)
    with node.connect() as sock:
        sock.sendall(hello())
        (size,) = struct.unpack(">I", sock.recv(4))
        challenge = msgspec.msgpack.decode(sock.recv(size), type=Challenge)
        # The node's own proof is none for its caller.
        sock.sendall(message(Request(challenge.proof, msgspec.msgpack.encode({"type": "Control", "shard": 1}))))
        assert b"does not know the secret" in received(sock)


class Recorder:
    """A proxy that keeps what the caller has sent."""

    def __init__(self, address: str) -> None:
        self.sent = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._target = split_address(address)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        caller, _ = self._listening.accept()
        with caller, socket.create_connection(self._target) as called:
            back = threading.Thread(target=self._copy, args=(called, caller))
            back.start()
            while data := caller.recv(1 << 16):
                self.sent += data
                called.sendall(data)
            called.shutdown(socket.SHUT_WR)
            back.join()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(1 << 16):
            target.sendall(data)

    def close(self) -> None:
        self._thread.join(60)
        self._listening.close()


def test_a_replayed_handshake(node: Node) -> None:
    recorder = Recorder(node.address)
    expected = node.status(address=recorder.address)
    recorder.close()
    assert expected.startswith(b'{"v":1,"result":')
    with node.connect() as sock:
        sock.sendall(recorder.sent)
        answer = received(sock)
    assert b"does not know the secret" in answer and b"result" not in answer


def test_control_of_shards(node: Node) -> None:
    assert b'"b"' in node.status(shard=1)
    assert b'"/"' in node.status(shard=0)
    assert b'"/"' in node.status(shard=None)
    with pytest.raises(LinkFailed, match="node 'a' refuses the connection: it does not own the shard"):
        node.status(shard=2)
    node.cluster.end(1)
    with pytest.raises(LinkFailed, match="node 'a' refuses the connection: its control socket does not answer"):
        node.status(shard=1)


def test_lists_of_a_shard_in_another_node(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that dies in the middle of a list, and one that is not there, are named."""
    cluster = node.cluster
    monkeypatch.setattr(cluster.shards.all[1], "open_control", lambda: node.client.open_control(node.info, 1))
    names = [f"a queue with a long name {number:04}" * 8 for number in range(1000)]
    changes = [{"call": "queues.add", "arguments": {"name": name, "vhost": "b"}} for name in names]
    assert cluster.call("definitions.apply", changes=changes) == {"refused": []}
    assert len(cluster.call("queues.list")) == 1000
    with socket.socket(socket.AF_UNIX) as operator:
        operator.settimeout(60)
        with short_path(cluster.directory / CONTROL_SOCKET) as name:
            operator.connect(name)
        operator.sendall(b'{"v":1,"call":"queues.list"}\n')
        lines = operator.makefile("rb")
        assert lines.readline().startswith(b'{"v":1,"part":')
        cluster.loop.call_soon_threadsafe(node.client.close_relays, 1, "c")
        while (line := lines.readline()).startswith(b'{"v":1,"part":'):
            pass
        assert b"shard 1 is restarting: it ended before it had answered" in line
    cluster.run(node.server.stop())
    with pytest.raises(CallFailed, match="shard 1 does not answer: node 'a' cannot be reached"):
        cluster.call("queues.list")
