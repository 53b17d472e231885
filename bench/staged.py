"""Upload a file over AMQP 0-9, publish and deliver it: transfer rates, and the memory of the broker.

    make bench-staged                              1 GiB and, as the baseline, 64 MiB, three rounds
    make bench-staged ARGS="--mib 4096 --rounds 1"

Staged: from `file.open` until the broker has all bytes. In: from `file.open` until the reply to the commit of
`file.publish`, when the file is in the log on disk. Out: from `file.open-ok` until `file.deliver`. The client encodes its
frames beforehand, and parses only the lengths of incoming frames.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import brokers, generator
from tests.support.peers.engine_amqp09 import Client

MIB = 1 << 20
MIBS = 1024
# The file that is uploaded first as the baseline for memory.
SMALL = 64
# Targets: MB/s in each direction, and the maximum MB of memory beyond that of the small file.
RATE = 200
GROWTH = 16
QUEUE = "bench-staged"
FRAME_BODY = 3
FRAME_END = b"\xce"
METHOD_AT = 7
# Class 70, method 80.
FILE_DELIVER = b"\x00\x46\x00\x50"


@dataclass(frozen=True)
class Result:
    """The result of one file. Rates in MB/s. `peak`: the peak memory of the broker in MB; `before`: its memory before;
    `disk`: the rate of writing and syncing as many bytes without a broker."""

    mib: int
    rate_staged: float
    rate_in: float
    rate_out: float
    before: float
    peak: float
    cpu: float
    disk: float


def disk_rate(directory: Path, length: int) -> float:
    """Return the MB/s of the disk without a broker."""
    block = bytes(MIB)
    path = directory / "floor"
    begin = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(length // MIB):
            file.write(block)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begin
    path.unlink()
    return length / seconds / 1e6


def send_file(client: Client, identifier: str, length: int) -> float:
    """Upload a file, publish it, and wait for the commit. Returns the duration of the upload in seconds."""
    begin = time.perf_counter()
    client.open_file(identifier, length)
    client.begin_stage(length)
    size = client.engine.frame_max - 8
    head = bytes((FRAME_BODY,)) + (1).to_bytes(2, "big")
    frame = head + size.to_bytes(4, "big") + bytes(size) + FRAME_END
    frames = frame * 8
    whole, rest = divmod(length, size)
    for _ in range(whole // 8):
        client.socket.sendall(frames)
    client.socket.sendall(frame * (whole % 8))
    if rest:
        client.socket.sendall(head + rest.to_bytes(4, "big") + bytes(rest) + FRAME_END)
    client.call("tx.select", "tx.select-ok")  # the reply follows all previous work
    seconds = time.perf_counter() - begin
    client.send("file.publish", routing_key=QUEUE, identifier=identifier)
    client.call("tx.commit", "tx.commit-ok")
    return seconds


def receive_file(client: Client, length: int) -> None:
    """Read up to the `file.deliver`."""
    client.send("file.open-ok", staged_size=0)
    data = bytearray(4 * MIB)
    view = memoryview(data)
    have = received = 0
    while True:
        got = client.socket.recv_into(view[have:])
        if not got:
            raise ConnectionError("the broker closed the connection")
        have += got
        at = 0
        while have - at >= METHOD_AT + 4:
            size = int.from_bytes(data[at + 3 : at + 7], "big")
            if have - at < size + 8:
                break
            if data[at] == FRAME_BODY:
                received += size
            elif data[at + METHOD_AT : at + METHOD_AT + 4] == FILE_DELIVER:
                if received != length:
                    raise SystemExit(f"received {received} bytes of a file of {length}")
                return
            at += size + 8
        view[: have - at] = view[at:have]
        have -= at


def measure(contender: brokers.Contender, mib: int) -> Result:
    """Measure one file, on a separate connection."""
    length = mib * MIB
    disk = disk_rate(contender.directory, length)
    client = Client(contender.broker, 300)
    client.call("queue.declare", "queue.declare-ok", queue=QUEUE, durable=True)
    before = memory(contender.pid, "VmRSS")
    Path(f"/proc/{contender.pid}/clear_refs").write_text("5")  # the peak is measured from here
    cpu = cpu_of(contender.pid)
    begin = time.perf_counter()
    staged = send_file(client, f"file-{time.time_ns()}", length)
    middle = time.perf_counter()
    client.call("file.consume", "file.consume-ok", queue=QUEUE, no_ack=True)
    client.expect("file.open")
    ready = time.perf_counter()
    receive_file(client, length)
    end = time.perf_counter()
    cpu = cpu_of(contender.pid) - cpu
    peak = memory(contender.pid, "VmHWM")
    client.close()
    return Result(
        mib, length / staged / 1e6, length / (middle - begin) / 1e6, length / (end - ready) / 1e6, before, peak, cpu, disk
    )


def memory(pid: int, field: str) -> float:
    """Return a field of a process's status in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise ValueError(field)


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare(console: Console, rounds: int, output: Path, mib: int = MIBS, broker: str | None = None) -> None:
    """Measure and print everything, and write `staged.json`."""
    name = broker or next(name for name in brokers.names() if name != brokers.RABBIT)
    results: list[Result] = []
    with (
        tempfile.TemporaryDirectory(prefix="leveret-bench-") as directory,
        brokers.running([name], Path(directory)) as contenders,
    ):
        for number in range(rounds):
            for size in (SMALL, mib):
                result = measure(contenders[0], size)
                results.append(result)
                console.print(
                    f"round {number + 1}  {size:>6} MiB  staged {result.rate_staged:>5.0f} MB/s"
                    f"  in {result.rate_in:>5.0f} MB/s  out {result.rate_out:>5.0f} MB/s"
                    f"  peak {result.peak:.0f} MB  disk {result.disk:>5.0f} MB/s",
                    highlight=False,
                )
    console.print(table(results, mib, f"On {brokers.TITLES[name]}; medians of {rounds} rounds"))
    output.mkdir(parents=True, exist_ok=True)
    facts = {"broker": name, "results": [asdict(one) for one in results]}
    (output / "staged.json").write_text(json.dumps(facts, indent=1) + "\n")


def table(results: list[Result], mib: int, caption: str) -> Table:
    shown = Table(title="A staged file (AMQP 0-9, class file)", caption=caption)
    for heading in ("file", "staged MB/s", "in MB/s", "out MB/s", "peak MB", "CPU s", "disk alone MB/s", "targets"):
        shown.add_column(heading, justify="left" if heading in ("file", "targets") else "right")

    def median(size: int, field: str) -> float:
        middle: float = statistics.median(getattr(one, field) for one in results if one.mib == size)
        return middle

    growth = median(mib, "peak") - median(SMALL, "peak")
    slower = min(median(mib, "rate_in"), median(mib, "rate_out"))
    judged = (
        f">= {RATE} MB/s each way: {'yes' if slower >= RATE else 'NO'};"
        f" at most {GROWTH} MB more memory ({growth:+.0f}): {'yes' if growth <= GROWTH else 'NO'}"
    )
    for size in (SMALL, mib):
        rates = [f"{median(size, field):,.0f}" for field in ("rate_staged", "rate_in", "rate_out", "peak")]
        shown.add_row(
            f"{size} MiB",
            *rates,
            f"{median(size, 'cpu'):.1f}",
            f"{median(size, 'disk'):,.0f}",
            judged if size == mib else "",
        )
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-staged", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mib", type=int, default=MIBS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--broker", choices=[brokers.COMPILED, brokers.PURE], help="default: compiled if available")
    parser.add_argument("--output", type=Path, default=generator.OUTPUT)
    chosen = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)
    compare(console, chosen.rounds, chosen.output, chosen.mib, chosen.broker)
    return 0


if __name__ == "__main__":
    sys.exit(main())
