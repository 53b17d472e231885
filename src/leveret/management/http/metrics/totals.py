"""Totals of messages by protocol and queue type.

The broker counts messages of channels, which have a protocol, and of queues, which have a type, but not of their pairs.
The exact totals of the vhosts are therefore split each second in proportion to what channels of each protocol and queues
of each type have counted in that second. A total over all labels is exact; a part is exact unless several protocols or
queue types are used in the same second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from leveret.management.http.objects import CHANNEL, QUEUE

K = TypeVar("K")

AMQP091: Final = "amqp091"
CLASSIC: Final = "rabbit_classic_queue"
PROTOCOLS: Final = (AMQP091, "amqp09", "amqp10")
QUEUE_TYPES: Final = (CLASSIC, "rabbit_quorum_queue", "rabbit_stream_queue")
_PROTOCOL_OF: Final = {"AMQP 0-9": "amqp09", "AMQP 1.0": "amqp10"}
_TYPE_OF: Final = {"quorum": "rabbit_quorum_queue", "stream": "rabbit_stream_queue"}
# Counters of vhosts that have a protocol, and those that also have a queue type.
BY_PROTOCOL: Final = ("publish", "confirm", "return_unroutable", "drop_unroutable")
BY_TYPE: Final = ("deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "redeliver", "ack")
_PUBLISH: Final = CHANNEL.counters.index("publish")
# Upper bounds of message sizes in bytes.
SIZES: Final = (100.0, 1000.0, 10000.0, 100000.0, 1e6, 1e7, 5e7, 1e8)


def protocol_of(name: str) -> str:
    """Return the label of a protocol that the broker names."""
    return _PROTOCOL_OF.get(name, AMQP091)


def queue_type_of(name: str) -> str:
    """Return the label of a queue type."""
    return _TYPE_OF.get(name, CLASSIC)


def split(total: int, weights: Mapping[K, int], default: K) -> dict[K, int]:
    """Split a total in proportion to weights. Without weights, the default gets all of it."""
    weighted = {key: weight for key, weight in weights.items() if weight > 0}
    whole = sum(weighted.values())
    if not whole:
        return {default: total}
    parts = {key: total * weight // whole for key, weight in weighted.items()}
    largest = max(weighted, key=lambda key: weighted[key])
    parts[largest] += total - sum(parts.values())
    return parts


def _weights(counts: Mapping[str, Counter[str]], counter: str) -> Counter[str]:
    """Return the weights for the parts of a counter. Empty replies to basic.get are split like the others."""
    return counts["get"] + counts["get_no_ack"] if counter == "get_empty" else counts[counter]


class SizeHistogram:
    """A histogram of message sizes.

    Attributes:
        counts: The number of messages in each bucket of `SIZES`, and of larger ones.
        total: The sum of the sizes.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(SIZES) + 1)
        self.total = 0

    def add(self, messages: int, size: int) -> None:
        """Count messages with a total size."""
        self.counts[bisect_left(SIZES, size / messages)] += messages
        self.total += size


class GlobalTotals:
    """Totals of messages of the broker, by protocol and queue type.

    Attributes:
        by_protocol: By counter and protocol.
        by_type: By counter, protocol and queue type.
        sizes: Sizes of published messages, by protocol.
    """

    def __init__(self) -> None:
        self.by_protocol: Counter[tuple[str, str]] = Counter()
        self.by_type: Counter[tuple[str, str, str]] = Counter()
        self._expected: Counter[str] = Counter()
        self.sizes = {protocol: SizeHistogram() for protocol in PROTOCOLS}
        # Increments of channels and queues since the last `add`, by counter, then by protocol or type.
        self._channels: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._queues: defaultdict[str, Counter[str]] = defaultdict(Counter)
        # Received bytes of connections that have not published since.
        self._received: Counter[int] = Counter()
        # Bytes that connections have received since the last `add`.
        self._size = 0
        self._published: dict[int, tuple[str, int]] = {}

    def channel_counted(self, connection: int, protocol: str, increments: Sequence[int]) -> None:
        """Note the increments of the counters of a channel, in the order of `CHANNEL`."""
        label = protocol_of(protocol)
        for counter, count in zip(CHANNEL.counters, increments, strict=True):
            self._channels[counter][label] += count
        published = increments[_PUBLISH]
        if published > 0:
            _, before = self._published.get(connection, (label, 0))
            self._published[connection] = (label, before + published)

    def queue_counted(self, queue_type: str, increments: Sequence[int]) -> None:
        """Note the increments of the counters of a queue, in the order of `QUEUE`."""
        label = queue_type_of(queue_type)
        for counter, count in zip(QUEUE.counters, increments, strict=True):
            self._queues[counter][label] += count

    def received(self, connection: int, size: int) -> None:
        """Note that a connection has received bytes."""
        self._received[connection] += size
        self._size += size

    def closed(self, connection: int) -> None:
        """Forget a connection."""
        self._received.pop(connection, None)

    def discard(self) -> None:
        """Forget the increments of channels and queues, which are in the totals already."""
        self._forget_counts()
        self._received.clear()

    def add(self, increments: Iterable[Mapping[str, int]]) -> None:
        """Add the increments of the counters of each vhost."""
        published = received = 0
        for totals in increments:
            published += totals["publish"]
            received += totals["recv_oct"]
            for counter in BY_PROTOCOL:
                for protocol, count in self._by_protocol(counter, totals[counter]).items():
                    self.by_protocol[counter, protocol] += count
            for counter in BY_TYPE:
                for protocol, count in self._by_protocol(counter, totals[counter]).items():
                    for queue_type, part in split(count, _weights(self._queues, counter), CLASSIC).items():
                        self.by_type[counter, protocol, queue_type] += part
        for connection, (protocol, count) in self._published.items():
            published -= count
            self.sizes[protocol].add(count, self._received.pop(connection, 0))
        if published > 0:  # on connections that were closed within the second
            self.sizes[AMQP091].add(published, max(received - self._size, 0))
        self._forget_counts()

    def received_confirm(self, protocol: str, unconfirmed: int) -> int:
        """Return the number of messages of publishers that expect confirms, of which some are unconfirmed."""
        found = max(self._expected[protocol], self.by_protocol["confirm", protocol] + unconfirmed)
        self._expected[protocol] = found
        return found

    def routed(self, protocol: str) -> int:
        """Return the number of messages that were routed to a queue."""
        found = self.by_protocol
        return found["publish", protocol] - found["return_unroutable", protocol] - found["drop_unroutable", protocol]

    def _forget_counts(self) -> None:
        self._channels.clear()
        self._queues.clear()
        self._published.clear()
        self._size = 0

    def _by_protocol(self, counter: str, total: int) -> dict[str, int]:
        return split(total, _weights(self._channels, counter), AMQP091) if total else {}
