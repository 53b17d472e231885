"""Measure how long confirms take beside a large persistent body: `python -m bench.slices`.

A client publishes a small persistent message at a fixed rate and measures the time from when it is due to its confirm. In
every second interval, another client publishes bodies of 200 MB. Both run in processes of their own. `--checkout ../other`
measures the compiled build of another checkout, and `--how transaction` bodies in a transaction; `amqp10`, `file` and
`reference` those of AMQP 1.0 and of the classes file and message of 0-9.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.pairs import Build
from leveret import sync
from tests.support.broker import LeveretProcess
from tests.support.peers.amqp091 import Basic, Peer, Queue, content_header
from tests.support.peers.framing import BODY_FRAME, frame_bytes

MIB = 1 << 20


class LargeBodies(Build):
    """A build that accepts bodies of any size in the benchmark."""

    def start(self, timeout: float = 600) -> None:
        assert isinstance(self.broker, LeveretProcess)
        self.broker.config += '[amqp]\nmax_message_size = "1GiB"\n'
        super().start(timeout)


class Publisher:
    """A connection with one channel in confirm mode, and a durable queue."""

    def __init__(self, port: int, queue: str) -> None:
        self.peer = Peer("127.0.0.1", port)
        self.peer.handshake()
        self.channel = self.peer.channel()
        self.queue = self.channel.queue(queue, exclusive=False, durable=True)
        self.channel.confirm_select()

    def publish(self, body: bytes, times: int = 1) -> float:
        """Publish a body of `times` pieces. Returns the seconds until the confirm, from the first byte of its header."""
        began = time.perf_counter()
        self.channel.send(Basic.Publish, exchange="", routing_key=self.queue)
        self.peer.send(1, content_header(len(body) * times, {"delivery_mode": 2}))
        frame = frame_bytes(BODY_FRAME, 1, body)
        for _ in range(times):
            self.peer.send_bytes(frame)
        self.channel.expect(Basic.Ack)
        return time.perf_counter() - began


def commit(connection: Any, body: bytes) -> None:
    channel = connection.channel(transactional=True)
    with channel.transaction():
        channel.publish(body, "large", delivery_mode=2)


def transfer(connection: Any, body: bytes) -> None:
    connection.session().publish(body, "large", delivery_mode=2)


def stage(connection: Any, body: bytes) -> None:
    connection.channel().send_file(body, "large")


def refer(connection: Any, body: bytes) -> None:
    connection.channel().transfer(body, "large", delivery_mode=2)


# Publishes of a large body besides one with a confirm: the protocol and the function.
WAYS: Final[dict[str, tuple[str, Callable[[Any, bytes], None]]]] = {
    "transaction": ("0-9-1", commit),
    "amqp10": ("1.0", transfer),
    "file": ("0-9", stage),
    "reference": ("0-9", refer),
}


def publish_large(port: int, size: int, how: str) -> None:
    """Publish and purge a body for each line of the input, and write a line in turn."""
    publisher = Publisher(port, "large")
    piece = bytes(range(256)) * 400
    for _ in sys.stdin:
        if how in WAYS:
            protocol, publish = WAYS[how]
            with sync.connect(f"amqp://guest:guest@127.0.0.1:{port}", protocol=protocol, timeout=60) as connection:
                began = time.perf_counter()
                publish(connection, piece * (size // len(piece)))
                print(time.perf_counter() - began, flush=True)
        else:
            print(publisher.publish(piece, size // len(piece)), flush=True)
        publisher.channel.call(Queue.Purge, Queue.PurgeOk, queue="large")


def publish_small(publisher: Publisher, interval: float, seconds: float) -> list[float]:
    """Publish at a fixed rate. Returns the seconds from the due time of each message to its confirm."""
    times = []
    due = time.perf_counter()
    end = due + seconds
    while due < end:
        time.sleep(max(0.0, due - time.perf_counter()))
        publisher.publish(b"small")
        times.append(time.perf_counter() - due)
        due += interval
    return times


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)] * 1000


def main() -> int:
    if sys.argv[1:2] == ["large"]:
        publish_large(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
        return 0
    parser = argparse.ArgumentParser(prog="python -m bench.slices", description="Confirms beside a large body.")
    parser.add_argument("--rounds", type=int, default=5, help="intervals with a large body (default 5)")
    parser.add_argument("--size", type=int, default=200 * MIB, help="bytes of the large body (default 200 MiB)")
    parser.add_argument("--interval", type=float, default=0.004, help="seconds between the small messages (default 0.004)")
    parser.add_argument("--how", choices=("confirm", *WAYS), default="confirm", help="publishes of the large bodies")
    parser.add_argument("--checkout", type=Path, default=Path(__file__).resolve().parents[1])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="leveret-slices-") as directory:
        build = LargeBodies(chosen.checkout.resolve(), Path(directory) / "broker")
        large = subprocess.Popen(
            [sys.executable, "-m", "bench.slices", "large", str(build.port), str(chosen.size), chosen.how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert large.stdin is not None and large.stdout is not None
        times: dict[bool, list[float]] = {False: [], True: []}
        bodies = []
        try:
            small = Publisher(build.port, "small")
            for _ in range(chosen.rounds):
                times[False] += publish_small(small, chosen.interval, 2.0)
                large.stdin.write("\n")
                large.stdin.flush()
                times[True] += publish_small(small, chosen.interval, 2.5)
                bodies.append(float(large.stdout.readline()))
        finally:
            large.stdin.close()
            large.wait(60)
            build.stop()
    for busy, title in ((False, "alone"), (True, "beside a large body")):
        values = times[busy]
        print(
            f"{title:20} {len(values):>6} confirms: median {percentile(values, 0.5):.2f} ms,"
            f" p99 {percentile(values, 0.99):.1f} ms, longest {max(values) * 1000:.1f} ms"
        )
    print(f"confirm of the large body: {', '.join(f'{seconds:.2f}' for seconds in bodies)} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
