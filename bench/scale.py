"""`make bench-scale`: many connections, many queues, one deep queue, publishers that never pause, and what a
message costs as each of them grows.

    make bench-scale                              all commands, about twenty-five minutes
    make bench-scale ARGS="idle --connections 10000"
    make bench-scale ARGS="deep --messages 10000000"
    make bench-scale ARGS="declares --queues 100000"
    make bench-scale ARGS="overload --seconds 60"
    make bench-scale ARGS="growth --line bindings --limit 100000"

Each command takes --broker compiled (if the modules are compiled), pure or rabbitmq.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench import brokers, generator, growth, workloads

# The load of the other queue, whose latency must not suffer: few messages, durable, with confirms.
BYSTANDER = ("--rate", "1000", "--durable", "--ack-every", "1", "--prefix", "bystander", "--warmup", "1")
BYSTANDER_SECONDS = 8
# Seconds for which the processor time of an idle broker is measured.
IDLE_SECONDS = 10


def status(pid: int, field: str) -> float:
    """Return a size from /proc/PID/status in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise ValueError(field)


def say(text: str) -> None:
    print(text, flush=True)


def judge(what: str, value: float, limit: float, unit: str) -> dict[str, Any]:
    """Print a figure with its limit."""
    met = value <= limit
    say(f"  {what}: {value:,.1f} {unit} (at most {limit:,.1f} {unit}: {'yes' if met else 'NO'})")
    return {"value": value, "limit": limit, "unit": unit, "met": met}


def settled_memory(pid: int, seconds: float = 10) -> float:
    """Return the resident memory once it changes by less than 1 MB per second, or after some seconds."""
    before = status(pid, "VmRSS")
    for _ in range(int(seconds)):
        time.sleep(1)
        now = status(pid, "VmRSS")
        if abs(now - before) < 1:
            return now
        before = now
    return before


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share_of_core(pid: int, seconds: float) -> float:
    """Return the percentage of a core that a process uses during this time."""
    before, began = processor_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (processor_seconds(pid) - before) / (time.monotonic() - began)


# Options of the load generator for the protocols of idle connections.
IDLE_PROTOCOLS: Final = {"0-9-1": (), "0-9": ("--0-9", "--window", "0"), "1.0": ("--consume-1.0",)}


def open_connections(port: int, count: int, heartbeat: int, protocol: str) -> generator.Load:
    """Open idle connections with a channel each, or a session. They stay open until the result of the load is read."""
    options = ("--messages", str(count), "--heartbeat", str(heartbeat))
    load = generator.Load(port, "idle", *options, *IDLE_PROTOCOLS[protocol])
    if not load.line():
        raise SystemExit(f"opening connections failed: {load.process.communicate()[1].strip()}")
    return load


def idle(chosen: argparse.Namespace, contender: brokers.Contender) -> dict[str, Any]:
    """Measure the memory of idle connections with a channel each, and the processor time of their heartbeats."""
    # Open some connections first, so that the modules and buffers that they need do not count as the cost of a connection.
    generator.run(contender.port, "run", "--seconds", "0.5", "--warmup", "0", "--prefix", "idle")
    open_connections(contender.port, 10, chosen.heartbeat, chosen.protocol).result()
    bare = settled_memory(contender.pid)
    alone = share_of_core(contender.pid, IDLE_SECONDS)
    began = time.monotonic()
    load = open_connections(contender.port, chosen.connections, chosen.heartbeat, chosen.protocol)
    took = time.monotonic() - began
    full = settled_memory(contender.pid)
    busy = share_of_core(contender.pid, max(IDLE_SECONDS, chosen.heartbeat / 2))
    load.result()
    say(f"  opened {chosen.connections} connections of AMQP {chosen.protocol} in {took:.1f} s; {bare:.0f} MB before")
    scale = chosen.connections / 10_000
    return {
        "connections": chosen.connections,
        "protocol": chosen.protocol,
        "heartbeat": chosen.heartbeat,
        "seconds": took,
        "bare_mb": bare,
        "memory": judge("memory of a connection", (full - bare) * (1 << 20) / chosen.connections, 6000, "bytes"),
        "heartbeats": judge("heartbeats", busy - alone, 3 * scale * 60 / chosen.heartbeat, "% of a core"),
    }


def declares(chosen: argparse.Namespace, contender: brokers.Contender) -> dict[str, Any]:
    """Declare durable queues one by one, awaiting each reply, and restart with them."""
    generator.run(contender.port, "declare", "--durable", "--messages", "1", "--prefix", "first")
    bare = settled_memory(contender.pid)
    found = generator.run(contender.port, "declare", "--durable", "--messages", str(chosen.queues), timeout=3600)
    thousands = found["milliseconds_per_thousand"]
    declared = settled_memory(contender.pid)
    say(
        f"  {chosen.queues} queues in {found['seconds']:.1f} s, {chosen.queues / found['seconds']:,.0f} per second; "
        f"first thousand {thousands[0]:.0f} ms, last {thousands[-1]:.0f} ms; {declared:.0f} MB"
    )
    began = time.monotonic()
    contender.stop()
    stopped = time.monotonic()
    contender.start()
    started = time.monotonic()
    say(f"  stopped in {stopped - began:.1f} s")
    scale = chosen.queues / 100_000
    restarted = settled_memory(contender.pid)
    return {
        **found,
        "bare_mb": bare,
        "declared_mb": declared,
        "stop_seconds": stopped - began,
        "slow_down": judge("last thousand relative to the first", thousands[-1] / thousands[0], 2, "x"),
        "restart": judge("restart", started - stopped, 2 * scale, "s"),
        "memory": judge("memory of a queue after the restart", (restarted - bare) * 1024 / chosen.queues, 2, "KiB"),
    }


def beside(contender: brokers.Contender, work: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run `work` while the other queue has its load. Returns the results of both."""
    load = generator.Load(contender.port, "run", *BYSTANDER, "--seconds", "1000000")
    try:
        done = work()
    finally:
        bystander = load.stop()
    return done, bystander


def deep(chosen: argparse.Namespace, contender: brokers.Contender) -> dict[str, Any]:
    """Measure a queue with millions of persistent messages: memory, restart, drain, and the effect on another queue."""
    count = chosen.messages
    port = contender.port
    bare = settled_memory(contender.pid)
    alone = generator.run(port, "run", *BYSTANDER, "--seconds", str(BYSTANDER_SECONDS))
    say(f"  another queue's p99 alone: {alone['latency_us']['p99'] / 1e3:.2f} ms; {bare:.0f} MB")
    common = ("--durable", "--keep", "--prefix", "deep", "--size", "256", "--messages", str(count))

    filled, during_fill = beside(
        contender,
        lambda: generator.run(
            port,
            "run",
            *common,
            "--publishers",
            "4",
            "--consumers",
            "0",
            "--window",
            "500",
            watch=contender.pid,
            timeout=7200,
        ),
    )
    say(f"  filled at {filled['confirmed'] / filled['seconds']:,.0f} messages/s in {filled['seconds']:.0f} s")
    peak_filling = status(contender.pid, "VmHWM")
    resting = settled_memory(contender.pid)

    contender.stop()
    began = time.monotonic()
    contender.start(timeout=1800)
    listening = time.monotonic() - began
    # The reply has the number of messages, so it waits until all of them are indexed.
    generator.run(contender.port, "declare", "--durable", "--messages", "1", "--prefix", "deep", timeout=1800)
    restart = time.monotonic() - began
    say(f"  listening after {listening:.2f} s")
    restarted = status(contender.pid, "VmHWM")

    drained, during_drain = beside(
        contender,
        lambda: generator.run(
            contender.port, "run", *common, "--publishers", "0", "--consumers", "1", watch=contender.pid, timeout=7200
        ),
    )
    say(f"  drained at {drained['delivered'] / drained['seconds']:,.0f} messages/s in {drained['seconds']:.0f} s")
    peak_draining = status(contender.pid, "VmHWM")

    base = max(alone["latency_us"]["p99"], 1)
    say(
        f"  memory: {resting:.0f} MB full and idle; peaks {peak_filling:.0f} MB filling, {restarted:.0f} MB starting, "
        f"{peak_draining:.0f} MB draining"
    )
    scale = count / 10_000_000
    return {
        "messages": count,
        "alone": alone,
        "fill": filled,
        "drain": drained,
        "resting_mb": resting,
        "listening_seconds": listening,
        "during_fill": during_fill,
        "during_drain": during_drain,
        "memory": judge("peak memory", max(peak_filling, restarted, peak_draining), 1024, "MB"),
        "restart": judge("restart", restart, max(60 * scale, 2), "s"),
        "p99_fill": judge("other queue's p99 while filling", during_fill["latency_us"]["p99"] / base, 2, "x"),
        "p99_drain": judge("other queue's p99 while draining", during_drain["latency_us"]["p99"] / base, 2, "x"),
    }


def grow(chosen: argparse.Namespace, contender: brokers.Contender) -> dict[str, Any]:
    """Measure how the cost of a message grows with queues, bindings, connections, consumers, depth and body size."""
    costs = {name: growth.measure(growth.LINES[name], contender, say, chosen.limit) for name in chosen.line or growth.LINES}
    say(growth.table(costs))
    chosen.output.mkdir(parents=True, exist_ok=True)
    (chosen.output / "growth.svg").write_text(growth.chart(costs))
    return {"microseconds": costs}


# Publishers without confirms that never pause; latency counts from the call that sends.
FLOOD = (*workloads.FLOOD, "--prefix", "flood")
# Messages per second that a slow consumer reads.
SLOW_RATE = 20_000
# A publisher of an idle queue beside the flood.
IDLE_RATE = 10_000
MAX_MEMORY_PER_MESSAGE = 64


def overload(chosen: argparse.Namespace, contender: brokers.Contender) -> dict[str, Any]:
    """Measure publishers that send more than the broker delivers, and what they do to other queues."""
    port = contender.port
    span = ("--seconds", str(chosen.seconds), "--warmup", "2")
    alone = generator.run(port, "run", *BYSTANDER, "--seconds", str(BYSTANDER_SECONDS))
    base = max(alone["latency_us"]["p99"], 1)
    say(f"  another queue's p99 alone: {base / 1e3:.2f} ms")

    flood = generator.run(port, "run", *FLOOD, *span, watch=contender.pid, timeout=7200)
    rate = flood["delivered"] / flood["seconds"]
    median, tail = (flood["latency_us"][name] / 1e3 for name in ("p50", "p99"))
    say(f"  one publisher and one consumer: {rate:,.0f} messages/s, {flood['backlog']:,} waiting at the end")

    idle_queue = ("--rate", str(IDLE_RATE), "--window", "0", "--no-ack", "--prefix", "idle", *span)
    busy = generator.Load(port, "run", *FLOOD, "--seconds", "1000000")
    try:
        during_flood = generator.run(port, "run", *idle_queue, timeout=7200)
    finally:
        busy.stop()
    reached = during_flood["delivered"] / during_flood["seconds"]

    slow = ("--publishers", "4", "--consume-rate", str(SLOW_RATE), "--warmup", "0", "--seconds", "1000000")
    before = status(contender.pid, "VmRSS")
    publishers = generator.Load(port, "run", *FLOOD, *slow, watch=contender.pid)
    try:
        # Without the time in which the queue is deleted.
        during_slow = generator.run(port, "run", *BYSTANDER, "--seconds", str(chosen.seconds), timeout=7200)
    finally:
        many = publishers.stop()
    waiting = max(many["published"] - many["delivered"], 1)
    grown = (many["broker_rss_kb"] / 1024 - before) * (1 << 20) / waiting
    say(
        f"  four publishers and a slow consumer: {many['published'] / many['seconds']:,.0f} messages/s in,"
        f" {many['delivered'] / many['seconds']:,.0f} out; {before:.0f} MB before,"
        f" {many['broker_rss_kb'] / 1024:.0f} MB after"
    )
    return {
        "alone": alone,
        "flood": flood,
        "idle_queue": during_flood,
        "slow_consumer": many,
        "during_slow_consumer": during_slow,
        "throughput": judge("time per message of the flood", 1e6 / rate, 1, "µs"),
        "median": judge("median latency of the flood", median, 50, "ms"),
        "p99": judge("p99 latency of the flood", tail, 150, "ms"),
        "idle": judge("slow-down of an idle queue's publisher beside the flood", IDLE_RATE / reached, 1.1, "x"),
        "memory": judge("memory per waiting message", grown, MAX_MEMORY_PER_MESSAGE, "bytes"),
        "p99_slow": judge("other queue's p99 beside the slow consumer", during_slow["latency_us"]["p99"] / base, 2, "x"),
    }


COMMANDS = {"idle": idle, "declares": declares, "deep": deep, "overload": overload, "growth": grow}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-scale", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("commands", nargs="*", choices=[*COMMANDS, []], help="what to measure (default: everything)")
    parser.add_argument("--broker", action="append", choices=brokers.SPEAK_0_9_1)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--heartbeat", type=int, default=60, help="seconds between heartbeats of idle connections")
    parser.add_argument("--protocol", choices=IDLE_PROTOCOLS, default="0-9-1", help="that of idle connections")
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--line", action="append", choices=list(growth.LINES), help="what grows (default: everything)")
    parser.add_argument("--limit", type=int, help="the largest value of each line (default: all of them)")
    parser.add_argument("--seconds", type=float, default=60, help="measured time of each overload (default 60)")
    parser.add_argument("--output", type=Path, default=generator.OUTPUT)
    chosen = parser.parse_args()
    with contextlib.suppress(ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    available = brokers.names()
    wanted = chosen.broker or [name for name in available if name != brokers.RABBIT][:1]
    results: dict[str, dict[str, Any]] = {}
    for command in chosen.commands or COMMANDS:
        for name in wanted:
            if name not in available:
                raise SystemExit(f"{brokers.TITLES[name]} is not available here")
            say(f"{command}: {brokers.TITLES[name]}")
            with (
                tempfile.TemporaryDirectory(prefix="leveret-scale-") as directory,
                brokers.running([name], Path(directory)) as contenders,
            ):
                results.setdefault(command, {})[name] = COMMANDS[command](chosen, contenders[0])
    chosen.output.mkdir(parents=True, exist_ok=True)
    (chosen.output / "scale.json").write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
