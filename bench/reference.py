"""The reference of `bench.check`: a server in plain Python whose processor time stands for the speed of the machine.

It does what a broker does with small messages, without being one: it reads many frames at once, cuts them into parts, keeps
these in a dictionary and a deque, and writes them back. Never change it: all ratios of the baseline would change with it.

    python -m bench.reference        serve one connection, then print the number of frames and the processor time
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections import deque
from typing import Final

FRAME: Final = 256
# Frames per write, and writes in flight.
FRAMES: Final = 50
WRITES: Final = 4


class Echo(asyncio.Protocol):
    """Echoes frames of FRAME bytes."""

    def __init__(self) -> None:
        self.rest = b""
        self.frames = 0
        self.waiting: deque[int] = deque()
        self.began = 0.0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.began = time.process_time()

    def data_received(self, data: bytes) -> None:
        data = self.rest + data
        at = 0
        kept = {}
        while at + FRAME <= len(data):
            kept[at] = (int.from_bytes(data[at + 3 : at + 7], "big"), data[at : at + FRAME])
            self.waiting.append(at)
            self.frames += 1
            at += FRAME
        self.rest = data[at:]
        parts = []
        while self.waiting:
            _, frame = kept.pop(self.waiting.popleft())
            parts.append(frame[:7])
            parts.append(frame[7:])
        self.transport.write(b"".join(parts))

    def connection_lost(self, exc: Exception | None) -> None:
        print(self.frames, time.process_time() - self.began, flush=True)
        asyncio.get_running_loop().stop()


def serve() -> None:
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(Echo, "127.0.0.1", 0))
    print(server.sockets[0].getsockname()[1], flush=True)
    loop.run_forever()


def measure(seconds: float) -> float:
    """Return the server's processor time per frame in seconds."""
    command = [sys.executable, "-m", "bench.reference"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        with socket.create_connection(("127.0.0.1", int(server.stdout.readline()))) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            written = bytes(FRAME * FRAMES)
            client.sendall(written * WRITES)
            received = 0
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                received += len(client.recv(65536))
                while received >= len(written):
                    received -= len(written)
                    client.sendall(written)
        frames, used = server.stdout.readline().split()
    return float(used) / int(frames)


if __name__ == "__main__":
    serve()
