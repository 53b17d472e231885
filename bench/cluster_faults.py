"""Rounds of faults in a cluster under load. Each returns the time without confirms of a client that comes back at once."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from bench.cluster_history import Client, Consumer, Definer, Lane, Publisher, check_definitions, declare
from bench.cluster_network import NODES, POSTGRES, NetworkRig
from bench.cluster_proxies import CUT, DELAY, REPEAT, STALL, ProxyRig
from bench.cluster_rig import STANDBY, VHOSTS, Rig, frozen, signal_all
from tests.cluster.test_clocks import HOUR, set_clock
from tests.cluster.test_nodes import Node
from tests.support.polling import wait_until, wait_until_async
from tests.support.postgres import PostgresServer, execute
from tests.support.processes import family
from tests.support.proxy import Proxy

# The kind of a round of `soak` with one.
TAKE_OVER = "take-over"
# `cluster.lease` of the nodes.
LEASE = 0.6
# Seconds for confirms to come back, and for all messages to be delivered.
RECOVERY_TIMEOUT = 30.0
DRAIN_TIMEOUT = 90.0


@dataclass
class Load:
    """The clients of all vhosts, and what they have found."""

    rig: Rig
    seed: int
    waiting: int
    pause: float = 0.005
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.lanes = [Lane(vhost, self._found_wrong) for vhost in VHOSTS]
        nodes, seed = self.rig.nodes, self.seed % 600 * 100  # two bytes in a message
        # The movers leave the victim before a fault; the others are hit at random.
        self.movers = [Publisher(seed + number, lane, nodes, pause=self.pause) for number, lane in enumerate(self.lanes)]
        self.others = [
            Publisher(seed + 10 + number, lane, nodes, pause=self.pause) for number, lane in enumerate(self.lanes)
        ]
        self.consumers = [Consumer(seed + 20 + number, lane, nodes) for number, lane in enumerate(self.lanes)]
        self.definers = [Definer(seed + 30 + number, lane, nodes) for number, lane in enumerate(self.lanes)]
        self._tasks: list[asyncio.Task[None]] = []
        self._begun = time.monotonic()
        # Other findings of the last round.
        self.detail = ""

    def _found_wrong(self, text: str) -> None:
        self.wrong.append(f"{time.monotonic() - self._begun:.1f} s: {text}")

    @property
    def clients(self) -> list[Publisher | Consumer | Definer]:
        return [*self.movers, *self.others, *self.consumers, *self.definers]

    async def start(self) -> None:
        for lane in self.lanes:
            await declare(self.rig.nodes[0], lane.vhost, self.waiting)
        self._tasks = [asyncio.create_task(client.run()) for client in self.clients]
        await self.confirmed(self.movers, time.monotonic())

    async def confirmed(self, publishers: list[Publisher], since: float) -> None:
        """Wait until each publisher has got a confirm for a message that it has sent after a moment."""
        await wait_until_async(
            lambda: all(publisher.confirmed_sent > since for publisher in publishers) or self._raise_ended(),
            lambda: "no confirms: " + ", ".join(p.lane.vhost for p in publishers if p.confirmed_sent <= since),
            RECOVERY_TIMEOUT,
        )

    def _raise_ended(self) -> bool:
        for task in self._tasks:
            if task.done():
                task.result()
        return False

    async def other_owner(self, shard: int, victim: Node, since: float) -> None:
        """Wait until another node than the victim of a fault owns a shard."""
        await wait_until_async(lambda: self.rig.owner(shard) is not victim, "another owner", RECOVERY_TIMEOUT)
        self.detail = f"claimed after {time.monotonic() - since:.3f} s"

    async def avoid(self, publisher: Client, node: Node) -> None:
        """Have a publisher leave a node that is about to fail."""
        since = time.monotonic()
        publisher.leave(node)
        assert isinstance(publisher, Publisher)
        await self.confirmed([publisher], since)

    async def finish(self) -> None:
        """Stop publishing, wait until everything is delivered, and check."""
        for publisher in (*self.movers, *self.others):
            publisher.avoid = set()
            publisher.ending = True
        for definer in self.definers:
            definer.ending = True
        try:
            await wait_until_async(lambda: not any(lane.missing() for lane in self.lanes), "", DRAIN_TIMEOUT)
        except AssertionError:
            for lane in self.lanes:
                missing = sorted(lane.missing())
                if missing:
                    self.wrong.append(f"lost: {len(missing)} messages of vhost {lane.vhost}, such as {missing[:5]}")
        for consumer in self.consumers:
            consumer.ending = True
        _, late = await asyncio.wait(self._tasks, timeout=10)
        for task in late:
            task.cancel()
        for definer in self.definers:
            node = self.random.choice(self.rig.nodes)
            try:
                await check_definitions(node, definer, self.waiting, self.wrong.append)
            except TimeoutError:
                self.wrong.append(f"vhost {definer.vhost} does not answer at {node.directory.name}")
        self.wrong += self.rig.check_logs()


async def move(load: Load) -> tuple[str, float]:
    """Move a shard to another node."""
    rig = load.rig
    shard = load.random.randrange(len(VHOSTS))
    owner = rig.owner(shard)
    target = load.random.choice([node for node in rig.nodes if node is not owner])
    mover = load.movers[shard]
    since = time.monotonic()
    await in_thread(lambda: owner.ask("nodes.move", shard=shard, node=target.directory.name))
    await load.confirmed([mover], time.monotonic())
    return "move", mover.gap(since)


async def rolling(load: Load) -> tuple[str, float]:
    """Drain, stop and start one node after another. The time is the longest without a confirm of any publisher."""
    since = time.monotonic()
    before = {client: client.reconnects for client in load.clients}
    for node in load.rig.nodes:
        await in_thread(partial(node.ask, "nodes.drain", name=node.directory.name))
        await in_thread(node.stop)
        await in_thread(partial(load.rig.restart, node))
    await load.confirmed(load.movers, time.monotonic())
    counts = sorted(client.reconnects - count for client, count in before.items())
    load.detail = f"reconnects {counts}"
    return "rolling", max(publisher.gap(since) for publisher in (*load.movers, *load.others))


async def soak(load: Load) -> tuple[str, float]:
    """Work at full speed for 20 s, with checkpoints and VACUUM FULL of another table. No shard may change its owner."""
    rig = load.rig
    epochs = [rig.epoch(shard) for shard in range(len(VHOSTS))]
    server = rig.primary.dsn(rig.database)
    await in_thread(lambda: execute(server, "CREATE TABLE IF NOT EXISTS other AS SELECT generate_series(1, 200000) AS a"))
    since = time.monotonic()
    while time.monotonic() < since + 20:
        await in_thread(lambda: execute(server, "CHECKPOINT"))
        await in_thread(lambda: execute(server, "VACUUM FULL other"))
        await asyncio.sleep(1)
    changed = sum(rig.epoch(shard) != epoch for shard, epoch in enumerate(epochs))
    load.detail = f"{changed} false take-overs"
    return "20 s" if not changed else TAKE_OVER, max(mover.gap(since) for mover in load.movers)


async def in_thread(call: Callable[[], object]) -> None:
    await asyncio.to_thread(call)


Round: TypeAlias = Callable[[Load], Awaitable[tuple[str, float]]]


async def _fail(load: Load, fault: Callable[[int, Node], None]) -> tuple[Node, float]:
    """Choose the owner of a vhost, hit it, and wait for confirms of that vhost. Returns the node and the gap."""
    rig = load.rig
    shard = load.random.randrange(len(VHOSTS))
    victim = rig.owner(shard)
    mover = load.movers[shard]
    await load.avoid(mover, victim)
    await asyncio.sleep(load.random.random() * 0.3)
    epoch = rig.epoch(shard)
    since = time.monotonic()
    fault(shard, victim)
    # A shard whose front is gone may confirm for a moment.
    await wait_until_async(lambda: rig.epoch(shard) > epoch, "another owner", RECOVERY_TIMEOUT)
    await load.confirmed([mover], time.monotonic())
    return victim, mover.gap(since)


async def owner(load: Load) -> tuple[str, float]:
    """Kill the process of a shard, the front of its node, or both."""
    kind = load.random.choice(["shard", "front", "both"])

    def fault(shard: int, node: Node) -> None:
        nonlocal kind
        pid, has_died = load.rig.shard_in(node, shard)
        if kind == "shard" and has_died:
            kind = "shard again"
        pids = [] if kind == "front" else [pid]
        if kind in ("front", "both"):
            pids.append(node.pid)
        signal_all(pids, signal.SIGKILL)

    victim, gap = await _fail(load, fault)
    if kind in ("front", "both"):
        await in_thread(lambda: load.rig.restart(victim))
    return kind, gap


async def node(load: Load) -> tuple[str, float]:
    """Kill all processes of a node."""

    def fault(shard: int, node: Node) -> None:
        load.rig.kill(node)

    victim, gap = await _fail(load, fault)
    await in_thread(lambda: load.rig.restart(victim))
    return "node", gap


async def freeze(load: Load) -> tuple[str, float]:
    """Freeze the process of a shard, a front, or a node, and resume it after another node has its shards."""
    kind = load.random.choice(["shard", "front", "node"])
    rig = load.rig
    shard = load.random.randrange(len(VHOSTS))
    victim = rig.owner(shard)
    mover = load.movers[shard]
    await load.avoid(mover, victim)
    await asyncio.sleep(load.random.random() * 0.3)
    pids = {"shard": [rig.shard_in(victim, shard)[0]], "front": [victim.pid], "node": family(victim.pid)}[kind]
    since = time.monotonic()
    with frozen(pids):
        # A frozen front does not stop the clients of its shards before they are released.
        await load.other_owner(shard, victim, since)
        await load.confirmed([mover], time.monotonic())
        gap = mover.gap(since)
        await asyncio.sleep(load.random.random())
    await wait_until_async(lambda: rig.knows_owners(victim), "the node that was frozen", RECOVERY_TIMEOUT)
    return kind, gap


async def clock(load: Load) -> tuple[str, float]:
    """Set the clock of the owner of a vhost, which takes over nothing, then kill the owner."""
    rig = load.rig
    for node in rig.nodes:
        set_clock(node, load.random.randint(-HOUR, HOUR))
    epochs = [rig.epoch(shard) for shard in range(len(VHOSTS))]
    await asyncio.sleep(2 * LEASE)
    await load.confirmed(load.movers, time.monotonic())
    if [rig.epoch(shard) for shard in range(len(VHOSTS))] != epochs:
        load.wrong.append("a take-over after the clocks were set")
    victim, gap = await _fail(load, lambda shard, node: rig.kill(node))
    await in_thread(lambda: rig.restart(victim))
    return "clock", gap


async def promote(load: Load) -> tuple[str, float]:
    """Stop the primary at once, promote the standby, and bring the old primary back: as a primary, then as a standby.

    The time is that from the first write of the new primary to the first confirm.
    """
    rig = load.rig
    old, new = rig.primary, rig.standby
    assert new is not None
    reconnects = [publisher.reconnects for publisher in load.movers]
    kind = load.random.choice(["immediate", "kill"])
    if kind == "immediate":
        await in_thread(old.crash)
    else:
        assert old.process is not None
        signal_all(family(old.process.pid), signal.SIGKILL)
        await in_thread(old.crash)
    await in_thread(new.promote)
    await in_thread(lambda: wait_until(lambda: execute(new.dsn("postgres"), "SELECT NOT pg_is_in_recovery()")[0][0]))
    since = time.monotonic()
    await load.confirmed(load.movers, since)
    gap = max(mover.first_after(since) - since for mover in load.movers)
    if [publisher.reconnects for publisher in load.movers] != reconnects:
        load.wrong.append(f"the promotion has disconnected clients: {reconnects}")
    rig.primary = new
    # A primary that does not know of its successor, and is the first host in the address of the database.
    old.settings.pop("primary_conninfo", None)
    (old.data / "postmaster.pid").unlink(missing_ok=True)
    old.settings["synchronous_standby_names"] = ""
    await in_thread(old.start)
    execute(new.dsn("postgres"), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name <> ''")
    await load.confirmed(load.movers, time.monotonic())
    port = old.port
    await in_thread(old.remove)
    standby = PostgresServer()
    standby.port = port
    await in_thread(lambda: standby.clone(new, STANDBY).start())
    rig.standby = standby
    new.reload(synchronous_standby_names=STANDBY)
    await load.confirmed(load.movers, time.monotonic())
    return kind, gap


async def partition(load: Load) -> tuple[str, float]:
    """Cut a node off from PostgreSQL, from the other nodes and the clients, or from all.

    A node that reaches PostgreSQL keeps its shards: then the time is that after the cut.
    """
    rig = load.rig
    assert isinstance(rig, NetworkRig)
    kind = load.random.choice(["postgresql", "nodes", "both"])
    networks = {"postgresql": [POSTGRES], "nodes": [NODES], "both": [NODES, POSTGRES]}[kind]
    shard = load.random.randrange(len(VHOSTS))
    victim = rig.owner(shard)
    mover = load.movers[shard]
    await load.avoid(mover, victim)
    since = time.monotonic()
    for network in networks:
        rig.set_link(victim, network, up=False)
    if kind != "nodes":
        await load.other_owner(shard, victim, since)
        await load.confirmed([mover], time.monotonic())
        gap = mover.gap(since)
    await asyncio.sleep(load.random.random() * 3)
    for network in networks:
        rig.set_link(victim, network, up=True)
    healed = time.monotonic()
    await load.confirmed(load.movers, healed)
    if kind == "nodes":
        gap = max(mover.first_after(healed) for mover in load.movers) - healed
    await wait_until_async(lambda: rig.knows_owners(victim), "the node that was cut off", RECOVERY_TIMEOUT)
    return kind, gap


async def proxies(load: Load) -> tuple[str, float]:
    """Have a proxy cut, delay, stall or repeat traffic between nodes, or between a node and PostgreSQL.

    A connection that stalls is cut or resumes: then PostgreSQL gets old commits of a broker that may have been taken over.
    """
    rig, random = load.rig, load.random
    assert isinstance(rig, ProxyRig)
    kind = random.choice(rig.kinds)
    # Nothing notices what is repeated on the way to PostgreSQL, which has no TLS here.
    where = rig.links if kind == REPEAT else random.choice([rig.links, rig.stores])
    return f"{kind} {'nodes' if where is rig.links else 'postgres'}", await disturb(load, kind, where)


async def disturb(load: Load, kind: str, where: list[Proxy]) -> float:
    """Have one of some proxies do something. Returns the gap of the movers."""
    random = load.random
    # Not one in front of the standby.
    proxy = random.choice([proxy for proxy in where if proxy.to_client])
    since = time.monotonic()
    if kind == CUT:
        proxy.next_cuts.extend((random.randint(0, 20_000), random.randint(0, 20_000)) for _ in range(6))
        proxy.cut()
        await asyncio.sleep(random.random())
        proxy.next_cuts.clear()
    elif kind == DELAY:
        proxy.delay = random.random() * LEASE / 4
        await asyncio.sleep(random.random() * 2)
        proxy.delay = 0.0
    elif kind == STALL:
        stalled = proxy.half_open()
        await asyncio.sleep(random.random() * 3)
        is_cut = random.random() < 0.5
        for pair in stalled:
            if is_cut:
                pair.cut()
            else:
                pair.flowing.set()
    else:
        proxy.repeats = random.randint(1, 3)
        await wait_until_async(lambda: not proxy.repeats, "pieces to repeat", RECOVERY_TIMEOUT)
    await load.confirmed([*load.movers, *load.others], time.monotonic())
    return max(publisher.gap(since) for publisher in load.movers)


ROUNDS: dict[str, Round] = {
    "owner": owner,
    "node": node,
    "freeze": freeze,
    "clock": clock,
    "promote": promote,
    "partition": partition,
    "move": move,
    "rolling": rolling,
    "soak": soak,
    "proxy": proxies,
    "tls": proxies,
}
