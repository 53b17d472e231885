"""References without a broker: a relay in asyncio, and sequential writes to the disk.

Their results have the form of the load generator's, so that the report compares brokers with them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import generator
from tests.support.broker import free_port

ECHO = "echo"
DISK = "disk"
TITLES = {ECHO: "asyncio echo", DISK: "sequential fdatasync"}
# Bytes per write to the disk.
BLOCK = 1 << 20


class Relay(asyncio.Protocol):
    """Writes what it receives to the first connection."""

    first: asyncio.WriteTransport | None = None
    publisher: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if sys.platform == "linux":
            # As the broker and the load generator do: the reference must not be paced either.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        if Relay.first is None:
            Relay.first = transport
        else:
            Relay.publisher = transport

    def data_received(self, data: bytes) -> None:
        assert Relay.first is not None
        if not Relay.first.is_closing():
            Relay.first.write(data)

    def pause_writing(self) -> None:
        if Relay.publisher is not None:
            Relay.publisher.pause_reading()

    def resume_writing(self) -> None:
        if Relay.publisher is not None:
            Relay.publisher.resume_reading()


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Relay, "127.0.0.1", port)
    print("listening", flush=True)
    await server.serve_forever()


def echo(options: tuple[str, ...]) -> dict[str, Any]:
    """Run the generator against a relay in a process of its own."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "bench.references", str(port)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        return generator.run(port, "relay", *options, watch=process.pid)
    finally:
        process.kill()
        process.communicate()


def disk(directory: Path, size: int, seconds: float) -> dict[str, Any]:
    """Write to a new file, each block with fdatasync. The messages are those of `size` bytes that it would hold."""
    path = directory / "sequential"
    block = os.urandom(BLOCK)
    written = 0
    begin = time.perf_counter()
    cpu = time.process_time()
    with path.open("wb", buffering=0) as file:
        while time.perf_counter() < begin + seconds:
            written += file.write(block)
            os.fdatasync(file.fileno())
    took = time.perf_counter() - begin
    path.unlink()
    return {
        "seconds": took,
        "delivered": written // size,
        "confirmed": written // size,
        "generator_cpu": 0.0,
        "broker_cpu": time.process_time() - cpu,
        "broker_rss_kb": 0,
        "latency_us": {"p50": 0.0, "p99": 0.0},
    }


def main() -> int:
    asyncio.run(serve(int(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
