"""Fuzzing of AMQP 0-9 over sockets: the sequences of `tests.support.fuzz09` in bursts, without waiting for replies.

One invariant: the broker's output is well-formed and ends in a reply or a protocol close; the broker lives; other clients
are not affected; no exception is logged; and the state of closed connections is freed.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.neighbour import Neighbour
from tests.support.broker import LeveretProcess, basic_config, leveret_only
from tests.support.fuzz09 import Fuzzer
from tests.support.peers.amqp09 import HEADER_AMQP09, Peer
from tests.support.peers.framing import METHOD_FRAME, frame_bytes
from tests.support.polling import wait_until

EXAMPLES = int(os.environ.get("LEVERET_FUZZ_EXAMPLES", "80"))
STEPS = 80
LIMIT = 120.0
CLOSE = frame_bytes(METHOD_FRAME, 0, b"\x00\x0a\x00\x32\x00\xc8\x00\x00\x00\x00\x00")
# Uploads and interrupted channels expire soon.
CONFIG = (
    basic_config()
    + """
[uploads]
timeout = 1

[amqp09]
resume_timeout = 0.2
"""
)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("only Leveret supports AMQP 0-9")
    running = LeveretProcess(tmp_path_factory.mktemp("fuzz09"), config=CONFIG).start()
    yield running
    running.stop()
    running.check_log()


class Session:
    """A fuzzer on a socket."""

    def __init__(self, broker: LeveretProcess, seed: int, ids: list[bytes]) -> None:
        self.fuzzer = Fuzzer(seed, ids)
        self.socket = broker.connect(LIMIT)
        self.ended = False
        self.send(HEADER_AMQP09)
        for data in self.fuzzer.start("guest"):
            self.read(wait=True)
            self.send(data)

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self.ended = True

    def read(self, wait: bool = False) -> None:
        """Read available input; with `wait`, wait for input or the end."""
        while not self.ended and select.select([self.socket], [], [], LIMIT if wait else 0)[0]:
            wait = False
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            self.ended = not data
            self.fuzzer.received(data)

    def play(self, drops: bool) -> None:
        """Continue until the broker or this client ends the connection."""
        chance = self.fuzzer.random
        for _ in range(STEPS):
            if self.ended or self.fuzzer.done:
                break
            self.send(b"".join(self.fuzzer.step() for _ in range(chance.choice((1, 1, 2, 5)))))
            self.read()
        if not drops:
            self.send(CLOSE)
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.ended = True

            def ended() -> bool:
                self.read(wait=True)
                return self.ended

            wait_until(ended, "the broker did not end the connection", LIMIT)
        self.socket.close()


def wait_until_gone(broker: LeveretProcess) -> None:
    """Wait until consumers and uploads of closed connections are removed."""
    peer = Peer(broker.host, broker.port)
    peer.connect()
    channel = peer.open()

    def consumers() -> int:
        return sum(channel.call("queue.declare", queue=queue).consumer_count for queue in "abf")

    wait_until(lambda: not consumers(), lambda: f"{consumers()} consumers are left")

    def staged() -> list[Path]:
        return [path for path in (broker.data_dir / "staged").rglob("*") if path.is_file()]

    wait_until(lambda: not staged(), lambda: f"still staged: {staged()}")
    peer.close()


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(4))
def test_bursts(process: LeveretProcess, batch: int) -> None:
    neighbour = Neighbour(process)
    ids: list[bytes] = []
    for number in range(EXAMPLES // 4):
        seed = 10_000_000 + batch * 1_000_000 + number
        try:
            Session(process, seed, ids).play(drops=number % 3 == 0)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        if number % 5 == 0:
            neighbour.check()
        process.check_log()
    neighbour.check()
    neighbour.close()
    wait_until_gone(process)
    assert process.alive()
