"""The shards of the front: their processes, their vhosts and connections, and the shared records."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from leveret.broker.errors import StorageFailed
from leveret.cluster.audit import read_record
from leveret.cluster.layout import control_path
from leveret.cluster.link import (
    Adopt,
    Applied,
    Audited,
    AuditWritten,
    Beat,
    Begin,
    Change,
    Channels,
    Declare,
    Disown,
    Ended,
    KnownHosts,
    Link,
    Listeners,
    Lost,
    Message,
    Opened,
    OtherChannels,
    Ready,
    Records,
    Refused,
    Reload,
    Stop,
    Suspended,
    Vhosts,
    make_pair,
)
from leveret.cluster.settings import ShardSettings, beat_interval, shard_config
from leveret.cluster.streams import Streams, open_control
from leveret.config import Config
from leveret.management.audit.log import AuditLog
from leveret.management.operations.nodes import not_a_node
from leveret.management.operations.shards import READY
from leveret.node.child_process import ChildProcess, is_stopped, processor_time
from leveret.node.errors import StartFailed
from leveret.node.forked import ForkedProcess, fork
from leveret.node.part import Record
from leveret.protocols.adoption import Adoption
from leveret.storage.salvage import Salvage

if TYPE_CHECKING:
    from leveret.cluster.links import Route
    from leveret.cluster.membership import Cluster
    from leveret.management.operations.cluster import ClusterStatus
    from leveret.management.operations.nodes import NodeDetails

logger = logging.getLogger("leveret.cluster")

_MODULE: Final = "leveret.cli.shard_main"
STARTING: Final = "starting"
RESTARTING: Final = "restarting"
STOPPED: Final = "stopped"
# Seconds for the shards to apply a change of shared records.
APPLY_TIMEOUT: Final = 10.0
# In times of `cluster.shard_timeout`: processor time of a process that recovers its log without progress.
_SPINS: Final = 6
# Seconds for which changes of the numbers of channels are gathered.
_SHARE_DELAY: Final = 0.1
# Shared records, and bytes of their values, that are encoded and sent in one turn.
MAX_RECORDS: Final = 500
MAX_RECORD_BYTES: Final = 256 << 10


class Shard:
    """One shard, as the front sees it.

    Attributes:
        number: Its number, from 0.
        state: STARTING, READY, RESTARTING or STOPPED.
        pid: The id of its process; 0 if there is none.
        vhosts: The names of its vhosts. They stay known while it restarts.
        restarts: How often its process has been started again.
        hangs: How often its process was killed because it did not answer.
        epoch: The epoch of its owner; 0 if the broker is not a node.
        takeovers: How often it was claimed although its owner had not released it; also the following ones.
        takeover_age: Seconds since the last sign of life of the owner before the last take-over; None without one.
        takeover_seconds: Seconds from then until the shard served again; None while it does not.
        control: The path of its control socket.
        is_open: Whether its log is open.
        shared: The shared records in its log, if they were asked for.
        refusal: Why its process could not start; "" if it could.
        has_lost: Whether its process has ended because another node has claimed the shard, or may claim it.
        applied: The number of the last change of shared records that it has applied.
        channels: The numbers of channels in it of users with a limit on it.
    """

    def __init__(self, shards: Shards, number: int, settings: Callable[[int, int], ShardSettings], timeout: float) -> None:
        self._shards = shards
        self.number = number
        self.state = STARTING
        self.pid = 0
        self.vhosts: dict[str, None] = {}
        self.restarts = 0
        self.hangs = 0
        self.epoch = 0
        self.takeovers = 0
        self.takeover_age: float | None = None
        self.takeover_seconds: float | None = None
        self.control = control_path(shards.config.server.data_path, number)
        self.is_open = False
        self.shared: list[Record] = []
        self.refusal = ""
        self.has_lost = False
        self.applied = 0
        self.channels: dict[str, int] = {}
        self._others: dict[str, int] = {}
        self._hosts = ""
        self._settings = settings
        # The configuration that the process has started with.
        self._config = shards.config
        self._link: Link | None = None
        # The end of the link for the process that is being started.
        self._remote: socket.socket | None = None
        # The first process, until it is watched.
        self._forked: ForkedProcess | None = None
        # The user of each connection, and the number of connections of each user.
        self._users: dict[int, str] = {}
        self._connections: Counter[str] = Counter()
        # Changed shared records that are not sent yet, and whether it has got all records before.
        self._changed: dict[tuple[str, str], bytes | None] = {}
        self._has_begun = False
        # The shared records that are being sent, and the number of the last change in them; whether more follow next turn.
        self._sending: Iterator[tuple[tuple[str, str], bytes | None]] | None = None
        self._sending_to = 0
        self._is_scheduled = False
        # The number of the last record for the audit log, and the task that tells the process when it is written.
        self._audited_to = 0
        self._acknowledging: asyncio.Task[None] | None = None
        # The number of the last change in the records that it has begun with.
        self._begun_with = 0
        # Seconds since the last message of the process.
        self._silence = 0.0
        # Whether the process has got on with its start since the last look, and the processor time that it had used then.
        self._has_progressed = True
        self._spent = 0.0
        self._process = ChildProcess(
            f"process of shard {number}", _MODULE, started=self._started, ended=self._ended, stop_timeout=timeout
        )

    @property
    def connections(self) -> int:
        """The number of connections that were handed over to it and have not ended."""
        return len(self._users)

    def connections_of(self, user: str) -> int:
        """Return the number of these connections of a user."""
        return self._connections[user]

    def users(self) -> Mapping[str, int]:
        """Return the number of these connections of each user."""
        return self._connections

    @property
    def node(self) -> str:
        """The name of the node that owns it; "" if the broker is not a node."""
        return ""

    @property
    def unavailable(self) -> str:
        """Why it takes no connections; "" if it does."""
        if self.state != READY:
            return f"shard {self.number} is {self.state}"
        return f"shard {self.number} does not answer" if self._link is None or self._link.is_full else ""

    @property
    def client_addresses(self) -> tuple[str, str]:
        """The addresses of its node for clients, without and with TLS; "" if that is this one or unknown."""
        return "", ""

    @property
    def refers(self) -> bool:
        """Whether clients must connect to its node; False, because that is this one."""
        return False

    @property
    def connect(self) -> Callable[[Adoption], Coroutine[Any, Any, Route]] | None:
        """Connects a client to the shard in another node; None, because it is in this one."""
        return None

    def note_vhost(self, name: str, *, exists: bool) -> bool:
        """Note that a vhost was created or deleted here. Return whether that was not known."""
        known = name in self.vhosts
        if exists:
            self.vhosts[name] = None
        else:
            self.vhosts.pop(name, None)
        return known != exists

    def hand_over(self, sock: socket.socket, adoption: Adoption) -> None:
        """Give the shard a connection. Closes the socket here."""
        user = adoption.account.name
        others = [other for other in self._shards.all if other is not self]
        adoption = msgspec.structs.replace(
            adoption,
            elsewhere=sum(other.connections for other in others),
            elsewhere_of_user=sum(other.connections_of(user) for other in others) + self._shards.in_other_nodes(user),
        )
        if self._link is None:
            sock.close()
            return
        self._users[adoption.connection] = user
        self._connections[user] += 1
        self._link.send(Adopt(adoption), sock)

    def disown(self, node: str) -> None:
        """End the connections of clients of another node, which is gone."""
        if self._link is not None and self._has_begun:
            self._link.send(Disown(node))

    async def open_control(self) -> Streams:
        """Connect to its control socket. Raises `OSError`."""
        return await open_control(self.control)

    def note_others(self, channels: dict[str, int]) -> None:
        """Tell the process the numbers of channels in other shards, by user."""
        if self._link is not None and self._has_begun and channels != self._others:
            self._others = channels
            self._link.send(OtherChannels(channels))

    def announce(self, hosts: str) -> None:
        """Tell the process the hosts of the nodes that clients can connect to."""
        if self._link is not None and self._has_begun and hosts != self._hosts:
            self._hosts = hosts
            self._link.send(KnownHosts(hosts))

    def note_listeners(self, urls: list[str]) -> None:
        """Send the process the addresses that the front listens on, if it listens."""
        if self._link is not None and self._has_begun and urls:
            self._link.send(Listeners(urls))

    # The process

    def fork(self, serve: Callable[[ShardSettings], int]) -> None:
        """Fork the first process, which calls `serve`. There must not be an event loop yet."""
        settings = self._make_settings()
        self._forked = fork(partial(serve, settings))
        self._started(self._forked.pid)

    def start(self) -> None:
        """Start the process unless it runs, and start it again whenever it ends."""
        if self._forked is not None:
            self._serve_link()
        self._process.start(self._next_settings, self._descriptors, self._forked)
        self._forked = None

    async def stop(self, reason: str) -> None:
        """Have the process close its clients for this reason, and end it."""
        self._set_state(STOPPED)
        if self._link is not None:
            self._link.send(Stop(reason))
        await self._process.stop()
        self._close_link()
        self.pid = 0

    def _make_settings(self) -> ShardSettings:
        """Return the settings of a new process, for which a new link is made."""
        self._config = self._shards.config
        end, self._remote = make_pair()
        self._link = Link(end)
        self._has_begun = False
        self._sending = None
        self._has_progressed = True
        self.refusal = ""
        self.has_lost = False
        return self._settings(self.number, self._remote.fileno())

    def _next_settings(self) -> ShardSettings:
        settings = self._make_settings()
        self._serve_link()
        return settings

    def _serve_link(self) -> None:
        assert self._link is not None
        self._link.start(self._received, self._close_link, self._send_records)

    def _descriptors(self) -> list[int]:
        assert self._remote is not None
        return [self._remote.fileno()]

    def _started(self, pid: int) -> None:
        assert self._remote is not None
        self.pid = pid
        self._remote.close()
        self._shards.changed()

    def _ended(self, reason: str) -> None:
        """Handle the unexpected end of the process, which is started again."""
        self._close_link()
        self.close_remote()
        self.pid = 0
        self.refusal = self.refusal or f"its process {reason}"
        self.restarts += 1
        self._set_state(RESTARTING)
        self._shards.changed()

    def close_remote(self) -> None:
        """Close the end of the link that a process should have got which could not be started."""
        if self._remote is not None:
            self._remote.close()

    def _close_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._acknowledging is not None:
            self._acknowledging.cancel()
            self._acknowledging = None
        self._suspend()
        self.channels = {}
        self._others = {}
        self._hosts = ""
        self._users.clear()
        self._connections.clear()
        self._shards.changed()

    def _suspend(self) -> None:
        self.is_open = False
        if self.state == READY:
            self._set_state(RESTARTING)

    def _set_state(self, state: str) -> None:
        if state != self.state:
            self.state = state
            self._shards.note_state()

    def check(self, elapsed: float) -> None:
        """Kill the process if it has shown no sign of life for `cluster.shard_timeout`.

        One that does not serve yet may show none, because recovery of a large log takes longer: it is killed if it is
        stopped, or if it uses much processor time without progress.

        Args:
            elapsed: Seconds since the last call, except those in which this process did not run either.
        """
        if self._link is None or self.state == STOPPED:
            return
        problem = "has not answered"
        if self.state != READY:
            problem = "has been stopped"
            if not is_stopped(self.pid):
                self._silence = 0.0
                self._check_progress()
                return
        self._silence += elapsed
        timeout = self._shards.config.cluster.shard_timeout
        if 0 < timeout <= self._silence:
            self._silence = 0.0
            self._kill(f"{problem} for {timeout:g} seconds ('cluster.shard_timeout')")

    def _check_progress(self) -> None:
        """Kill a process that uses processor time, but does not get on with its start."""
        spent = processor_time(self.pid)
        if spent is None or self._has_progressed:
            self._has_progressed, self._spent = False, spent or 0.0
            return
        timeout = self._shards.config.cluster.shard_timeout
        if timeout > 0 and spent - self._spent >= _SPINS * timeout:
            self._has_progressed = True
            self._kill(
                f"has used {_SPINS * timeout:g} seconds of processor time without progress of its recovery"
                f" ({_SPINS} times 'cluster.shard_timeout')"
            )

    def _kill(self, reason: str) -> None:
        """Kill a process that hangs."""
        self.hangs += 1
        logger.error("the process of shard %d %s: killing it", self.number, reason)
        self._suspend()
        self._process.kill()

    # Messages to the process

    def begin(self) -> None:
        """Send all shared records, with which the shard starts to serve."""
        if self._link is not None and self.is_open:
            self._begun_with = self._shards.change_number
            self._changed.clear()
            self._sending = iter(dict(self._shards.records).items())
            self._send_records()

    def change(self, records: Iterable[Record]) -> None:
        """Send changed shared records, now or when the shard reads again."""
        if self._has_begun or self._sending is not None:
            self._changed.update({(kind, key): value for kind, key, value in records})
            self._send_records()

    def _send_records(self) -> None:
        """Send some of the records: all in one turn would hold up the clients of the front."""
        link = self._link
        if link is None or link.is_waiting or self._is_scheduled:
            return
        if self._sending is None:
            if not self._changed:
                return
            self._sending, self._changed = iter(self._changed.items()), {}
            self._sending_to = self._shards.change_number
        records, is_last = _take_slice(self._sending)
        if is_last:
            self._sending = None
        if self._has_begun:
            link.send(Change(self._sending_to if is_last else self.applied, records))
        elif is_last:
            self._has_begun = True
            link.send(Begin(records))
            if self._shards.config is not self._config:
                self.reload(self._shards.config)
            self.note_listeners(self._shards.listeners)
        else:
            link.send(Records(records))
        if self._sending is not None or self._changed:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_more)

    def _send_more(self) -> None:
        self._is_scheduled = False
        self._send_records()

    def declare(self, vhosts: list[str]) -> None:
        """Have the shard create vhosts of the configuration."""
        if self._link is not None:
            self._link.send(Declare(vhosts))

    def reload(self, config: Config) -> None:
        """Have the shard apply a changed configuration."""
        if self._link is not None and self._has_begun:
            self._link.send(Reload(shard_config(config, self.number)))

    # Messages of the process

    def _received(self, message: Message, carried: socket.socket | None) -> None:
        self._has_progressed = True
        self._silence = 0.0
        match message:
            case Beat():
                return
            case Opened():
                self.is_open = True
                self.shared = message.shared
                self.vhosts = dict.fromkeys(message.vhosts)
                self._shards.opened(self)
            case Ready():
                self._set_state(READY)
                self.applied = max(self.applied, self._begun_with)
                self._shards.ready()
            case Suspended():
                self._suspend()
            case Applied():
                self.applied = max(self.applied, message.number)
            case Ended():
                user = self._users.pop(message.connection, None)
                if user is not None:
                    self._connections[user] -= 1
                    if not self._connections[user]:
                        del self._connections[user]
            case Vhosts():
                for name in message.added:
                    self._shards.note_vhost(self, name, exists=True)
                for name in message.removed:
                    self._shards.note_vhost(self, name, exists=False)
            case Channels():
                self.channels = message.counts
                self._shards.share_channels()
            case Refused():
                self.refusal = message.text
            case Lost():
                self.has_lost = True
            case Audited():
                self._audited(message)
            case _:
                logger.error("shard %d sent an unexpected %s", self.number, type(message).__name__)
        self._shards.changed()

    def _audited(self, message: Audited) -> None:
        """Add a record to the audit log, and tell the shard when it is written."""
        self._shards.audit.add(read_record(message))
        self._audited_to = message.number
        if self._acknowledging is None or self._acknowledging.done():
            self._acknowledging = asyncio.create_task(self._acknowledge())

    async def _acknowledge(self) -> None:
        """Tell the process which of its records of the audit log are written, until all are."""
        number = 0
        while self._link is not None and number != self._audited_to:
            number = self._audited_to
            await self._shards.audit.written()
            self._link.send(AuditWritten(number))


def _take_slice(records: Iterator[tuple[tuple[str, str], bytes | None]]) -> tuple[list[Record], bool]:
    """Return the next records, and whether these are the last ones."""
    taken: list[Record] = []
    size = 0
    for (kind, key), value in records:
        taken.append((kind, key, value))
        size += len(value or b"")
        if len(taken) >= MAX_RECORDS or size >= MAX_RECORD_BYTES:
            return taken, False
    return taken, True


class Shards:
    """All shards, and the shared records.

    Args:
        config: The configuration of the broker.
        config_name: The name of the configuration in messages.
        salvage: The data losses that the operator accepts for the first start of each shard.
        asks_shared: Whether the shared records are still those in the log of shard 0.
        stop_timeout: Seconds for a shard to stop.

    Attributes:
        config: The configuration of the broker.
        all: The shards by number.
        records: The shared records, by kind and key.
        change_number: The number of the last change of shared records.
        audit: The audit log.
        patience: Seconds for which a client waits for a shard that is restarting.
    """

    patience = 0.0

    def __init__(
        self, config: Config, config_name: str, salvage: Salvage, *, asks_shared: bool, stop_timeout: float
    ) -> None:
        self.config = config
        self._config_name = config_name
        self._salvage = salvage
        self._asks_shared = asks_shared
        self.records: dict[tuple[str, str], bytes] = {}
        self.change_number = 0
        self.listeners: list[str] = []
        self.audit = AuditLog()
        self._vhost_removed: Callable[[str], None] | None = None
        self._state_changed: Callable[[], None] | None = None
        self._has_begun = False
        self._checking: asyncio.Task[None] | None = None
        self._is_sharing = False
        self._changed = asyncio.Event()
        self.all: Sequence[Shard] = [self._make_shard(number, stop_timeout) for number in range(config.cluster.shards)]

    def _make_shard(self, number: int, stop_timeout: float) -> Shard:
        return Shard(self, number, self._settings, stop_timeout)

    def _settings(self, number: int, descriptor: int) -> ShardSettings:
        is_first = not self.all[number].restarts
        return ShardSettings(
            number=number,
            descriptor=descriptor,
            config=shard_config(self.config, number),
            config_name=self._config_name,
            control=str(self.all[number].control),
            asks_shared=self._asks_shared and number == 0 and not self._has_begun,
            accept_missing=is_first and self._salvage.accept_missing,
            drop_damaged=is_first and self._salvage.drop_damaged,
        )

    def report(self, audit: AuditLog, vhost_removed: Callable[[str], None], state_changed: Callable[[], None]) -> None:
        """Report to a front, once it is recovered.

        Args:
            audit: Where changes in shards are recorded.
            vhost_removed: Called with the name of each vhost that a shard has removed.
            state_changed: Called when the state of a shard has changed.
        """
        self.audit, self._vhost_removed, self._state_changed = audit, vhost_removed, state_changed

    def note_listeners(self, urls: list[str]) -> None:
        """Note the addresses that the front listens on, as URLs."""
        self.listeners = urls
        for shard in self.all:
            shard.note_listeners(urls)

    def note_state(self) -> None:
        """Note that the state of a shard has changed."""
        if self._state_changed is not None:
            self._state_changed()

    # Placement

    @property
    def cluster(self) -> Cluster:
        """The nodes that share the shards. Raises `PreconditionFailed` if the broker is not a node."""
        raise not_a_node()

    def cluster_status(self) -> ClusterStatus | msgspec.UnsetType:
        """Return the state of the cluster, as it was a short while ago; UNSET if the broker is not a node."""
        return msgspec.UNSET

    def nodes(self) -> list[NodeDetails] | msgspec.UnsetType:
        """Return the nodes by name; UNSET if the broker is not a node."""
        return msgspec.UNSET

    @property
    def is_draining(self) -> bool:
        """Whether the broker is a node that moves its shards away, and takes no clients."""
        return False

    @property
    def is_isolated(self) -> bool:
        """Whether the broker is a node without a link to another one, though others reach each other."""
        return False

    @property
    def used(self) -> Sequence[Shard]:
        """The shards that should serve."""
        return self.all

    async def prepare(self, name: str, number: int | None) -> None:
        """Prepare the shard of a new vhost.

        Args:
            name: The name of the vhost.
            number: The number of the wanted shard, if any.

        Raises:
            PreconditionFailed: The wanted shard has no owner, and gets none here.
            StorageFailed: The shard cannot be started.
        """

    def of_vhost(self, name: str) -> Shard | None:
        """Return the shard that has a vhost; None if there is no such vhost."""
        return next((shard for shard in self.all if name in shard.vhosts), None)

    def shard_of(self, vhost: str) -> Shard | None:
        """Return the target of connections to a vhost, as `of_vhost`."""
        return self.of_vhost(vhost)

    def in_other_nodes(self, user: str) -> int:
        """Return the number of connections of a user to shards of other nodes."""
        return 0

    def channels_in_other_nodes(self) -> Mapping[str, int]:
        """Return the numbers of channels in shards of other nodes, by user."""
        return {}

    def share_channels(self) -> None:
        """Tell each shard the numbers of channels in all others, soon, and once for several changes."""
        if not self._is_sharing:
            self._is_sharing = True
            asyncio.get_running_loop().call_later(_SHARE_DELAY, self._share_channels)

    def _share_channels(self) -> None:
        self._is_sharing = False
        total = Counter(self.channels_in_other_nodes())
        for shard in self.all:
            total.update(shard.channels)
        for shard in self.all:
            own = shard.channels
            shard.note_others({user: rest for user, count in total.items() if (rest := count - own.get(user, 0))})

    def of_connection(self, number: int) -> Shard:
        """Return the shard that has the connection with a number, if there is one."""
        return self.all[(number - 1) % len(self.all)]

    def note_vhost(self, shard: Shard, name: str, *, exists: bool) -> None:
        """Note that a shard has created or deleted a vhost."""
        if shard.note_vhost(name, exists=exists) and not exists and self._vhost_removed is not None:
            self._vhost_removed(name)

    # Start and stop

    def fork(self, serve: Callable[[ShardSettings], int]) -> None:
        """Fork the first process of each shard, which calls `serve`. There must not be an event loop yet."""
        for shard in self.all:
            shard.fork(serve)

    def start(self) -> None:
        """Start all shards that do not run yet, without waiting for them."""
        for shard in self.all:
            shard.start()
        self._start_checking()

    async def opened_all(self) -> None:
        """Wait until the logs of all shards are open. Raises `StartFailed`."""
        await self._started(lambda: all(shard.is_open for shard in self.all))
        self._check_vhosts()

    async def begin(self) -> None:
        """Let all shards serve, and wait until they do. Creates the vhosts of the configuration. Raises `StartFailed`."""
        self._has_begun = True
        for shard in self.all:
            shard.begin()
        await self._started(lambda: all(shard.state == READY for shard in self.all) and not self._missing_vhosts())

    def _start_checking(self) -> None:
        self._checking = asyncio.create_task(self._keep_checking())

    async def _keep_checking(self) -> None:
        """Check periodically whether the processes of the shards run."""
        checked = time.monotonic()
        while True:
            interval = beat_interval(self.config.cluster.shard_timeout)
            await asyncio.sleep(interval)
            before, checked = checked, time.monotonic()
            for shard in self.all:
                # A pause of this process, such as one of the whole machine, is none of the shards.
                shard.check(min(checked - before, 2 * interval))

    async def stop(self, reason: str) -> None:
        """Stop all shards."""
        if self._checking is not None:
            self._checking.cancel()
        await asyncio.gather(*(shard.stop(reason) for shard in self.all))

    def opened(self, shard: Shard) -> None:
        """Handle that the log of a shard is open."""
        if self._has_begun:
            shard.begin()

    def ready(self) -> None:
        """Handle that a shard serves: create the vhosts of the configuration, once all do."""
        if all(shard.state == READY for shard in self.all):
            self._declare()

    def _declare(self) -> None:
        names: dict[Shard, list[str]] = {}
        vhosts = Counter({shard: len(shard.vhosts) for shard in self.all})
        for name in self._missing_vhosts():
            shard = min(self.all, key=lambda shard: (vhosts[shard], shard.connections, shard.number))
            vhosts[shard] += 1
            names.setdefault(shard, []).append(name)
        for shard, missing in names.items():
            shard.declare(missing)

    def _missing_vhosts(self) -> list[str]:
        """Return the vhosts of the configuration that no shard has."""
        return [name for name in self.config.vhosts if self.of_vhost(name) is None]

    def _check_vhosts(self) -> None:
        """Raise `StartFailed` if two shards have a vhost of the same name."""
        owners: dict[str, Shard] = {}
        for shard in self.all:
            for name in shard.vhosts:
                other = owners.setdefault(name, shard)
                if other is not shard:
                    raise StartFailed(
                        f"the shards {other.number} and {shard.number} both have the vhost '{name}'; restore one of the"
                        f" directories in {shard.control.parent} from a backup"
                    )

    async def _started(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition during the start. Raises `StartFailed` if a shard cannot start."""
        await self._until(lambda: any(shard.refusal for shard in self.all) or condition())
        for shard in self.all:
            if shard.refusal:
                raise StartFailed(f"shard {shard.number} cannot start: {shard.refusal}")

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def changed(self) -> None:
        """Note that a shard has changed."""
        self._changed.set()

    # Configuration and shared records

    def reload(self, config: Config) -> None:
        """Apply a changed configuration in all shards."""
        self.config = config
        for shard in self.all:
            shard.reload(config)
        self.ready()

    def replace(self, records: Iterable[Record]) -> None:
        """Replace all shared records, when the front has opened its log."""
        new = {(kind, key): value for kind, key, value in records if value is not None}
        for known in self.records.keys() - new.keys():
            self.put(*known, None)
        for (kind, key), value in new.items():
            if self.records.get((kind, key)) != value:
                self.put(kind, key, value)

    def put(self, kind: str, key: str, value: bytes | None) -> None:
        """Pass a change of a shared record on to the shards."""
        if value is None:
            self.records.pop((kind, key), None)
        else:
            self.records[kind, key] = value
        self.change_number += 1
        for shard in self.all:
            shard.change([(kind, key, value)])

    async def applied(self) -> None:
        """Wait until all shards that serve have applied the changes so far. Raises `StorageFailed` after a while."""
        number = self.change_number

        def late() -> list[Shard]:
            return [shard for shard in self.all if shard.state == READY and shard.applied < number]

        try:
            async with asyncio.timeout(APPLY_TIMEOUT):
                await self._until(lambda: not late())
        except TimeoutError:
            names = ", ".join(f"shard {shard.number}" for shard in late())
            raise StorageFailed(f"the change is stored, but not in effect yet: {names} does not answer") from None
