"""Measure the cost of sealing for publishers, and whether it keeps up: `python -m bench.sealing [--seconds 30] [--rate N]`.

Publishers append messages of 256 bytes to a stream, with confirms, first as fast as possible and then at the rate, each
with sealing off and with sealing on. Sealing keeps up if the unsealed part does not exceed the size of two segments.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.generator import Load
from leveret.management.control_client import call
from tests.support.broker import LeveretProcess, basic_config

SIZE = 256


def _cpu(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / 100


def _children(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


def run(sealing: bool, seconds: float, rate: float, publishers: int, segment_size: int) -> dict[str, Any]:
    """Measure one run: confirmed messages per second, the longest unsealed part, and CPU seconds."""
    config = basic_config() + (f"\n[streams]\nsealing = {str(sealing).lower()}\nsegment_size = {segment_size}\n")
    with tempfile.TemporaryDirectory(prefix="leveret-sealing-") as directory:
        process = LeveretProcess(Path(directory), config=config)
        with process.start():
            options = [
                "--stream",
                "--durable",
                "--keep",
                "--consumers",
                "0",
                "--publishers",
                str(publishers),
                "--size",
                str(SIZE),
                "--seconds",
                str(seconds),
                "--window",
                "1000",
            ]
            if rate:
                options += ["--rate", str(rate)]
            longest = [0]
            end = threading.Event()

            def watch() -> None:
                while not end.wait(0.5):
                    for stream in call(process.data_dir, "streams.list"):
                        longest[0] = max(longest[0], int(stream["unsealed"]))

            watcher = threading.Thread(target=watch)
            watcher.start()
            assert process.process is not None
            pid = process.process.pid
            before = _cpu(pid)
            result = Load(process.port, "run", *options).result()
            after = _cpu(pid)
            sealer = sum(map(_cpu, _children(pid)))
            end.set()
            watcher.join()
            stream = call(process.data_dir, "streams.list")[0]
            began = time.monotonic()
            while sealing and stream["unsealed"] * SIZE >= segment_size and time.monotonic() < began + 120:
                time.sleep(0.2)
                stream = call(process.data_dir, "streams.list")[0]
            return {
                "sealing": sealing,
                "confirmed": round(result["confirmed"] / seconds),
                "messages": stream["messages"],
                "unsealed_at_most": longest[0],
                "caught_up_after": round(time.monotonic() - began, 1),
                "segments": stream["segments"],
                "broker_cpu": round(after - before, 1),
                "sealer_cpu": round(sealer, 1),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rate", type=float, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--publishers", type=int, default=2)
    parser.add_argument("--segment-size", type=int, default=64_000_000)
    arguments = parser.parse_args()
    for rate in (0.0, arguments.rate):
        rates: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(arguments.rounds):
            for sealing in (False, True):
                found = run(sealing, arguments.seconds, rate, arguments.publishers, arguments.segment_size)
                rates[sealing].append(float(found["confirmed"]))
                print(json.dumps(found), flush=True)
        off, on = median(rates[False]), median(rates[True])
        print(
            f"{'at full speed' if not rate else f'at {rate:,.0f} per second'}: {off:,.0f} confirms per second without"
            f" sealing, {on:,.0f} with it: {1 - on / off:.0%} less",
            flush=True,
        )


if __name__ == "__main__":
    main()
