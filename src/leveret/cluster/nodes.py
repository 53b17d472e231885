"""The shards of a cluster, as one of its nodes sees them: some are processes of this node, others are in other nodes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from leveret.broker.errors import PreconditionFailed, StorageFailed
from leveret.cluster.condition import is_isolated
from leveret.cluster.directory import Directory, MustStop
from leveret.cluster.front_watch import BEATS
from leveret.cluster.link import Beat, Stop
from leveret.cluster.links import NodeClient, NodeInfo, Route, is_deserted
from leveret.cluster.membership import Cluster
from leveret.cluster.reach import Reach
from leveret.cluster.settings import COUNT_INTERVAL, ShardSettings
from leveret.cluster.shards import APPLY_TIMEOUT, MAX_RECORDS, RESTARTING, STARTING, STOPPED, Shard, Shards
from leveret.cluster.starting import Start
from leveret.cluster.streams import Streams
from leveret.cluster.watch import INTERVAL, Announcement, NodeRow, OwnerRow, Watch, known_hosts
from leveret.config import Config
from leveret.management.operations.shards import READY
from leveret.node.errors import StartFailed
from leveret.node.nursery import Nursery, NurseryProcess
from leveret.node.part import SHARED_KINDS, Record
from leveret.protocols.adoption import Adoption
from leveret.storage.cluster import Observed, Server
from leveret.storage.salvage import Salvage

if TYPE_CHECKING:
    from leveret.cluster.front_session import Target
    from leveret.management.operations.cluster import ClusterStatus
    from leveret.management.operations.nodes import NodeDetails

logger = logging.getLogger("leveret.cluster")

# The kind of the records with the shard of each vhost, in leveret.shared.
PLACEMENT: Final = "placement"
# In such a record, before the number of the shard: the vhost is to be created there.
_NEW: Final = "new "
# A shard that needs no process, because it has no vhosts.
IDLE: Final = "idle"
# A shard whose process releases it for another node.
MOVING: Final = "moving"
# Seconds for which clients wait for a shard that moves.
PATIENCE: Final = 2.0
# Seconds for the clients of a shard that moves to answer the close: all others wait for the shard.
_MOVE_CLIENT_TIMEOUT: Final = 0.25
# Seconds at the stop for changes that are not stored yet, and for leaving the list of the nodes.
_LAST_WRITE_TIMEOUT: Final = 2.0
# Seconds for the other nodes to notice that this one has left the list.
_NOTICE_TIME: Final = 2.5 * INTERVAL
# Seconds in which a node that has started announces its address to the others.
_ADDRESS_TIME: Final = 3 * COUNT_INTERVAL
# Seconds for a shard without vhosts to start, when it gets its first one.
_START_TIMEOUT: Final = 20.0
# Seconds for a process to end by itself whose shard another node has claimed.
_END_TIMEOUT: Final = 1.0
# Seconds in which the broker of one process that has used the database must have stopped.
_FIRST_TIMEOUT: Final = 10.0
# Seconds before a process is started again that has ended: at first, at most, and how long a process is stable.
_MIN_DELAY: Final = 0.5
_MAX_DELAY: Final = 30.0
_STABLE: Final = 60.0


class NodeShard(Shard):
    """One shard of a cluster.

    Attributes:
        owner: The node that owns it, as of the last look; None if it has none.
        due: When its process may be started again, by the clock of this process.
    """

    def __init__(
        self, shards: NodeShards, number: int, settings: Callable[[int, int], ShardSettings], timeout: float
    ) -> None:
        super().__init__(shards, number, settings, timeout)
        self._nodes = shards
        self.state = IDLE
        self.owner: NodeInfo | None = None
        self.observed: Observed | None = None
        self.due = 0.0
        self._delay = 0.0
        self._claimed_at = 0.0
        self._stop_timeout = timeout
        # When a process that must end is killed, by the clock of this process; None if it need not end.
        self._end_by: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has a process in this node, or is about to have one."""
        return self._link is not None or self.state == STARTING

    @property
    def has_process(self) -> bool:
        """Whether it has a process in this node, which may be about to start or to end."""
        return self.is_running or self._process.is_running

    @property
    def is_here(self) -> bool:
        """Whether a process of this node serves it."""
        return self._link is not None and self.state == READY and not self.has_lost

    @property
    def node(self) -> str:
        """The name of the node that owns it; "" if it has none."""
        return "" if self.owner is None else self.owner.name

    @property
    def unavailable(self) -> str:
        """Why it takes no connections; "" if it does."""
        if self._link is None and self.state == READY:
            return f"node '{self.node}' has just started" if self._nodes.awaits_address(self.number, self.node) else ""
        if self.state == IDLE:
            return f"shard {self.number} has no owner"
        return super().unavailable

    @property
    def client_addresses(self) -> tuple[str, str]:
        """The addresses of its node for clients, without and with TLS; "" if that is this one or unknown."""
        return ("", "") if self.is_here else self._nodes.clients_of(self.node)

    @property
    def refers(self) -> bool:
        """Whether clients that are not redirected must connect to its node for a while, if its address is known."""
        return self._nodes.refers(self.number, self.node)

    @property
    def connect(self) -> Callable[[Adoption], Coroutine[Any, Any, Route]] | None:
        """Connects a client to the shard in another node; None if it is here."""
        return None if self.is_here else self._connect

    async def _connect(self, adoption: Adoption) -> Route:
        assert self.owner is not None
        return await self._nodes.client.connect(self.owner, self.number, self.epoch, adoption)

    async def open_control(self) -> Streams:
        """Connect to its control socket. Raises `OSError`, or `LinkFailed` if it is in another node."""
        if self.is_here or self.owner is None:
            return await super().open_control()
        return await self._nodes.client.open_control(self.owner, self.number)

    def claim(self, row: OwnerRow, server: Server | None) -> None:
        """Start a process that claims it, at the server that has the row."""
        self.observed = replace(row.state(), server=server)
        self._claimed_at = time.monotonic()
        self._set_state(STARTING)
        self._process.start(self._next_settings, self._descriptors, self._be_born(), restart=False)

    def _be_born(self) -> NurseryProcess | None:
        """Start the process in the nursery. Return None if that cannot be done."""
        nursery = self._nodes.nursery
        if nursery is None:
            return None
        settings = self._next_settings()
        assert self._remote is not None
        process = nursery.start(msgspec.json.encode(settings), self._remote, self._started)
        self.close_remote()
        if process is None:
            self._close_link()
        return process

    def leave(self) -> None:
        """Have the process close its clients and release the shard, for another node."""
        if self._link is not None:
            self._set_state(MOVING)
            self._end_by = time.monotonic() + self._stop_timeout
            self._link.send(Stop(f"shard {self.number} moves to another node", _MOVE_CLIENT_TIMEOUT))

    def beat(self) -> None:
        """Show the process a sign of life of this one, unless it does not read."""
        if self._link is not None and self._has_begun and not self._link.is_waiting:
            self._link.send(Beat())

    def _ended(self, reason: str) -> None:
        """Handle the end of the process. The next look decides what follows."""
        if self._link is not None:
            self._link.receive_rest()
        refusal, self.refusal = self.refusal, ""
        is_leaving, self._end_by = self._end_by is not None, None
        self._close_link()
        self.close_remote()
        self.pid = 0
        if self.has_lost:
            self._nodes.note_owner(self)
        elif is_leaving:
            self._set_state(IDLE)
        else:
            self.restarts += 1
            now = time.monotonic()
            self._delay = min(self._delay * 2 or _MIN_DELAY, _MAX_DELAY) if now - self._claimed_at < _STABLE else 0.0
            # The first time, it is started again at once.
            self.due = now + (0.0 if self._delay == _MIN_DELAY else self._delay)
            self._set_state(RESTARTING)
            logger.error("the process of shard %d %s", self.number, reason)
            self._nodes.died(self, refusal or f"its process {reason}")
            if self.due > now:
                self._nodes.leave_to_others(self)
        self._shards.changed()

    def note_owner(self, row: OwnerRow, node: NodeRow | None, own: str, *, is_gone: bool) -> None:
        """Note the owner that a look has found, and whether it is gone."""
        self.epoch, self.takeovers = row.epoch, row.takeovers
        self.takeover_age, self.takeover_seconds = row.lost_ago, row.outage
        self.owner = None if node is None else NodeInfo(node.name, node.address, node.incarnation)
        if self.state == STARTING and self._is_claimed(row, own):
            self.has_lost = True  # the process will notice, and end
        if self.has_process or self.state == STOPPED:
            if self._is_taken_over(row, own):
                logger.error("node '%s' has taken over shard %d, whose process here is to end", row.node, self.number)
                self._set_state(MOVING)
                self._end_by = time.monotonic() + _END_TIMEOUT
            if not self.has_lost or self.state == STOPPED:
                return
        if self.owner is None or row.node == own:
            self._set_state(RESTARTING if row.node == own else IDLE)
        elif is_gone:
            self._set_state(RESTARTING)
        else:
            self.pid = -row.epoch  # connections to a former owner's control socket are not used again
            self._set_state(READY)

    def _is_claimed(self, row: OwnerRow, own: str, later: int = 0) -> bool:
        """Return whether another node has claimed the shard since this one decided to, after some more claims."""
        return self.observed is not None and row.node not in (None, own) and row.epoch > self.observed.epoch + later

    def _is_taken_over(self, row: OwnerRow, own: str) -> bool:
        """Return whether another node has claimed the shard since the process here has."""
        if self._link is None or self._end_by is not None or self.state == STOPPED:
            return False
        return self._is_claimed(row, own, later=1)

    def check(self, elapsed: float) -> None:
        """Check the process as above. One that has to end is killed if it does not."""
        super().check(elapsed)
        if self._end_by is not None and time.monotonic() >= self._end_by:
            self._end_by = math.inf
            self._kill("does not end, although the shard is for another node")


class NodeShards(Shards):
    """All shards of the cluster, and the shared records, which are in the database.

    Args:
        config: The configuration of the broker.
        config_name: The name of the configuration in messages.
        salvage: The data losses that the operator accepts for the first start of each shard.
        directory: The database.
        stop_timeout: Seconds for a shard to stop.

    Attributes:
        client: The connections to other nodes.
        nursery: Starts the processes of shards; None if they start from scratch.
        watch: What this node knows of the others.
    """

    patience = PATIENCE
    all: list[NodeShard]

    def __init__(
        self, config: Config, config_name: str, salvage: Salvage, directory: Directory, *, stop_timeout: float
    ) -> None:
        super().__init__(config, config_name, salvage, asks_shared=False, stop_timeout=stop_timeout)
        self._directory = directory
        self.name = directory.name
        self.client: NodeClient
        self.nursery: Nursery | None = None
        self.watch = Watch(self.name, config.cluster.lease)
        self._cluster = Cluster(
            self.name,
            directory,
            self.watch,
            self.all,
            self._until,
            self._needed,
            balances=config.cluster.balance == "auto",
        )
        self._received: Callable[[list[Record]], None] | None = None
        self._failed: Callable[[str], None] | None = None
        # Whether the start is over, and why a shard could not start before that.
        self._serves = False
        self._refusal = ""
        # The shard of each vhost, and of those that are to be created.
        self._placements: dict[str, int] = {}
        self._reserved: dict[str, int] = {}
        # Shards that this node claims though they have no vhosts yet.
        self._prepared: set[int] = set()
        # Shards whose processes have ended, and that other nodes may claim at once.
        self._left: set[int] = set()
        # Changes that are not stored yet, and the number and the version of the last one that is.
        self._unwritten: dict[tuple[str, str], bytes | None] = {}
        self._written = 0
        self._written_version = 0
        self._writing: asyncio.Task[None] | None = None
        self._write_number = 0
        # The version of the shared records here, versions with the number of their last change, and what is applied.
        self._version = 0
        self._versions: deque[tuple[int, int]] = deque()
        self._applied_version = 0
        self._watching: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._reach: Reach | None = None
        self._reserving: asyncio.Task[None] | None = None
        self._wanting: asyncio.Task[None] | None = None
        self._look_now = asyncio.Event()
        # The announcements of this node and the others, and the time of the next exchange.
        self._clients = ("", "")
        self._others: list[Announcement] = []
        self._announcement_due = 0.0
        self._is_announced = False
        # Has the node take clients, or not; and whether it does.
        self._take_clients: Callable[[bool], Coroutine[Any, Any, None]] | None = None
        self._takes_clients = True
        self._is_limited: Callable[[str], bool]
        self._announce_hosts: Callable[[str], None]
        self._is_stopping = False

    def _make_shard(self, number: int, stop_timeout: float) -> NodeShard:
        return NodeShard(self, number, self._settings, stop_timeout)

    def _settings(self, number: int, descriptor: int) -> ShardSettings:
        return msgspec.structs.replace(super()._settings(number, descriptor), observed=self.all[number].observed)

    def use(self, nursery: Nursery) -> None:
        """Start the processes of shards by a nursery."""
        self.nursery = nursery

    def connect(self, client: NodeClient, failed: Callable[[str], None]) -> None:
        """Reach other nodes by a client. `failed` is called with the reason if this node must stop."""
        self.client, self._failed = client, failed

    def pass_on(self, received: Callable[[list[Record]], None]) -> None:
        """Pass on the shared records that other nodes change."""
        self._received = received

    def announce(
        self, clients: tuple[str, str], is_limited: Callable[[str], bool], announce_hosts: Callable[[str], None]
    ) -> None:
        """Let the other nodes know of this one.

        Args:
            clients: Where clients connect to this node: without TLS and with TLS, as "HOST:PORT" or "".
            is_limited: Whether a user has a limit on connections or channels.
            announce_hosts: Called with the nodes that clients can connect to, as `known-hosts` of AMQP 0-9.
        """
        self._clients, self._is_limited, self._announce_hosts = clients, is_limited, announce_hosts
        self._is_announced = True

    def close_while_draining(self, take_clients: Callable[[bool], Coroutine[Any, Any, None]]) -> None:
        """Call a function with False when this node drains, and with True when it does not any more."""
        self._take_clients = take_clients

    @property
    def is_draining(self) -> bool:
        """Whether this node moves its shards away, and takes no clients."""
        own = self.watch.nodes.get(self.name)
        return own is not None and own.draining

    @property
    def is_isolated(self) -> bool:
        """Whether no link between this node and another one works, though others reach each other."""
        return is_isolated(self.watch, self.name)

    # Start and stop

    async def join(self, address: str, start: Start) -> None:
        """Enter this node in the list, and take the shared records. Raises `StorageFailed` or `StartFailed`.

        Args:
            address: Where the node listens for others.
            start: Repeats what fails because the server is away.
        """
        await start.repeat(lambda: self._directory.enter(address))
        await start.repeat(self._update)
        self._watching = asyncio.create_task(self._keep_looking())
        self._beating = asyncio.create_task(self._keep_beating())
        self._reach = Reach(self.client, self._served_others)
        self._start_checking()
        if self._asks_shared:
            # The first node takes the users of a broker of one process that has used the database.
            try:
                async with asyncio.timeout(None if self.all[0].is_running else _FIRST_TIMEOUT):
                    await self._begun(lambda: self.all[0].is_open or self.watch.shards is not None)
            except TimeoutError:
                raise StartFailed(
                    f"shard 0 in PostgreSQL is owned by node '{self.watch.owners[0].node}', which is alive; stop that"
                    " broker, or choose another database"
                ) from None
            await start.repeat(lambda: self._directory.begin(self.all[0].shared))
        self._version, records = await start.repeat(lambda: self._directory.records(0))
        self._applied_version = self._version
        await self._take(records)

    async def opened_all(self) -> None:
        """Wait for nothing: shards start when they are needed."""

    async def begin(self) -> None:
        """Let the shards serve, and wait until all that have vhosts do. Raises `StartFailed`."""
        self._has_begun = True
        for shard in self.all:
            shard.begin()
        await self._begun(self._is_served)
        self._serves = True

    def _is_served(self) -> bool:
        return all(self.all[number].state == READY for number in self._needed()) and not self._missing_vhosts()

    async def _begun(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition during the start. Raises `StartFailed` if a shard cannot start."""
        await self._until(lambda: bool(self._refusal) or condition())
        if not condition():
            raise StartFailed(self._refusal)

    async def stop(self, reason: str) -> None:
        """Stop the shards of this node, store the last changes, and leave the list of the nodes."""
        self._stop_watching()
        await super().stop(reason)
        if self._reach is not None:
            self._reach.stop()
        with contextlib.suppress(TimeoutError, StorageFailed):
            async with asyncio.timeout(_LAST_WRITE_TIMEOUT):
                # The time limit cancels it, and this is called again at the end of the process.
                if self._writing is not None and not self._writing.done():
                    await self._writing
                await self._leave()

    async def retire(self) -> None:
        """Leave the list of the nodes before the stop, if this node has drained.

        So the others refer the clients that it relays, which are closed afterwards.
        """
        if not self.is_draining or not self.config.cluster.referral_time or any(shard.has_process for shard in self.all):
            return
        self._stop_watching()
        with contextlib.suppress(TimeoutError, StorageFailed):
            async with asyncio.timeout(_LAST_WRITE_TIMEOUT):
                await self._leave()
                await asyncio.sleep(_NOTICE_TIME)

    def _stop_watching(self) -> None:
        self._is_stopping = True
        for task in (self._watching, self._beating, self._reserving, self._wanting):
            if task is not None:
                task.cancel()

    async def _leave(self) -> None:
        """Leave the list of the nodes, unless this one has left, or was never in it. Raises `StorageFailed`."""
        if self._watching is not None:
            self._watching = None
            await self._directory.leave()

    def died(self, shard: NodeShard, refusal: str) -> None:
        """Handle that the process of a shard has ended."""
        self.watch.note_death(shard.number)
        if not self._serves:
            self._refusal = f"shard {shard.number} cannot start: {refusal}"
        self._look_now.set()

    def leave_to_others(self, shard: NodeShard) -> None:
        """Let another node, if there is one, claim a shard whose process ends again and again."""
        self._left.add(shard.number)

    # Looks

    async def _keep_looking(self) -> None:
        reason = ""
        while True:
            asked = time.monotonic()
            try:
                await self._update()
                if reason:
                    reason = ""
                    logger.warning("the owners of the shards are known again")
            except MustStop as error:
                logger.error("%s", error)
                if self._failed is not None:
                    self._failed(str(error))
                return
            except StorageFailed as error:
                self.watch.interrupt()
                if str(error) != reason:
                    reason = str(error)
                    logger.error("the owners of the shards are unknown: %s", reason)
            except Exception as error:  # a node that looks no more would keep what it has, and claim nothing
                self.watch.interrupt()
                if str(error) != reason:
                    reason = str(error)
                    logger.exception("the owners of the shards are unknown")
            self._look_now.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.01, asked + INTERVAL - time.monotonic())):
                    await self._look_now.wait()

    async def _keep_beating(self) -> None:
        """Show the shards that this process lives. Does not wait for PostgreSQL."""
        while True:
            for shard in self.all:
                shard.beat()
            await asyncio.sleep(self.config.cluster.lease / BEATS)

    async def _update(self) -> None:
        """Look at the database, and act upon it. Raises `StorageFailed`."""
        asked = time.monotonic()
        view = await self._directory.look(self._applied_version)
        self.watch.observe(view, asked, time.monotonic())
        self._note_owners()
        for name, address in self.watch.suspects().items():
            if await is_deserted(address):
                logger.warning("node '%s' has left its database sessions, and does not listen any more: it is gone", name)
                self.watch.note_desertion(name, time.monotonic())
                self._note_owners()
        # Before a claim of shard 0, whose process must know.
        self._asks_shared = self.watch.shards is None
        if self._has_begun and view.version > self._version:
            version, records = await self._directory.records(self._version)
            self._version = max(version, view.version)
            await self._take(records)
            self._versions.append((self._version, self.change_number))
        self._note_applied()
        if self._is_stopping:
            return
        lost = self.watch.lost_nodes()
        for shard in self.all:
            for name in lost:
                shard.disown(name)
        if self._left:
            left, self._left = sorted(self._left), set()
            if self._cluster.has_other_takers():
                await self._directory.release(left)
        running = {shard.number for shard in self.all if shard.has_process}
        now = time.monotonic()
        for row in self.watch.claims(now, self._needed() | self._prepared, running):
            if self.all[row.shard].due <= now:
                self.watch.note_claim(row.shard)
                self.all[row.shard].claim(row, self._directory.server)
        self._reserve()
        self.changed()
        await self._follow_drain()
        served = [row.shard for row in self.watch.owners.values() if row.node == self.name and self._has_taken_over(row)]
        if served:
            await self._directory.note_served(served)
        self._move()
        if self._is_announced and now >= self._announcement_due:
            self._announcement_due = now + COUNT_INTERVAL
            await self._announce()

    async def _follow_drain(self) -> None:
        """Take no clients while this node drains: they would have to reconnect again when it stops."""
        if self._take_clients is not None and self._takes_clients == self.is_draining:
            self._takes_clients = not self.is_draining
            await self._take_clients(self._takes_clients)
            self._announcement_due = 0.0

    async def _announce(self) -> None:
        """Exchange what nodes tell each other. Raises `StorageFailed`."""
        own = Announcement(self.name, self._clients if self._takes_clients else ("", ""), self._usage())
        self._others = await self._directory.announce(own, [] if self._reach is None else self._reach.unreachable)
        self._share_channels()
        hosts = known_hosts([own, *self._others])
        for shard in self.all:
            shard.announce(hosts)
        self._announce_hosts(hosts)

    def _served_others(self) -> list[NodeInfo]:
        """Return the other live nodes that have started."""
        names = {other.name for other in self._others}
        nodes = self.watch.nodes.values()
        return [NodeInfo(node.name, node.address, node.incarnation) for node in nodes if node.live and node.name in names]

    def refers(self, shard: int, node: str) -> bool:
        """Return whether clients of a shard must connect to its node for a while."""
        owner = self.watch.nodes.get(node)
        takes_clients = owner is not None and owner.live and not owner.draining
        return takes_clients and self.watch.is_moving_on(shard, time.monotonic(), self.config.cluster.referral_time)

    def awaits_address(self, shard: int, node: str) -> bool:
        """Return whether clients of a shard must connect to a node that has just started, and whose address is unknown."""
        is_unknown = not any(self.clients_of(node))
        since = time.monotonic() - self.watch.restarts.get(node, -math.inf)
        return is_unknown and since < _ADDRESS_TIME and self.refers(shard, node)

    def clients_of(self, node: str) -> tuple[str, str]:
        """Return where clients connect to another live node; "" if that is unknown."""
        return next((other.clients for other in self._others if other.name == node), ("", ""))

    def _usage(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of connections and channels of the users that have a limit on one of them."""
        connections, channels = Counter[str](), Counter[str]()
        for shard in self.all:
            connections.update(shard.users())
            channels.update(shard.channels)
        users = [user for user in connections if self._is_limited(user)]
        return {user: (connections[user], channels[user]) for user in users}

    def in_other_nodes(self, user: str) -> int:
        """Return the number of connections of a user to shards of other nodes, about a second ago."""
        return sum(other.usage.get(user, (0, 0))[0] for other in self._others)

    def channels_in_other_nodes(self) -> Mapping[str, int]:
        """Return the numbers of channels in shards of other nodes, by user, about a second ago."""
        counts = Counter[str]()
        for other in self._others:
            counts.update({user: channels for user, (_, channels) in other.usage.items()})
        return counts

    def _has_taken_over(self, row: OwnerRow) -> bool:
        """Return whether a shard of this node serves after a take-over that is not noted yet."""
        return row.takeovers > 0 and row.outage is None and self.all[row.shard].is_here

    def _move(self) -> None:
        """Move shards to other nodes."""
        self._cluster.note_look()
        for number in self._cluster.leaving():
            if self.all[number].is_here:
                self.all[number].leave()
        if self._serves and (self._wanting is None or self._wanting.done()):
            move = self._cluster.next_move()
            if move is not None:
                self._wanting = asyncio.create_task(self._want(*move))

    async def _want(self, shard: int, node: str) -> None:
        """Have a shard move to a node. Looks continue meanwhile, since the row may be locked by a commit that waits."""
        with contextlib.suppress(StorageFailed):  # the next look tries again
            await self._directory.want(shard, node)
            self._look_now.set()

    def _note_owners(self) -> None:
        """Note the owners in the turn in which the watch finds them, so that the shards agree with the status."""
        if not self._is_stopping:
            for shard in self.all:
                self.note_owner(shard)

    def note_owner(self, shard: NodeShard) -> None:
        """Note the owner of a shard as of the last look."""
        row = self.watch.owners.get(shard.number)
        if row is None:
            return
        before = shard.owner
        node = None if row.node is None else self.watch.nodes.get(row.node)
        shard.note_owner(row, node, self.name, is_gone=self.watch.owner_of(shard.number) is None)
        if before != shard.owner:
            self.client.close_relays(shard.number, "" if shard.owner is None else shard.owner.name)

    def _needed(self) -> set[int]:
        """Return the shards that need an owner."""
        return {0, *self._placements.values(), *self._reserved.values()}

    # Placement

    @property
    def cluster(self) -> Cluster:
        """The nodes that share the shards."""
        return self._cluster

    def cluster_status(self) -> ClusterStatus:
        """Return the state of the cluster, as it was a short while ago."""
        return self._cluster.last_status()

    def nodes(self) -> list[NodeDetails]:
        """Return the nodes by name."""
        return self._cluster.list_nodes()

    @property
    def used(self) -> list[Shard]:
        """The shards that have vhosts."""
        needed = self._needed()
        return [shard for shard in self.all if shard.number in needed or shard.is_running or shard.state == READY]

    def note_vhost(self, shard: Shard, name: str, *, exists: bool) -> None:
        """Note that a shard has created or deleted a vhost, and tell the other nodes."""
        super().note_vhost(shard, name, exists=exists)
        if (self._placements.get(name) == shard.number) != exists:
            self._put_placement(name, shard.number if exists else None)

    def note_state(self) -> None:
        """Note that the state of a shard has changed, and look again."""
        super().note_state()
        self._look_now.set()

    def _put_placement(self, name: str, number: int | None) -> None:
        self._place(name, None if number is None else str(number))
        self._write_later(PLACEMENT, name, None if number is None else b"%d" % number)

    def _place(self, name: str, value: str | None) -> None:
        """Note the shard of a vhost, as in a record."""
        self._reserved.pop(name, None)
        if value is not None and value.startswith(_NEW):
            self._reserved[name] = int(value.removeprefix(_NEW))
            return
        before = self._placements.pop(name, None)
        if before is not None and not self.all[before].is_here:
            self.all[before].vhosts.pop(name, None)
        if value is not None:
            number = self._placements[name] = int(value)
            if not self.all[number].is_here:
                self.all[number].vhosts[name] = None

    def opened(self, shard: Shard) -> None:
        """Handle that the log of a shard is open: it is the truth about its vhosts."""
        super().opened(shard)
        self._correct(shard)

    def _correct(self, shard: Shard) -> None:
        for name in shard.vhosts:
            if self._placements.get(name) != shard.number:
                self._put_placement(name, shard.number)
        for name, number in list(self._placements.items()):
            if number == shard.number and name not in shard.vhosts:
                self._put_placement(name, None)

    def ready(self) -> None:
        """Handle that a shard serves: create the vhosts that are to be created there."""
        for shard in self.all:
            if shard.is_here:
                missing = [name for name, number in self._reserved.items() if number == shard.number]
                if missing:
                    shard.declare(missing)

    def _reserve(self) -> None:
        """Place the vhosts of the configuration that do not exist yet, unless that is under way."""
        missing = [name for name in self._missing_vhosts() if name not in self._reserved]
        is_placed = self._has_begun and bool(self._placements) and not self._unwritten
        if missing and is_placed and (self._reserving is None or self._reserving.done()):
            self._reserving = asyncio.create_task(self._reserve_all(missing))
        elif self._reserved:
            self.ready()

    async def _reserve_all(self, names: list[str]) -> None:
        counts = Counter([*self._placements.values(), *self._reserved.values()])
        records: list[Record] = []
        for name in names:
            number = min(range(len(self.all)), key=lambda number: (counts[number], number))
            counts[number] += 1
            records.append((PLACEMENT, name, f"{_NEW}{number}".encode()))
        with contextlib.suppress(StorageFailed):  # the next look tries again
            await self._directory.put_new(records)

    async def prepare(self, name: str, number: int | None) -> None:
        """Prepare the shard of a new vhost: claim one without vhosts, if there is one.

        Args:
            name: The name of the vhost.
            number: The number of the wanted shard, if any.

        Raises:
            PreconditionFailed: This node drains, and so does not claim the wanted shard.
            StorageFailed: The shard cannot be started.
        """
        if self.of_vhost(name) is not None:
            return
        used = {*self._needed(), *self._prepared, *(shard.number for shard in self.all if shard.state != IDLE)}
        unused = [shard for shard in self.all if shard.number not in used and number in (None, shard.number)]
        if not unused:
            return
        if self.is_draining:
            if number is None:
                return  # a shard of another node gets it
            raise PreconditionFailed(
                f"shard {number} has no owner, and node '{self.name}' is draining; add the vhost at another node"
            )
        shard = unused[0]
        self._prepared.add(shard.number)
        self._look_now.set()
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                await self._until(lambda: shard.state == READY)
        except TimeoutError:
            raise StorageFailed(
                f"shard {shard.number} has not started within {_START_TIMEOUT:g} seconds; see the log of node '{self.name}'"
            ) from None
        finally:
            self._prepared.discard(shard.number)

    # Other nodes

    def target(self, number: int, epoch: int) -> Target | None:
        """Return a shard of this node, for clients of another node; None if it is not here."""
        shard = self.all[number] if 0 <= number < len(self.all) else None
        return shard if shard is not None and shard.is_running else None

    def control_of(self, number: int | None, own: Path) -> Path | None:
        """Return the path of the control socket of a shard of this node, or of the node itself."""
        if number is None:
            return own
        shard = self.all[number] if 0 <= number < len(self.all) else None
        return shard.control if shard is not None and shard.is_here else None

    # Shared records

    async def _take(self, records: list[Record]) -> None:
        """Take shared records of the database, some in each turn."""
        for start in range(0, len(records), MAX_RECORDS):
            self._take_slice(records[start : start + MAX_RECORDS])
            await asyncio.sleep(0)

    def _take_slice(self, records: Iterable[Record]) -> None:
        """Take shared records, except those that this node is changing."""
        shared: list[Record] = []
        for kind, key, value in records:
            if (kind, key) in self._unwritten:
                continue
            if kind == PLACEMENT:
                self._place(key, None if value is None else value.decode())
            elif kind in SHARED_KINDS:
                shared.append((kind, key, value))
                super().put(kind, key, value)
        if shared and self._received is not None:
            self._received(shared)

    def put(self, kind: str, key: str, value: bytes | None) -> None:
        """Store a change of a shared record, and pass it on to the shards."""
        super().put(kind, key, value)
        self._write_later(kind, key, value)

    def _write_later(self, kind: str, key: str, value: bytes | None) -> None:
        self._write_number += 1
        self._unwritten[kind, key] = value
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Store changes until all are stored."""
        while self._unwritten:
            number, changed = self._write_number, dict(self._unwritten)
            self._written_version = await self._directory.put((*known, value) for known, value in changed.items())
            for known, value in changed.items():
                if self._unwritten.get(known) == value:
                    del self._unwritten[known]
            self._written = number
            self._look_now.set()
            self.changed()

    def _note_applied(self) -> None:
        """Note the version that the shards of this node have applied."""
        here = [shard.applied for shard in self.all if shard.is_here]
        while self._versions and all(applied >= self._versions[0][1] for applied in here):
            self._applied_version = self._versions.popleft()[0]

    def _late(self) -> list[str]:
        """Return the nodes that have not applied the last changes of this node."""
        version = self._written_version
        late = [] if self._applied_version >= version else [self.name]
        nodes = self.watch.nodes.values()
        return late + [node.name for node in nodes if node.live and node.name != self.name and node.applied < version]

    async def applied(self) -> None:
        """Wait until the changes so far are stored, and applied by all live nodes. Raises `StorageFailed`."""
        number = self._write_number
        try:
            async with asyncio.timeout(APPLY_TIMEOUT):
                await self._until(lambda: self._written >= number)
                await self._until(lambda: not self._late())
        except TimeoutError:
            if self._written < number:
                raise StorageFailed(
                    "the change is not stored yet: PostgreSQL has not confirmed it; see `leveret cluster status`"
                ) from None
            names = ", ".join(f"node '{name}'" for name in self._late())
            raise StorageFailed(f"the change is stored, but not in effect yet: {names} does not answer") from None
