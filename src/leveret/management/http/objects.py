"""Objects of the broker as the HTTP process keeps them: what the broker said about each, and its samples."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from leveret.broker.statistics import QUEUE_COUNTERS, QUEUE_GAUGES
from leveret.management.connection_names import broker_of, client_of
from leveret.management.http.control import Row
from leveret.management.http.measured import DATA, LENGTHS, MESSAGES, NODE, Measured, Statistic
from leveret.management.http.samples import RATE_SPAN, Layout

# Keys of a queue in the broker's answers, in the order of its samples.
_QUEUE_KEYS: Final = (
    "published",
    "delivered",
    "delivered_no_ack",
    "got",
    "got_no_ack",
    "got_empty",
    "redelivered",
    "acked",
    *QUEUE_GAUGES,
)
_COUNTERS: Final = len(QUEUE_COUNTERS)
_UNACKED: Final = _QUEUE_KEYS.index("unacked")
_STREAM: Final = "stream"
# Milliseconds to which the consumer capacity refers.
CAPACITY_SPAN: Final = 1000 * RATE_SPAN
# Keys that follow in samples, which have no sums.
_BLOCKED: Final = ("blocked_time", "blocked_since")
_ALL_QUEUE_KEYS: Final = (*_QUEUE_KEYS, *_BLOCKED)
_EXCHANGE_KEYS: Final = ("publish_in", "publish_out", "deduplication_keys", "dropped_duplicates")
# RabbitMQ's names of protocols that have another one here.
PROTOCOLS: Final = {"AMQP 1.0": "AMQP 1-0"}
_CONNECTION_KEYS: Final = ("bytes_in", "reads", "bytes_out", "writes", "channels", "unwritten")

# Few queues use all series: nine take 9 KiB.
QUEUE: Final = Layout(
    ("ready", "unacked"), ("publish", "deliver", "ack", "redeliver", "get", "deliver_no_ack", "get_no_ack"), late=4
)
EXCHANGE: Final = Layout((), ("publish_in", "publish_out"))
CONNECTION: Final = Layout((), ("recv_oct", "recv_cnt", "send_oct", "send_cnt"), "Q")
CHANNEL: Final = Layout(
    (),
    (
        "publish",
        "confirm",
        "deliver",
        "ack",
        "redeliver",
        "get",
        "deliver_no_ack",
        "get_no_ack",
        "return_unroutable",
        "drop_unroutable",
    ),
    late=6,
)
VHOST: Final = Layout(
    ("ready", "unacked"),
    (
        "publish",
        "confirm",
        "return_unroutable",
        "drop_unroutable",
        "deliver",
        "deliver_no_ack",
        "get",
        "get_no_ack",
        "get_empty",
        "redeliver",
        "ack",
        "recv_oct",
        "send_oct",
    ),
    "Q",
)
CHURN: Final = (
    "channel_closed",
    "channel_created",
    "connection_closed",
    "connection_created",
    "queue_created",
    "queue_declared",
    "queue_deleted",
)
NODE_LAYOUT: Final = Layout(("mem_used", "fd_used", "sockets_used", "disk_free"), CHURN, "Q")


# Counters whose sum is `deliver_get`.
DELIVERIES: Final = ("deliver", "deliver_no_ack", "get", "get_no_ack")
# Statistics that Leveret does not have, which are always 0.
_NONE: Final = Statistic((), MESSAGES)
_NO_DATA: Final = Statistic((), DATA)


def _messages(layout: Layout, *names: str) -> dict[str, Statistic]:
    return {name: Statistic(layout.indices(name), MESSAGES) for name in names}


def _lengths(layout: Layout) -> dict[str, Statistic]:
    return {
        "messages": Statistic(layout.indices("ready", "unacked"), LENGTHS, True),
        "messages_ready": Statistic(layout.indices("ready"), LENGTHS, True),
        "messages_unacknowledged": Statistic(layout.indices("unacked"), LENGTHS, True),
    }


QUEUE_STATISTICS: Final = {
    **_lengths(QUEUE),
    **_messages(QUEUE, *QUEUE.counters),
    "deliver_get": Statistic(QUEUE.indices(*DELIVERIES), MESSAGES),
    **dict.fromkeys(("confirm", "disk_reads", "disk_writes", "drop_unroutable", "get_empty", "return_unroutable"), _NONE),
    "reductions": _NO_DATA,
}
EXCHANGE_STATISTICS: Final = _messages(EXCHANGE, "publish_in", "publish_out")
CONNECTION_STATISTICS: Final = {
    **{name: Statistic(CONNECTION.indices(name), DATA) for name in ("recv_oct", "recv_cnt", "send_oct", "send_cnt")},
    "reductions": _NO_DATA,
}
CHANNEL_STATISTICS: Final = {
    **_messages(CHANNEL, *CHANNEL.counters),
    "deliver_get": Statistic(CHANNEL.indices(*DELIVERIES), MESSAGES),
    "get_empty": _NONE,
    "reductions": _NO_DATA,
}
VHOST_STATISTICS: Final = {
    **_lengths(VHOST),
    **_messages(VHOST, *VHOST.counters[:-2]),
    "deliver_get": Statistic(VHOST.indices(*DELIVERIES), MESSAGES),
    **dict.fromkeys(("disk_reads", "disk_writes"), _NONE),
    "recv_oct": Statistic(VHOST.indices("recv_oct"), DATA),
    "send_oct": Statistic(VHOST.indices("send_oct"), DATA),
}
# Statistics of Erlang's storage and virtual machine, which are always 0.
ERLANG_COUNTERS: Final = (
    "context_switches",
    "gc_bytes_reclaimed",
    "gc_num",
    "io_file_handle_open_attempt_count",
    "io_read_bytes",
    "io_read_count",
    "io_reopen_count",
    "io_seek_count",
    "io_sync_count",
    "io_write_bytes",
    "io_write_count",
    "mnesia_disk_tx_count",
    "mnesia_ram_tx_count",
    "msg_store_read_count",
    "msg_store_write_count",
    "queue_index_read_count",
    "queue_index_write_count",
)
ERLANG_TIMES: Final = (
    "io_file_handle_open_attempt_avg_time",
    "io_read_avg_time",
    "io_seek_avg_time",
    "io_sync_avg_time",
    "io_write_avg_time",
)
CHURN_STATISTICS: Final = {name: Statistic(NODE_LAYOUT.indices(name), MESSAGES) for name in CHURN}
NODE_STATISTICS: Final = {
    **{name: Statistic(NODE_LAYOUT.indices(name), NODE, True) for name in NODE_LAYOUT.gauges},
    **{name: Statistic(NODE_LAYOUT.indices(name), NODE) for name in CHURN},
    **dict.fromkeys((*ERLANG_COUNTERS, *ERLANG_TIMES, "proc_used"), Statistic((), NODE)),
}


class Flows:
    """Counts of messages by a name, with those of the last seconds."""

    def __init__(self) -> None:
        self._counts: dict[str, deque[tuple[int, int]]] = {}

    def set(self, tick: int, counts: Mapping[str, int]) -> None:
        """Set the counts at a tick."""
        for name, count in counts.items():
            known = self._counts.setdefault(name, deque())
            if known and known[-1][0] == tick:
                known.pop()
            known.append((tick, count))
            while len(known) > 1 and known[1][0] <= tick - RATE_SPAN:
                known.popleft()

    def rates(self, tick: int) -> dict[str, float]:
        """Return the increase per second in the last seconds, of names with any."""
        found = {}
        for name, known in self._counts.items():
            before = known[0][1]
            for at, count in known:
                if at <= tick - RATE_SPAN:
                    before = count
            if known[-1][1] > before:
                found[name] = (known[-1][1] - before) / RATE_SPAN
        return found


def _deliveries(item: Row) -> tuple[int, ...]:
    """Return the counters of `QUEUE` and `CHANNEL` from `deliver` to `get_no_ack`."""
    got, got_no_ack, delivered_no_ack = item["got"], item["got_no_ack"], item["delivered_no_ack"]
    delivered = item["delivered"] - delivered_no_ack - got - got_no_ack
    return delivered, item["acked"], item["redelivered"], got, delivered_no_ack, got_no_ack


def _unacked_age(unacked: int, since: int, now: float) -> int | None:
    """Return the age of the oldest unacked message in seconds; None if nothing is unacked."""
    if not unacked:
        return None
    return max(int(now - since / 1000), 0) if since else 0


def idle_since(changed_at: int, tick: int) -> str | None:
    """Return since when an object is idle; None for one that has changed in the last seconds."""
    if tick - changed_at < RATE_SPAN or not changed_at:
        return None
    return datetime.fromtimestamp(changed_at, UTC).isoformat(timespec="milliseconds")


def ready_of(item: Row) -> int:
    """Return the number of messages of a queue that RabbitMQ calls ready: delayed and leased ones are not unacked."""
    return int(item["ready"] + item["delayed"] + item["leased"])


def unacked_of(item: Row) -> int:
    """Return the number of unacked messages of a queue that are not ready. Those of a stream stay in it."""
    return 0 if item.get("type") == _STREAM else int(item["unacked"])


def ready_bytes_of(item: Row) -> int:
    """Return the bytes of these."""
    return int(item["ready_bytes"] + item["delayed_bytes"] + item["leased_bytes"])


def _blocked_at(now: int, blocked: int, since: int) -> int:
    """Return the milliseconds for which all consumers of a queue were unable to take messages, up to now."""
    return blocked + (max(now - since, 0) if since else 0)


class CachedQueue(Measured):
    """A queue.

    Attributes:
        id: Its id, which no other queue has had.
        item: What `queues.list` says of it.
        changed_at: The second of the last change of its counters or gauges, or the one in which this process learned of it.
        flows: The messages that arrive from each exchange; None before the first one.
        ready_since: When its oldest ready message arrived at the latest, in milliseconds of Unix time; 0 if none is ready.
        unacked_since: When its oldest unacked message was delivered, in milliseconds of Unix time; 0 for less than a
            second ago.
    """

    __slots__ = ("_blocked", "_totals", "changed_at", "flows", "id", "item", "ready_since", "unacked_since")

    def __init__(self, id: int, item: Row, totals: VhostTotals) -> None:
        super().__init__()
        self.id = id
        self.item = item
        self.changed_at = 0
        self.flows: Flows | None = None
        self.ready_since = 0
        self.unacked_since = 0
        # The times of the last changes of `blocked_time` and `blocked_since`, in milliseconds, with these; None before the
        # first one.
        self._blocked: deque[tuple[int, int, int]] | None = None
        if item["blocked_time"] or item["blocked_since"]:
            self._note_blocked(item, 0)
        # Those of the vhost when the queue was new: the vhost may be deleted before the queue.
        self._totals = totals
        totals.count_queue(item, 1)

    def describe(self, item: Row) -> None:
        """Replace the description of the queue."""
        self._totals.count_queue(self.item, -1)
        item |= {key: self.item[key] for key in _BLOCKED}  # the sample follows
        self.item = item
        self.ready_since = 0  # the change `queue.head` follows if messages are ready
        self._totals.count_queue(item, 1)

    def set_head(self, since: int, timestamp: int | None) -> None:
        """Set when the oldest ready message arrived at the latest, and the timestamp of the next one."""
        self.ready_since = since
        self.item["head_timestamp"] = timestamp

    def oldest_ready_age(self, now: float) -> int | None:
        """Return the age of its oldest ready message in seconds; None if none is ready, and for streams."""
        return max(int(now - self.ready_since / 1000), 0) if self.ready_since else None

    def oldest_unacked_age(self, now: float) -> int | None:
        """Return the age of its oldest unacked message in seconds; None if nothing is unacked."""
        return _unacked_age(self.item["unacked"], self.unacked_since, now)

    def _note_blocked(self, item: Row, now: int) -> None:
        """Note for how long its consumers were unable to take messages, and forget what is too old."""
        samples = self._blocked
        if samples is None:
            samples = self._blocked = deque()
        samples.append((now, item["blocked_time"], item["blocked_since"]))
        while len(samples) > 1 and samples[1][0] <= now - CAPACITY_SPAN:
            samples.popleft()

    def consumer_capacity(self, item: Row, now: float) -> float:
        """Return the share of the last seconds in which a consumer was able to take a message; 0 without consumers.

        Args:
            item: What the broker says of the queue now.
            now: The time in seconds.
        """
        if not item["consumers"] or item["paused"]:
            return 0.0
        end = int(now * 1000)
        start = end - CAPACITY_SPAN
        before = 0
        for at, blocked, since in self._blocked or ():
            if at > start:
                # The present time of the sample before may have ended since.
                before = min(before, _blocked_at(at, blocked, since))
                break
            before = _blocked_at(start, blocked, since)
        share = (_blocked_at(end, item["blocked_time"], item["blocked_since"]) - before) / CAPACITY_SPAN
        return 1.0 - min(max(share, 0.0), 1.0)

    def leave(self) -> None:
        """Subtract the deleted queue from the totals of its vhost."""
        self._totals.count_queue(self.item, -1)

    def sample(self, tick: int, sample: list[Any]) -> Sequence[int]:
        """Set the counters and gauges, and return the increments of the counters of `QUEUE`."""
        item = self.item
        self.changed_at = tick
        self._totals.count_changes(item, sample)
        before = item["blocked_time"], item["blocked_since"]
        item.update(zip(_ALL_QUEUE_KEYS, sample, strict=False))
        if before != (item["blocked_time"], item["blocked_since"]):
            self._note_blocked(item, int(time.time() * 1000))
        return self.measure(
            QUEUE,
            tick,
            (ready_of(item), unacked_of(item)),
            (item["published"], *_deliveries(item)),
        )


class CachedExchange(Measured):
    """An exchange. `item` is what `exchanges.list` says of it."""

    __slots__ = ("item",)

    def __init__(self, item: Row) -> None:
        super().__init__()
        self.item = item

    def sample(self, tick: int, sample: list[int]) -> None:
        self.item.update(zip(_EXCHANGE_KEYS, sample, strict=True))
        self.measure(EXCHANGE, tick, (), sample[:2])


def is_open(item: Row) -> bool:
    """Return whether a connection, as the broker describes it, has logged in and opened a vhost."""
    return bool(item["vhost"])


def connection_data(item: Row) -> Row:
    """Return the keys of a connection, as the broker describes it, that clients find in lists and in events.

    Without values that change, and without those of any size: events are kept.
    """
    peer_host, peer_port = endpoint_of(client_of(item["name"]))
    host, port = endpoint_of(broker_of(item["name"]))
    tls = item.get("tls_info") or {}
    return {
        "auth_mechanism": item.get("mechanism", ""),  # other nodes may have an earlier version
        "channel_max": item["channel_max"],
        "connected_at": item["connected_at"],
        "frame_max": item["frame_max"],
        "host": host,
        "name": item["name"],
        "peer_cert_issuer": tls.get("issuer") or None,
        "peer_cert_subject": tls.get("subject") or None,
        "peer_cert_validity": tls.get("validity") or None,
        "peer_host": peer_host,
        "peer_port": peer_port,
        "port": port,
        "protocol": PROTOCOLS.get(item["protocol"], item["protocol"]),
        "ssl": item["tls"],
        "ssl_cipher": tls.get("cipher"),
        "ssl_hash": tls.get("hash"),
        "ssl_key_exchange": tls.get("key_exchange"),
        "ssl_protocol": tls.get("protocol"),
        "timeout": item["heartbeat"],
        "type": "network",
        "user": item["user"],
        "user_who_performed_action": item["user"],
        "vhost": item["vhost"],
    }


def endpoint_of(text: str) -> tuple[str, int]:
    """Return the host and the port of an end of a connection."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else 0


class CachedConnection(Measured):
    """A connection.

    Attributes:
        item: What `connections.list` says of it.
    """

    __slots__ = ("_totals", "item")

    def __init__(self, item: Row, totals: VhostTotals | None) -> None:
        super().__init__()
        self.item = item
        # None until the connection has opened a vhost. The vhost may be deleted before the connection ends.
        self._totals = totals
        self._count(1)

    def describe(self, item: Row, totals: VhostTotals | None) -> None:
        """Replace the description of the connection."""
        self._count(-1)
        self.item, self._totals = item, totals
        self._count(1)

    def leave(self) -> None:
        """Subtract the closed connection from the totals of its vhost."""
        self._count(-1)

    def _count(self, sign: int) -> None:
        if self._totals is not None:
            self._totals.count_bytes(self.item, sign)

    def sample(self, tick: int, sample: list[int]) -> None:
        self._count(-1)
        self.item.update(zip(_CONNECTION_KEYS, sample, strict=False))  # other nodes may have an earlier version
        self._count(1)
        self.measure(CONNECTION, tick, (), sample[:4])


class CachedChannel(Measured):
    """A channel. `item` is what `channels.list` says of it; `changed_at` and `unacked_since` are as for a queue."""

    __slots__ = ("changed_at", "item", "unacked_since")

    def __init__(self) -> None:
        super().__init__()
        self.item: Row = {}
        self.changed_at = 0
        self.unacked_since = 0

    def oldest_unacked_age(self, now: float) -> int | None:
        """Return the age of its oldest unacked message in seconds; None if nothing is unacked."""
        return _unacked_age(self.item["unacked"], self.unacked_since, now)

    def sample(self, tick: int, item: Row) -> Sequence[int]:
        """Set the description, and return the increments of the counters of `CHANNEL`."""
        self.item = item
        self.changed_at = tick
        return self.measure(
            CHANNEL,
            tick,
            (),
            (item["published"], item["confirmed"], *_deliveries(item), item["returned"], item["dropped"]),
        )


class VhostTotals(Measured):
    """Totals of a vhost: of its objects, and of deleted queues and closed connections.

    Attributes:
        totals: The counters of `VHOST` by name.
    """

    __slots__ = ("_bytes", "_counters", "_ended", "_queues", "totals")

    def __init__(self) -> None:
        super().__init__()
        self._ended: list[int] = [0] * (7 + _COUNTERS)
        # Sums of the samples of the live queues, and of the bytes of live connections.
        self._queues: list[int] = [0] * len(_QUEUE_KEYS)
        self._bytes = [0, 0]
        self._counters: dict[str, int] = {}
        self.totals: dict[str, int] = dict.fromkeys(VHOST.names, 0)

    def queue_sums(self) -> dict[str, int]:
        """Return the sums of the gauges of the live queues, and of the counters of all queues, deleted ones too."""
        return {**self._live(), **self._counters}

    def _live(self) -> dict[str, int]:
        return dict(zip(_QUEUE_KEYS, self._queues, strict=True))

    def set_ended(self, sample: list[int]) -> None:
        """Set the counters that the broker keeps for the vhost itself."""
        self._ended = sample

    def count_queue(self, item: Row, sign: int) -> None:
        """Add the counters of a queue, or subtract them."""
        sums = self._queues
        for index, key in enumerate(_QUEUE_KEYS):
            sums[index] += sign * item[key]
        sums[_UNACKED] += sign * (unacked_of(item) - item["unacked"])

    def count_changes(self, item: Row, sample: list[Any]) -> None:
        """Add the differences between the counters of a queue and its new sample."""
        sums = self._queues
        for index, (key, value) in enumerate(zip(_QUEUE_KEYS, sample, strict=False)):
            known = item[key]
            if value != known and (index != _UNACKED or item["type"] != _STREAM):
                sums[index] += value - known

    def count_bytes(self, item: Row, sign: int) -> None:
        """Add the bytes of a connection, or subtract them."""
        self._bytes[0] += sign * item["bytes_in"]
        self._bytes[1] += sign * item["bytes_out"]

    def sample(self, tick: int) -> None:
        """Add up the totals."""
        published, _, unroutable, returned, confirmed, bytes_in, bytes_out, *queues = self._ended
        live = self._live()
        counters = {key: live[key] + ended for key, ended in zip(_QUEUE_KEYS[:_COUNTERS], queues, strict=True)}
        self._counters = {key: max(value, self._counters.get(key, 0)) for key, value in counters.items()}
        gets = counters["got"] + counters["got_no_ack"]
        found = {
            "ready": ready_of(live),
            "unacked": live["unacked"],
            "publish": published,
            "confirm": confirmed,
            "return_unroutable": returned,
            "drop_unroutable": unroutable - returned,
            "deliver": counters["delivered"] - counters["delivered_no_ack"] - gets,
            "deliver_no_ack": counters["delivered_no_ack"],
            "get": counters["got"],
            "get_no_ack": counters["got_no_ack"],
            "get_empty": counters["got_empty"],
            "redeliver": counters["redelivered"],
            "ack": counters["acked"],
            "recv_oct": self._bytes[0] + bytes_in,
            "send_oct": self._bytes[1] + bytes_out,
        }
        for name in VHOST.counters:
            # An object that is deleted counts a second later in what the broker keeps for the vhost.
            found[name] = max(found[name], self.totals[name])
        if found == self.totals and self.gauges is not None:
            return
        self.totals = found
        self.measure(VHOST, tick, [found[name] for name in VHOST.gauges], [found[name] for name in VHOST.counters])


class NodeTotals(Measured):
    """Gauges of the broker's process, and the number of objects that came and went since its start or the last reset."""

    __slots__ = ("_counted", "churn", "values")

    def __init__(self) -> None:
        super().__init__()
        # The numbers of each process, which begin at 0 when it starts again.
        self._counted: dict[str, dict[str, int]] = {}
        self.reset()

    def reset(self) -> None:
        """Forget the samples, and count from 0."""
        super().__init__()
        self.churn: dict[str, int] = dict.fromkeys(CHURN, 0)
        self.values: dict[str, int] = dict.fromkeys(NODE_LAYOUT.gauges, 0)

    def count(self, process: str, counts: dict[str, int]) -> None:
        """Add what has come and gone since the last counts of a process."""
        known = self._counted.get(process, {})
        if any(value < known.get(name, 0) for name, value in counts.items()):
            known = {}
        for name, value in counts.items():
            self.churn[name] += value - known.get(name, 0)
        self._counted[process] = counts

    def sample(self, tick: int, values: dict[str, int]) -> None:
        self.values = values
        self.measure(NODE_LAYOUT, tick, [values[name] for name in NODE_LAYOUT.gauges], [self.churn[name] for name in CHURN])
