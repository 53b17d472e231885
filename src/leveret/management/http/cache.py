"""A copy of the broker's objects and counters, at most 1.5 seconds old, with their samples.

The process asks the broker for changes each second, and before a list that follows a change through the API or the
declaration, deletion or binding of an exchange or queue by a client, so that a list shows what was answered before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

from leveret.management.http.control import Control, Row, renamed
from leveret.management.http.errors import SHARD_UNAVAILABLE, BrokerRefused, BrokerUnavailable
from leveret.management.http.events import Events
from leveret.management.http.measured import Measured
from leveret.management.http.metrics.totals import GlobalTotals
from leveret.management.http.objects import (
    CHANNEL,
    CONNECTION,
    EXCHANGE,
    QUEUE,
    CachedChannel,
    CachedConnection,
    CachedExchange,
    CachedQueue,
    Flows,
    NodeTotals,
    VhostTotals,
    connection_data,
    is_open,
)
from leveret.management.http.samples import Layout
from leveret.management.operations.shards import READY

logger = logging.getLogger("leveret.http")

INTERVAL: Final = 1.0
# Minimum seconds between two passes, as a multiple of the duration of the last one: the broker compares all objects.
_IDLE_SHARE: Final = 10
# Maximum seconds between two passes: rates are those of the last five seconds. A busy machine makes a pass last longer.
_MAX_WAIT: Final = 3.0
# Seconds after which copies are too old to answer with.
MAX_AGE: Final = 1.5
# Uptime of the broker in seconds up to which its first messages count as those since the start of this process.
_RECENT: Final = 10.0
# Number of changes after which other requests are served.
_STEP: Final = 500


class Cache:
    """Copies of the broker's queues, exchanges, connections, channels and totals.

    Attributes:
        queues: Queues by their ids.
        exchanges: Exchanges by vhost and name.
        connections: Connections by their numbers.
        channels: Channels by the numbers of their connections and their own.
        vhosts: Totals of vhosts by their names.
        node: Gauges of the broker's process.
        messages: Totals of messages by protocol and queue type.
        process: What the broker says about its process.
        shards: What the broker says about its shards, if it has several processes.
        nodes: What it says about the nodes of its cluster, if it is one.
        cluster: What it says about the cluster; None if it is not a node.
        tick: The second of the last regular pass.
        started: The second before the first pass.
    """

    def __init__(self, control: Control, clock: Callable[[], float] = time.time, events: Events | None = None) -> None:
        self._control = control
        self._events = events if events is not None else Events()
        self._clock = clock
        self._reader = ""
        # Whether the pass in progress has everything, so that its objects need not be new.
        self._is_first = True
        self._lock = asyncio.Lock()
        self._change = 0
        # The change before which the last pass began, and the time of its beginning.
        self._passed_change = -1
        self._passed_at = 0.0
        # The topology, as of `Control.topology`, before the last pass of a reader.
        self._topology: list[Row] = []
        self._took = 0.0
        self.tick = self.started = int(clock())
        # The tick of samples: after a regular pass, they belong to the next one.
        self._sampling = self.tick
        self.queues: dict[int, CachedQueue] = {}
        self._queues_by_name: dict[tuple[str, str], CachedQueue] = {}
        # Times of deletions since the last `take_deleted`, by vhost, name and id.
        self._deleted: dict[tuple[str, str, int], int] = {}
        self.exchanges: dict[tuple[str, str], CachedExchange] = {}
        self.connections: dict[int, CachedConnection] = {}
        self.channels: dict[tuple[int, int], CachedChannel] = {}
        self.vhosts: dict[str, VhostTotals] = {}
        self.node = NodeTotals()
        self.messages = GlobalTotals()
        self.process: Row = {}
        self.shards: list[Row] = []
        self.nodes: list[Row] = []
        self.cluster: Row | None = None
        # The uptime of the broker at the end of the last pass; None before the first one.
        self._uptime: float | None = None
        self._handlers: dict[str, Callable[[Any, Any], None]] = {
            "begin": self._begin,
            "node": self._set_node,
            "audit": self._audit,
            "end": self._end,
            "vhost.sample": self._vhost_sample,
            "vhost.gone": self._vhost_gone,
            "exchange": self._exchange,
            "exchange.sample": self._exchange_sample,
            "exchange.gone": self._exchange_gone,
            "queue": self._queue,
            "queue.sample": self._queue_sample,
            "queue.incoming": self._queue_incoming,
            "queue.head": self._queue_head,
            "queue.unacked": self._queue_unacked,
            "queue.gone": self._queue_gone,
            "connection": self._connection,
            "connection.sample": self._connection_sample,
            "connection.gone": self._connection_gone,
            "channel": self._channel,
            "channel.unacked": self._channel_unacked,
            "channel.gone": self._channel_gone,
        }

    # Reading

    def expire(self) -> None:
        """Have the next reader ask the broker for changes."""
        self._change += 1

    async def refresh_now(self) -> None:
        """Ask the broker for changes, so that the copies are those of now. Raises as `refresh`."""
        self.expire()
        await self.refresh()

    async def refresh(self) -> None:
        """Ask the broker for changes, if there may be any that a reader must see. Raises `BrokerUnavailable`.

        The objects of shards that are not ready are missing.
        """
        wanted, asked = self._change, time.monotonic()
        topology = await self._control.topology()
        if not self._is_fresh(wanted, topology):
            async with self._lock:
                # A pass for another reader may have begun meanwhile.
                if self._passed_at < asked and not self._is_fresh(wanted, topology):
                    await self._pass_if_ready()
                    self._topology = topology

    async def _pass_if_ready(self) -> None:
        """Ask the broker for changes. If a shard ends meanwhile, the copies stay as they are."""
        try:
            await self._pass()
        except BrokerRefused as refused:
            if refused.condition != SHARD_UNAVAILABLE or not self.process:
                raise

    def missing_shards(self) -> list[int]:
        """Return the numbers of the shards with vhosts that are not ready."""
        return [shard["number"] for shard in self.shards if shard["state"] != READY and shard["vhosts"]]

    async def reset(self) -> None:
        """Forget samples and churn, and ask the broker for everything. Raises `BrokerUnavailable`."""
        async with self._lock:
            self._reader = ""
            self.node.reset()
            await self._pass()

    def _is_fresh(self, change: int, topology: list[Row]) -> bool:
        return self._passed_change >= change and self._topology == topology and time.monotonic() - self._passed_at < MAX_AGE

    async def poll(self, ticked: Callable[[], None]) -> None:
        """Ask the broker for changes each second, then call `ticked`."""
        while True:
            wait = max(1.0 - self._clock() % 1.0, min(self._took * _IDLE_SHARE, _MAX_WAIT))
            await asyncio.sleep(wait)
            now = max(round(self._clock()), self.tick + 1)
            try:
                async with self._lock:
                    self._sampling = now
                    await self._pass()
            except (BrokerUnavailable, BrokerRefused) as error:
                logger.debug("no statistics: %s", error)
            self.tick = now
            self._sampling = now + 1
            ticked()

    async def _pass(self) -> None:
        try:
            await self._read()
        except BrokerRefused as refused:
            if refused.condition != SHARD_UNAVAILABLE:
                raise
            await self._read()  # a shard was restarted: begin again

    async def _read(self) -> None:
        if not self._reader:
            self._reader = secrets.token_hex(8)
        change, began = self._change, time.monotonic()
        try:
            found = await self._control.call("statistics.changes", {"reader": self._reader})
            self._took = time.monotonic() - began
            # Everything replaces the earlier copies, so it is applied at once.
            step = len(found) if found[0][2] else _STEP
            for at in range(0, len(found), step):
                self.apply(found[at : at + step])
                await asyncio.sleep(0)
        except BaseException:
            self._reader = ""  # what was sent is lost: begin again
            raise
        self._passed_change, self._passed_at = change, began

    def apply(self, changes: list[list[Any]]) -> None:
        """Apply changes from the broker."""
        handlers = self._handlers
        for kind, key, value in changes:
            handlers[kind](key, value)

    def _begin(self, _: object, is_first: bool) -> None:
        self._is_first = is_first
        if is_first:
            self._events.reset()
            for objects in (
                self.queues,
                self._queues_by_name,
                self.exchanges,
                self.connections,
                self.channels,
                self.vhosts,
            ):
                objects.clear()

    def _end(self, _: object, __: object) -> None:
        increments = []
        for totals in self.vhosts.values():
            before = totals.totals
            totals.sample(self._sampling)
            if totals.totals is not before:
                increments.append({name: value - before[name] for name, value in totals.totals.items()})
        if self._has_counted():
            self.messages.discard()
        else:
            self.messages.add(increments)
        self.node.sample(self._sampling, self._node_values())

    def _has_counted(self) -> bool:
        """Return whether messages of this pass are counted already, or were before this process started."""
        uptime, before = self.process["process"]["uptime"], self._uptime
        self._uptime = uptime
        if not self._is_first:
            return False
        return uptime > _RECENT if before is None else bool(uptime >= before)

    def _new(self, measured: Measured, layout: Layout) -> None:
        if not self._is_first:
            measured.begin(layout)

    # Vhosts and exchanges

    def totals(self, vhost: str) -> VhostTotals:
        """Return the totals of a vhost. Those of an unknown one are 0."""
        return self.vhosts.get(vhost) or VhostTotals()

    def _totals(self, vhost: str) -> VhostTotals:
        """Return the totals of a vhost, which the broker describes before its objects."""
        found = self.vhosts.get(vhost)
        if found is None:
            found = self.vhosts[vhost] = VhostTotals()
        return found

    def _vhost_sample(self, name: str, sample: list[int]) -> None:
        self._totals(name).set_ended(sample)

    def _vhost_gone(self, name: str, _: object) -> None:
        self.vhosts.pop(name, None)

    def _exchange(self, key: list[str], item: Row) -> None:
        known = self.exchanges.get((key[0], key[1]))
        if known is not None:
            known.item = item
            self._publish_exchange("changed", item)
            return
        if not self._is_first:
            self._publish_exchange("created", item)
        exchange = self.exchanges[key[0], key[1]] = CachedExchange(item)
        self._new(exchange, EXCHANGE)

    def _publish_exchange(self, action: str, item: Row) -> None:
        data = {name: item[name] for name in ("vhost", "name", "type", "durable", "auto_delete", "internal")}
        self._events.publish("exchange", action, data, item["vhost"])

    def _exchange_sample(self, key: list[str], sample: list[int]) -> None:
        self.exchanges[key[0], key[1]].sample(self._sampling, sample)
        self._events.note_statistics("exchange")

    def _exchange_gone(self, key: list[str], _: object) -> None:
        self._publish_exchange("deleted", self.exchanges.pop((key[0], key[1])).item)

    # Queues

    def queue(self, vhost: str, name: str) -> CachedQueue | None:
        """Return the queue with this name."""
        return self._queues_by_name.get((vhost, name))

    def _queue(self, number: int, item: Row) -> None:
        known = self.queues.get(number)
        if known is not None:
            known.describe(item)
            self._publish_queue("changed", item)
            return
        queue = self.queues[number] = CachedQueue(number, item, self._totals(item["vhost"]))
        self._queues_by_name[item["vhost"], item["name"]] = queue
        if not self._is_first:
            self._publish_queue("created", item)
            self._new(queue, QUEUE)

    def _publish_queue(self, action: str, item: Row) -> None:
        data = {name: item[name] for name in ("vhost", "name", "type", "durable", "auto_delete", "exclusive")}
        data["state"] = "paused" if item["paused"] else "running"
        self._events.publish("queue", action, data, item["vhost"])

    def _queue_sample(self, number: int, sample: list[Any]) -> None:
        queue = self.queues[number]
        increments = queue.sample(self._sampling, sample)
        self.messages.queue_counted(queue.item["type"], increments)
        self._events.note_statistics("queue")

    def _queue_incoming(self, number: int, counts: dict[str, int]) -> None:
        queue = self.queues[number]
        if queue.flows is None:
            queue.flows = Flows()
            if not self._is_first:
                queue.flows.set(self._sampling - 1, dict.fromkeys(counts, 0))  # it was unknown, and had none
        queue.flows.set(self._sampling, counts)

    def _queue_head(self, number: int, head: list[Any]) -> None:
        self.queues[number].set_head(*head)

    def _queue_unacked(self, number: int, since: int) -> None:
        queue = self.queues.get(number)
        if queue is not None:  # a deleted queue may have unacked messages
            queue.unacked_since = since

    def _queue_gone(self, number: int, _: object) -> None:
        queue = self.queues.pop(number)
        item = queue.item
        self._publish_queue("deleted", item)
        if self._queues_by_name.get((item["vhost"], item["name"])) is queue:
            del self._queues_by_name[item["vhost"], item["name"]]
        queue.leave()
        self._deleted[item["vhost"], item["name"], number] = int(self._clock())

    def take_deleted(self) -> dict[tuple[str, str, int], int]:
        """Return the times at which queues were deleted since the last call, by vhost, name and id."""
        deleted, self._deleted = self._deleted, {}
        return deleted

    # Connections and channels

    def _connection(self, number: int, reply: Row) -> None:
        item = renamed(reply)
        known = self.connections.get(number)
        totals = self._totals(item["vhost"]) if item["vhost"] else None
        if known is not None:
            was_open = is_open(known.item)
            known.describe(item, totals)
            if is_open(item) and not was_open:
                self._publish_connection("opened", item)
            return
        connection = self.connections[number] = CachedConnection(item, totals)
        self.messages.received(number, item["bytes_in"])
        if not self._is_first:
            self._new(connection, CONNECTION)
            if is_open(item):
                self._publish_connection("opened", item)

    def _publish_connection(self, action: str, item: Row) -> None:
        self._events.publish("connection", action, connection_data(item), item["vhost"], item["user"])

    def _connection_sample(self, number: int, sample: list[int]) -> None:
        connection = self.connections[number]
        self.messages.received(number, sample[0] - connection.item["bytes_in"])
        connection.sample(self._sampling, sample)
        self._events.note_statistics("connection")

    def _connection_gone(self, number: int, _: object) -> None:
        connection = self.connections.pop(number)
        connection.leave()
        self.messages.closed(number)
        if is_open(connection.item):
            self._publish_connection("closed", connection.item)

    def _channel(self, key: list[int], item: Row) -> None:
        at = (key[0], key[1])
        channel = self.channels.get(at)
        if channel is None:
            channel = self.channels[at] = CachedChannel()
            if not self._is_first:
                self._new(channel, CHANNEL)
        increments = channel.sample(self._sampling, item)
        connection = self.connections.get(key[0])
        if connection is not None:
            self.messages.channel_counted(key[0], connection.item["protocol"], increments)
        self._events.note_statistics("channel")

    def _channel_unacked(self, key: list[int], since: int) -> None:
        channel = self.channels.get((key[0], key[1]))
        if channel is not None:
            channel.unacked_since = since

    def _channel_gone(self, key: list[int], _: object) -> None:
        del self.channels[key[0], key[1]]
        self._events.note_statistics("channel")

    # The process

    def _set_node(self, _: object, value: Row) -> None:
        before = self.process.get("alarm", "")
        self.process = value
        self.shards = value.get("shards", [])
        self.nodes = value.get("nodes", [])
        self.cluster = value.get("cluster")
        for name, process in value.get("processes", {"": value}).items():
            self.node.count(name, process.get("churn", {}))  # other nodes may have an earlier version
        alarm = value["alarm"]
        if alarm != before:
            if before:
                self._events.publish("alarm", "cleared", {"alarm": before})
            if alarm:
                self._events.publish("alarm", "raised", {"alarm": alarm})

    def _audit(self, _: object, record: Row) -> None:
        self._events.audited(record)

    def _node_values(self) -> dict[str, int]:
        process = self.process["process"]
        return {
            "mem_used": process["memory"],
            "fd_used": sum(open_files(pid)[0] for pid in (process["pid"], *(shard["pid"] for shard in self.shards))),
            "sockets_used": len(self.connections),
            "disk_free": disk_free(process["data_dir"]),
        }


def open_files(pid: int) -> tuple[int, int]:
    """Return the number of open files of the broker and its limit; 0 if the system does not say."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd")), resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
    except (OSError, AttributeError):
        return 0, 0


def disk_free(path: str) -> int:
    """Return the free bytes of a file system; 0 if the system does not say."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return 0
    return disk.f_bavail * disk.f_frsize
