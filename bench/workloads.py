"""The workloads and their target ratios to RabbitMQ. All brokers run with the same options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.brokers import ARTEMIS, COMPILED, PURE
from bench.references import DISK, ECHO

THROUGHPUT = "messages/s"
APPENDED = "appended/s"
LATENCY = "p99"
OLD = ("--0-9",)
AMQP1 = ("--publish-1.0", "--consume-1.0")
BATCHED = ("--window", "200", "--prefetch", "500", "--ack-every", "50", "--size", "256")
APPEND = ("--window", "200", "--size", "256", "--consumers", "0")
LARGE = ("--window", "200", "--max-backlog", "2000", "--prefetch", "500", "--ack-every", "50", "--size", "16384")
MEGABYTE = (
    "--window",
    "8",
    "--batch",
    "4",
    "--max-backlog",
    "64",
    "--prefetch",
    "64",
    "--ack-every",
    "4",
    "--size",
    "1048576",
)
# AMQP 0-9 has no confirms. Instead, the number of undelivered messages bounds a publisher.
UNCONFIRMED = ("--window", "0", "--max-backlog", "1000", "--prefetch", "500", "--ack-every", "50", "--size", "256")
# The publisher sends without regard to its backlog.
FLOOD = ("--window", "0", "--no-ack", "--size", "16", "--max-backlog", "0")
RATE = 2000


@dataclass(frozen=True)
class Beside:
    """A comparison of Leveret with another broker than RabbitMQ, or with another workload.

    title     the row's title in the table
    target    the minimum ratio for throughput, the maximum for latency
    broker    another broker with the same load, or
    workload  the same broker with another load
    """

    title: str
    target: float
    broker: str = ""
    workload: str = ""


@dataclass(frozen=True)
class Workload:
    """A row of the table.

    measure  THROUGHPUT (messages delivered per second, more is better), APPENDED (messages confirmed per second) or LATENCY
             (p99 from the publisher to the consumer, less is better)
    targets  by broker: the minimum ratio to RabbitMQ for throughput, the maximum for latency; a ratio without a target is
             only shown
    slow     run on a disk with 2 ms more per sync
    beside   further comparisons
    before   a load that fills the queues, which is not measured
    reference  what the machine reaches without a broker, measured in each round: ECHO, DISK, or "" for nothing
    """

    name: str
    title: str
    options: tuple[str, ...]
    targets: dict[str, float]
    measure: str = THROUGHPUT
    slow: bool = False
    beside: tuple[Beside, ...] = ()
    before: tuple[str, ...] = ()
    reference: str = ""

    @property
    def size(self) -> int:
        """Return the size of a body in bytes."""
        return int(self.options[self.options.index("--size") + 1])

    @property
    def counted(self) -> str:
        """Return the field of the generator's result to count."""
        return "confirmed" if self.measure == APPENDED else "delivered"

    @property
    def only_amqp10(self) -> bool:
        """Return whether brokers that speak only AMQP 1.0 can run the workload."""
        return set(AMQP1) <= set(self.options)

    def value(self, result: dict[str, Any]) -> float:
        """Return the figure to compare."""
        if self.measure == LATENCY:
            return float(result["latency_us"]["p99"])
        return float(result[self.counted]) / float(result["seconds"])

    def reached(self, broker: str, ratio: float) -> bool | None:
        """Return whether the target is met, None if there is none."""
        target = self.targets.get(broker)
        return None if target is None else self.meets(ratio, target)

    def meets(self, ratio: float, target: float) -> bool:
        """Return whether a ratio of two results meets a target."""
        return ratio <= target if self.measure == LATENCY else ratio >= target


def targets(pure: float, compiled: float) -> dict[str, float]:
    return {PURE: pure, COMPILED: compiled}


THIRD = 0.333


DEEP = "200000"


def _own(workload: str, target: float) -> Beside:
    return Beside("0-9-1", target, workload=workload)


def _queue(workload: str, target: float) -> Beside:
    return Beside("classic queue", target, workload=workload)


WORKLOADS = [
    Workload("transient", "256 B transient, confirms, acks of 50", BATCHED, targets(2.5, 5)),
    Workload("persistent", "256 B persistent, confirms, acks of 50", (*BATCHED, "--durable"), targets(3, 8)),
    Workload(
        "persistent-four",
        "256 B persistent, 4 publishers, 4 consumers, 4 queues",
        (*BATCHED, "--durable", "--publishers", "4", "--consumers", "4", "--queues", "4"),
        targets(3, 14),
    ),
    Workload("no-ack", "16 B, no confirms, no acks", ("--window", "0", "--no-ack", "--size", "16"), targets(1.5, 3)),
    Workload("flood", "the same, never pausing", FLOOD, targets(1.5, 3)),
    Workload(
        "unbatched",
        "50 publishers, each awaits every confirm",
        ("--publishers", "50", "--window", "1", "--batch", "1"),
        targets(1.5, 2),
    ),
    Workload(
        "prefetch-1",
        "10 consumers with prefetch 1",
        ("--consumers", "10", "--prefetch", "1", "--ack-every", "1", "--max-backlog", "2000"),
        targets(1.5, 2),
    ),
    Workload("single-acks", "single acks in random order", (*BATCHED, "--ack-single"), targets(1.5, 2)),
    Workload(
        "four-queues",
        "4 publishers, 4 consumers, 4 queues",
        (*BATCHED, "--publishers", "4", "--consumers", "4", "--queues", "4"),
        targets(2, 3),
    ),
    Workload(
        "fan-out",
        "fan-out to 10 queues",
        (*BATCHED, "--exchange", "fanout", "--queues", "10", "--consumers", "10"),
        targets(2, 3),
    ),
    Workload(
        "topic",
        "topic exchange with 10,000 bindings",
        (*BATCHED, "--exchange", "topic", "--bindings", "10000", "--queues", "10", "--consumers", "10"),
        targets(2, 3),
    ),
    Workload(
        "latency",
        "p99 at 2,000 messages/s, transient",
        ("--rate", str(RATE), "--ack-every", "1"),
        targets(1, 0.5),
        measure=LATENCY,
        beside=(Beside("asyncio echo", 1.5, broker=ECHO),),
        reference=ECHO,
    ),
    Workload(
        "latency-persistent",
        "p99 at 2,000 messages/s, persistent",
        ("--rate", str(RATE), "--ack-every", "1", "--durable"),
        targets(1, 0.5),
        measure=LATENCY,
    ),
    Workload(
        "slow-disk",
        "persistent, 2 ms more a sync, 8 publishers",
        ("--durable", "--publishers", "8", "--consumers", "4", "--queues", "4", "--window", "1000"),
        targets(1.5, 1.5),
        slow=True,
    ),
    Workload(
        "large",
        "16 KiB transient, confirms, acks of 50",
        LARGE,
        targets(2, 4),
        beside=(Beside("asyncio echo", 0.7, broker=ECHO),),
        reference=ECHO,
    ),
    Workload(
        "large-1m",
        "1 MiB transient, confirms, acks of 4",
        MEGABYTE,
        targets(2, 2),
        beside=(Beside("asyncio echo", 0.7, broker=ECHO),),
        reference=ECHO,
    ),
    Workload(
        "large-persistent",
        "16 KiB persistent, confirms, acks of 50",
        (*LARGE, "--durable"),
        targets(2, 3),
        beside=(Beside("the disk", 0.35, broker=DISK),),
        reference=DISK,
    ),
    Workload("large-amqp1", "AMQP 1.0, 16 KiB transient, settled in ranges of 50", (*LARGE, *AMQP1), {}),
    Workload("large-0-9", "AMQP 0-9, 16 KiB transient, acks of 50", (*UNCONFIRMED[:-1], "16384", *OLD), {}),
    Workload("unconfirmed", "256 B transient, no confirms, acks of 50", UNCONFIRMED, {}),
    Workload("unconfirmed-persistent", "256 B persistent, no confirms, acks of 50", (*UNCONFIRMED, "--durable"), {}),
    Workload(
        "0-9-transient",
        "AMQP 0-9, 256 B transient, acks of 50",
        (*UNCONFIRMED, *OLD),
        {},
        beside=(_own("unconfirmed", 0.9),),
    ),
    Workload(
        "0-9-persistent",
        "AMQP 0-9, 256 B persistent, acks of 50",
        (*UNCONFIRMED, *OLD, "--durable"),
        {},
        beside=(_own("unconfirmed-persistent", 0.9),),
    ),
    Workload(
        "amqp1-transient",
        "AMQP 1.0, 256 B transient, unsettled, settled in ranges of 50",
        (*BATCHED, *AMQP1),
        targets(3, 3),
        beside=(_own("transient", 0.5), Beside("Artemis", 1.5, broker=ARTEMIS)),
    ),
    Workload(
        "amqp1-persistent",
        "AMQP 1.0, 256 B persistent, unsettled, settled in ranges of 50",
        (*BATCHED, *AMQP1, "--durable"),
        targets(3, 3),
        beside=(_own("persistent", 0.5), Beside("Artemis", 1.5, broker=ARTEMIS)),
    ),
    Workload(
        "0-9-1-to-amqp1",
        "256 B transient, 0-9-1 in, AMQP 1.0 out",
        (*BATCHED, "--consume-1.0"),
        {},
        beside=(_own("transient", THIRD),),
    ),
    Workload(
        "amqp1-to-0-9-1",
        "256 B transient, AMQP 1.0 in, 0-9-1 out",
        (*BATCHED, "--publish-1.0"),
        {},
        beside=(_own("transient", THIRD),),
    ),
    Workload("properties", "256 B transient with ids, time and headers", (*BATCHED, "--properties"), {}),
    Workload(
        "amqp1-properties", "AMQP 1.0, the same", (*BATCHED, *AMQP1, "--properties"), {}, beside=(_own("properties", 0.5),)
    ),
    Workload(
        "0-9-1-to-amqp1-properties",
        "the same, 0-9-1 in, AMQP 1.0 out",
        (*BATCHED, "--consume-1.0", "--properties"),
        {},
        beside=(_own("properties", THIRD),),
    ),
    Workload(
        "amqp1-to-0-9-1-properties",
        "the same, AMQP 1.0 in, 0-9-1 out",
        (*BATCHED, "--publish-1.0", "--properties"),
        {},
        beside=(_own("properties", THIRD),),
    ),
    Workload(
        "append",
        "256 B persistent, confirms, into a queue without a consumer",
        (*APPEND, "--durable"),
        {},
        measure=APPENDED,
    ),
    Workload(
        "stream-append",
        "the same into a stream",
        (*APPEND, "--durable", "--stream"),
        {},
        measure=APPENDED,
        beside=(_queue("append", 0.8),),
    ),
    # Not compared with the classic queue, which need not write messages that are acknowledged before the commit.
    Workload("stream", "256 B into a stream with confirms, read by one", (*BATCHED, "--durable", "--stream"), {}),
    Workload(
        "stream-readers",
        "256 B into a stream with confirms, read by 10",
        (*BATCHED, "--durable", "--stream", "--consumers", "10"),
        {},
    ),
    Workload(
        "stream-deep",
        f"{int(DEEP):,} messages of a stream, read from its beginning",
        (*BATCHED, "--stream", "--offset", "first", "--publishers", "0", "--messages", DEEP, "--keep"),
        {},
        before=(*APPEND, "--durable", "--stream", "--messages", DEEP, "--keep"),
    ),
]
