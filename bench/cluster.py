"""Faults in a cluster of three nodes over PostgreSQL, and what they cost.

    make bench-cluster ARGS="owner --rounds 20"     one piece: kills of the owner of a vhost, under load
    make bench-cluster ARGS="freeze --minutes 2"    as many rounds as fit
    make bench-cluster ARGS=report                  all pieces of this commit and others, as a table

Scenarios:

- owner: kill -9 of a shard's process, of its front, or of both; node: of all processes of a node;
- freeze: SIGSTOP of a shard's process, of a front, or of a node, and SIGCONT;
- clock: the clocks of nodes are set by up to an hour, and the owner of a vhost is killed; needs faketime;
- promote: the primary of PostgreSQL is killed, its synchronous standby promoted, and the old primary comes back;
- partition: a node is cut off from PostgreSQL, from the others and its clients, or from all; needs root;
- proxy: proxies cut, delay or stall connections between nodes, and between a node and PostgreSQL;
- tls: the same with TLS between the nodes, in which proxies also repeat data;
- move of a shard; rolling: drain, stop and start one node after another;
- soak: full speed for 20 seconds with checkpoints and VACUUM FULL of another table: no shard may change its owner.

Publishers, consumers and definers of three vhosts work all the time; their history is checked at the end of the piece. Each
piece appends a line of JSON to `build/cluster/results.jsonl`. Exits with 1 if the history breaks an invariant, or a round
does not end; then the logs of the nodes and of PostgreSQL are in `build/cluster/SCENARIO-SEED`. The table has the time
between two confirms of a client that comes back at once. A shard that dies again within a minute is not restarted at once,
but taken over by another node.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from bench.cluster_faults import ROUNDS, TAKE_OVER, Load  # noqa: E402
from bench.cluster_network import NetworkRig  # noqa: E402
from bench.cluster_proxies import ProxyRig, TlsProxyRig  # noqa: E402
from bench.cluster_rig import ClockRig, Rig  # noqa: E402
from tests.cluster.test_nodes import Refused  # noqa: E402
from tests.support.postgres import execute, obstacle  # noqa: E402

RIGS = {"partition": NetworkRig, "clock": ClockRig, "proxy": ProxyRig, "tls": TlsProxyRig}
RESULTS = ROOT / "build" / "cluster" / "results.jsonl"
# Seconds for a round, of which each wait has a shorter limit of its own.
ROUND_TIMEOUT = 120.0


def rig_state(rig: Rig) -> list[object]:
    """Return what the connections of the primary wait for, its standbys, and what the nodes show."""
    server = rig.primary.dsn("postgres")
    waits = "SELECT application_name, state, wait_event, left(query, 60) FROM pg_stat_activity WHERE datname IS NOT NULL"
    found: list[object] = [*execute(server, waits)]
    found += execute(server, "SELECT application_name, state, sync_state FROM pg_stat_replication")
    for node in rig.nodes:
        for operation in ("shards.list", "connections.list"):
            try:
                found.append((node.directory.name, node.ask(operation)))
            except (Refused, OSError, ValueError) as error:
                found.append((node.directory.name, operation, error))
    return found


async def play(load: Load, scenario: str, rounds: int, until: float) -> dict[str, list[float]]:
    """Run rounds of a scenario. Returns the gaps by kind."""
    gaps: dict[str, list[float]] = defaultdict(list)
    await load.start()
    for number in range(rounds):
        if time.monotonic() > until:
            break
        try:
            async with asyncio.timeout(ROUND_TIMEOUT):
                kind, gap = await ROUNDS[scenario](load)
        except (AssertionError, TimeoutError) as error:
            load.wrong.append(f"round {number + 1}: {error!r}")
            load.wrong += [f"PostgreSQL: {row}" for row in rig_state(load.rig)]
            print(*load.wrong, sep="\n", flush=True)
            break
        gaps[kind].append(round(gap, 3))
        print(f"{number + 1:4} {kind:15} {gap:6.3f} s  {load.detail}", flush=True)
        if load.wrong:
            break
    await load.finish()
    return gaps


def keep_logs(rig: Rig, directory: Path) -> None:
    """Copy the logs of the nodes and of PostgreSQL to a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for node in rig.nodes:
        (directory / f"{node.directory.name}.log").write_text(node.log(), "utf-8")
    for name, server in (("primary", rig.primary), ("standby", rig.standby)):
        if server is not None:
            shutil.copy(server.directory / "server.log", directory / f"{name}.log")
    print(f"logs: {directory}", file=sys.stderr)


def run(arguments: argparse.Namespace) -> int:
    """Run a piece, and append its line to the results."""
    # The history has millions of tuples after a while: a collection would stop all clients for seconds.
    gc.disable()
    begun = time.monotonic()
    with ExitStack() as stack:
        rig = RIGS.get(arguments.scenario, Rig)(stack, replicated=not arguments.one_disk)
        rig.start()
        load = Load(rig, arguments.seed, arguments.waiting, 0.0 if arguments.scenario == "soak" else 0.005)
        until = begun + arguments.minutes * 60
        gaps = asyncio.run(play(load, arguments.scenario, arguments.rounds, until))
        if load.wrong or any(kind == TAKE_OVER for kind in gaps):
            keep_logs(rig, RESULTS.parent / f"{arguments.scenario}-{arguments.seed}")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    line = {
        "commit": commit.stdout.strip(),
        "scenario": arguments.scenario,
        "seed": arguments.seed,
        "replicated": not arguments.one_disk,
        "waiting": arguments.waiting,
        "seconds": round(time.monotonic() - begun),
        "load": os.getloadavg()[0],
        "gaps": gaps,
        "confirmed": sum(len(lane.confirmed) for lane in load.lanes),
        "wrong": load.wrong,
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a") as results:
        results.write(json.dumps(line) + "\n")
    for text in load.wrong:
        print(text, file=sys.stderr)
    report([line])
    return 1 if load.wrong else 0


def report(lines: list[dict[str, Any]]) -> None:
    """Print a table of pieces."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for line in lines:
        for kind, gaps in line["gaps"].items():
            found[line["scenario"], kind] += gaps
        totals[line["scenario"]][0] += line["confirmed"]
        totals[line["scenario"]][1] += len(line["wrong"])
    print(f"{'scenario':10} {'kind':15} {'rounds':>6} {'median s':>9} {'worst s':>8}")
    for (scenario, kind), gaps in sorted(found.items()):
        print(f"{scenario:10} {kind:15} {len(gaps):6} {sorted(gaps)[len(gaps) // 2]:9.2f} {max(gaps):8.2f}")
    for scenario, (confirmed, wrong) in sorted(totals.items()):
        print(f"{scenario}: {confirmed} confirmed, {wrong} broken invariants")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=[*ROUNDS, "report"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=2.5, help="no round begins later")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--waiting", type=int, default=10_000, help="messages that wait in each vhost")
    parser.add_argument("--one-disk", action="store_true", help="PostgreSQL without a standby")
    arguments = parser.parse_args()
    if arguments.scenario == "report":
        report([json.loads(line) for line in RESULTS.read_text().splitlines()])
        return 0
    if missing := obstacle():
        parser.error(f"PostgreSQL is needed: {missing}")
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
