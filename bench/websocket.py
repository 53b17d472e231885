"""Compare AMQP over WebSocket with AMQP over TCP: `python -m bench.websocket [ROUNDS]`.

amqp-client.js publishes transient messages with confirms, 1,000 at a time, and consumes them without acknowledgements. The
tables have the fastest of ROUNDS (3) and the least processor time of the broker.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.broker import ROOT, LeveretProcess, basic_config, free_port
from tests.support.npm import install

# Sizes of messages, and their numbers.
LOADS = ((100, 20_000), (10_000, 5_000), (1_000_000, 100))


def run(broker: LeveretProcess, modules: Path, url: str, what: str, size: int, count: int) -> tuple[float, float]:
    """Return messages per second, and the microseconds of the broker's processor time per message."""
    before = broker.cpu_seconds()
    command = ["node", str(ROOT / "bench" / "websocket.js"), url, what, str(size), str(count)]
    environment = os.environ | {"NODE_PATH": str(modules)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    return count / float(ran.stdout), (broker.cpu_seconds() - before) / count * 1e6


def main(rounds: int) -> None:
    modules = install(ROOT / "tests" / "interop" / "node", "node")
    port = free_port()
    config = f"{basic_config()}\n[websocket]\nenabled = true\nport = {port}\n"
    with (
        tempfile.TemporaryDirectory() as directory,
        LeveretProcess(Path(directory), config=config, log_level="warning") as broker,
    ):
        broker.start()
        urls = {"TCP": broker.url(), "WebSocket": f"ws://127.0.0.1:{port}/ws"}
        for size, count in LOADS:
            found: dict[tuple[str, str], list[tuple[float, float]]] = {}
            for _ in range(rounds):
                for name, url in urls.items():
                    for what in ("publish", "consume"):
                        found.setdefault((what, name), []).append(run(broker, modules, url, what, size, count))
            for (what, name), results in found.items():
                rate, cost = max(rate for rate, _ in results), min(cost for _, cost in results)
                print(
                    f"{size:9,} bytes  {what:8} {name:10} {rate:8,.0f} messages/s {rate * size / 1e6:8.1f} MB/s"
                    f" {cost:8,.0f} µs of the broker per message",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
