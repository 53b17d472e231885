"""The cost of messages in a cluster: processor time by process, and the throughput of nodes with a limited processor.

    python -m bench.cluster_cost cpu      seconds per 100,000 messages: at the owner, through another node, and over SQLite
    python -m bench.cluster_cost quota    three nodes against one, each in a cgroup with 15 % of a core; needs root

The load is that of one publisher and one consumer for each vhost: 256 bytes, confirms, a window of 200.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from bench.cluster_rig import VHOSTS, Rig, TlsRig
from bench.generator import Load
from bench.shards import TICKS
from bench.workloads import BATCHED
from tests.cluster.test_nodes import Node
from tests.support.broker import LeveretProcess
from tests.support.processes import family

LOAD: Final = (*BATCHED, "--durable", "--warmup", "1")
CGROUPS: Final = Path("/sys/fs/cgroup/cpu")
PERIOD: Final = 100_000
# Returns the ids of the processes as they are now.
Processes: TypeAlias = Callable[[], list[int]]
COMPILED: Final = {"LEVERET_PURE": "0"}


def run_at(ports: dict[str, int], seconds: float, number: int) -> dict[str, float]:
    """Run the load in vhosts at once, each through a port. Return the delivered messages of each vhost."""
    span = ("--seconds", str(seconds), "--prefix", f"cost-{number}")
    running = {vhost: Load(port, "run", "--vhost", vhost, *LOAD, *span) for vhost, port in ports.items()}
    return {vhost: float(load.result(180)["delivered"]) for vhost, load in running.items()}


def spent(pids: list[int]) -> float:
    """Return the processor seconds of processes, and of those that they have started and that have ended."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue  # its parent counts it
        total += sum(map(int, fields[11:15]))
    return total / TICKS


def measure(title: str, port: int, processes: dict[str, Processes], seconds: float, number: int) -> None:
    """Print the processor seconds of processes per 100,000 messages of the default vhost."""
    before = {name: spent(pids()) for name, pids in processes.items()}
    delivered = run_at({"/": port}, seconds, number)["/"] * (seconds + 1) / seconds
    used = {name: (spent(pids()) - before[name]) / delivered * 1e5 for name, pids in processes.items()}
    print(f"{title:14} {delivered:9,.0f} messages  " + ", ".join(f"{name} {cost:.3f} s" for name, cost in used.items()))


def cpu(seconds: float, rounds: int, *, tls: bool) -> None:
    """Print the costs at the owner, through another node, and over SQLite."""
    with ExitStack() as stack:
        rig = (TlsRig if tls else Rig)(stack, settings=COMPILED)
        rig.start()
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leveret-cost-")))
        sqlite = stack.enter_context(LeveretProcess(directory, environment=COMPILED).start())
        owner = rig.owner(0)
        other = next(node for node in rig.nodes if node is not owner)
        assert rig.standby is not None and rig.standby.process is not None and rig.primary.process is not None
        servers = {"primary": rig.primary.process.pid, "standby": rig.standby.process.pid}
        print(next(line for line in sqlite.log().splitlines() if line.startswith("Leveret")))
        for number in range(rounds):
            shard = rig.shard_in(owner, 0)[0]
            behind: dict[str, Processes] = {name: partial(family, pid) for name, pid in servers.items()}
            behind |= {"shard": partial(list, [shard]), "front": partial(list, [owner.pid])}
            measure("owner", owner.port, behind, seconds, 3 * number)
            measure("another node", other.port, {**behind, "relay": partial(list, [other.pid])}, seconds, 3 * number + 1)
            measure("SQLite", sqlite.port, {"broker": partial(list, [sqlite.pid])}, seconds, 3 * number + 2)


@contextmanager
def limited(node: Node, share: float) -> Iterator[None]:
    """Limit all processes of a node to a share of a core."""
    group = CGROUPS / f"leveret-{os.getpid()}-{node.directory.name}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD * share)))
        for pid in family(node.pid):
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for line in (group / "cgroup.procs").read_text().split():
            (CGROUPS / "cgroup.procs").write_text(line)
        group.rmdir()


def rate(count: int, share: float, seconds: float, rounds: int, seed: int) -> list[float]:
    """Return the messages per second of all vhosts, for a number of nodes. Each vhost has its clients at a random node."""
    chance = random.Random(seed)
    found = []
    with ExitStack() as stack:
        # The lease of a process that may run for 15 ms in 100.
        rig = Rig(stack, count=count, settings={**COMPILED, "LEVERET_CLUSTER__LEASE": "5"})
        rig.start()
        for node in rig.nodes:
            stack.enter_context(limited(node, share))
        for number in range(rounds):
            ports = {vhost: chance.choice(rig.nodes).port for vhost in VHOSTS}
            found.append(sum(run_at(ports, seconds, number).values()) / seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster_cost", description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=["cpu", "quota"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tls", action="store_true", help="between the nodes")
    parser.add_argument("--share", type=float, default=0.15, help="of a core for each node")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.what == "cpu":
        cpu(chosen.seconds, chosen.rounds, tls=chosen.tls)
        return
    one, three = (rate(count, chosen.share, chosen.seconds, chosen.rounds, chosen.seed) for count in (1, 3))
    print("1 node: ", ", ".join(f"{found:,.0f}/s" for found in one))
    print("3 nodes:", ", ".join(f"{found:,.0f}/s" for found in three))
    print(f"{sorted(three)[len(three) // 2] / sorted(one)[len(one) // 2]:.2f} x")


if __name__ == "__main__":
    main()
