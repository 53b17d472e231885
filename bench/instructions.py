"""Compare the instructions per message of this checkout with another one: `python -m bench.instructions ../other`.

Valgrind counts the instructions of each broker, which serves the same messages in batches that wait for each other. The
count hardly depends on the machine or its load, so it shows a difference of 1 %, which `bench.pairs` cannot. It excludes
the kernel, cache misses and the effects of larger batches. Compile both checkouts first (`make compiled`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.turn_lab import CONFIG, Client, Client10
from leveret.wire.amqp0.commands import Ack
from leveret.wire.amqp10.message import encode_data
from leveret.wire.amqp10.messaging import Accepted, Source, Target
from leveret.wire.amqp10.transport import Disposition, Transfer

BODY: Final = b"x" * 256
BATCH: Final = 50
FEW: Final = 1000
ROOT: Final = Path(__file__).resolve().parents[1]
Address = tuple[str, int]
COUNTED: Final = re.compile(r"I\s+refs\s*:\s*([\d,]+)")


def publish_and_acknowledge(
    address: Address, count: int, *, queues: int = 1, durable: bool = False, single: bool = False
) -> None:
    """Publish messages over 0-9-1. After each batch, wait for its confirms and acknowledge its deliveries."""
    publisher = Client(address)
    publisher.open_channel()
    names = [f"q{number}" for number in range(queues)]
    for name in names:
        publisher.declare(name, durable=durable)
        publisher.call(1, "queue.bind", "queue.bind-ok", queue=name, exchange="amq.fanout", routing_key="", arguments={})
    publisher.call(1, "confirm.select", "confirm.select-ok")
    consumer = Client(address)
    consumer.open_channel()
    for name in names:
        consumer.consume(name, tag=name)
    exchange, key = ("amq.fanout", "") if queues > 1 else ("", names[0])
    for sent in range(BATCH, count + 1, BATCH):
        for _ in range(BATCH):
            publisher.publish(key, BODY, exchange=exchange, delivery_mode=2 if durable else 1)
        publisher.flush()
        confirmed = 0
        while confirmed < sent:
            publisher.received.clear()
            publisher.read()
            confirmed = max([ack.delivery_tag for ack in publisher.received if isinstance(ack, Ack)], default=confirmed)
        last = sent * queues
        consumer.wait_delivered(last)
        for tag in range(last - BATCH * queues + 1, last + 1) if single else (last,):
            consumer.send(1, "basic.ack", delivery_tag=tag, multiple=not single)
        consumer.flush()
    consumer.sync()
    consumer.drop()
    publisher.drop()


def transfer_and_settle(address: Address, count: int) -> None:
    """Send messages over 1.0. After each batch, wait for its dispositions and settle its deliveries."""
    owner = Client(address)
    owner.open_channel()
    owner.declare("q0")
    sender = Client10(address)
    sender.begin()
    sender.attach("s", 0, receives=False, source=Source("here"), target=Target("/queues/q0"))
    receiver = Client10(address)
    receiver.begin()
    receiver.attach("r", 0, receives=True, source=Source("/queues/q0"), target=Target("here"))
    receiver.credit(0, count)
    payload = encode_data(BODY)
    for sent in range(BATCH, count + 1, BATCH):
        for number in range(sent - BATCH, sent):
            sender.send(Transfer(0, number, number.to_bytes(4, "big"), 0, settled=False, payload=payload))
        sender.flush()
        settled = -1
        while settled < sent - 1:
            sender.received.clear()
            sender.read()
            dispositions = [frame for frame in sender.received if isinstance(frame, Disposition)]
            settled = max(
                [frame.last if frame.last is not None else frame.first for frame in dispositions], default=settled
            )
        receiver.wait_delivered(sent)
        receiver.send(Disposition(True, receiver.last - BATCH + 1, receiver.last, settled=True, state=Accepted()))
        receiver.flush()
    receiver.sync()
    receiver.drop()
    sender.drop()
    owner.drop()


LOADS: Final[dict[str, Callable[[Address, int], None]]] = {
    "transient": publish_and_acknowledge,
    "persistent": lambda address, count: publish_and_acknowledge(address, count, durable=True),
    "single-acks": lambda address, count: publish_and_acknowledge(address, count, single=True),
    "fan-out": lambda address, count: publish_and_acknowledge(address, count, queues=10),
    "amqp1-transient": transfer_and_settle,
}


def count_instructions(checkout: Path, load: Callable[[Address, int], None], count: int) -> int:
    """Return the instructions of a checkout's broker from start to end, serving `count` messages."""
    with tempfile.TemporaryDirectory(prefix="leveret-instructions-") as name:
        directory = Path(name)
        (directory / "leveret.toml").write_text(CONFIG)
        ready = directory / "ready"
        report = directory / "report"
        command = [
            "valgrind",
            "--tool=cachegrind",
            "--cache-sim=no",
            f"--log-file={report}",
            f"--cachegrind-out-file={directory / 'profile'}",
            sys.executable,
            "-m",
            "leveret",
            "serve",
            "--config",
            str(directory / "leveret.toml"),
            "--data-dir",
            str(directory / "data"),
            "--ready-file",
            str(ready),
        ]
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "PYTHONHASHSEED": "0"}
        if (checkout / "src" / "leveret" / "management" / "http").exists():
            environment["LEVERET_MANAGEMENT__ENABLED"] = "false"
        with (directory / "log").open("wb") as log:
            broker = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=directory)
        try:
            while not ready.exists():
                if broker.poll() is not None:
                    raise SystemExit((directory / "log").read_text())
                time.sleep(0.05)
            found = json.loads(ready.read_text())
            load((found["host"], found["port"]), count)
            broker.send_signal(signal.SIGTERM)
            broker.wait(120)
        finally:
            broker.kill()
            broker.wait()
        if "(compiled" not in (directory / "log").read_text():
            raise SystemExit(f"{checkout} is not compiled: run make compiled there")
        return counted(report.read_text())


def counted(report: str) -> int:
    """Return the number of instructions in a report of Cachegrind."""
    found = COUNTED.search(report)
    if found is None:
        raise ValueError(f"no count of instructions in the report: {report[-200:]!r}")
    return int(found[1].replace(",", ""))


def for_message(checkout: Path, load: Callable[[Address, int], None], count: int) -> float:
    """Return the instructions per message, without the start and the end of the broker."""
    return (count_instructions(checkout, load, FEW + count) - count_instructions(checkout, load, FEW)) / count


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.instructions", description="Compare the instructions of two checkouts."
    )
    parser.add_argument("other", type=Path, help="the checkout to compare with; ratios are this one's to that one's")
    parser.add_argument("--messages", type=int, default=30_000, help="messages per load (default 30,000)")
    parser.add_argument("--only", action="append", choices=LOADS, help="default: all loads")
    chosen = parser.parse_args()
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed (Debian: apt install valgrind)")
    if chosen.messages < BATCH or chosen.messages % BATCH:
        parser.error(f"--messages must be a multiple of {BATCH}")
    table = Table("load", "instructions per message", "other checkout", "ratio")
    for name in chosen.only or LOADS:
        here, other = (for_message(checkout, LOADS[name], chosen.messages) for checkout in (ROOT, chosen.other.resolve()))
        table.add_row(name, f"{here:,.0f}", f"{other:,.0f}", f"{here / other:.3f} x")
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
