"""Trace points: the steps of messages that carry a sampled W3C `traceparent`.

While tracing is on, every queue and exchange has a watch. The watch looks for the header `traceparent` in each message and
records a `TracePoint` for each step of a message that has one with the sampled flag. Another process takes the trace points
and makes spans of them. Trace points that exceed the limit are dropped and counted, so that a slow reader delays nothing.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from leveret.broker.message import PROTOCOLS, Entry, Message, address_of
from leveret.broker.outcomes import REJECTED
from leveret.broker.vhost import HEADER_SHIFT
from leveret.broker.watches import set_traces

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queues.queue import Queue

# Steps of a message.
PUBLISH: Final = "publish"
ROUTE: Final = "route"
DELIVER: Final = "deliver"
SETTLE: Final = "settle"
EXPIRE: Final = "expire"
DROP: Final = "drop"
DEAD_LETTER: Final = "dead-letter"

# Outcomes of a publish and of a dead letter, and of the delivery of a copy.
ROUTED: Final = "routed"
UNROUTABLE: Final = "unroutable"
COPY: Final = "copy"

# Maximum number of trace points until the reader takes them: about 8 MB.
MAX_POINTS: Final = 20_000

_EXPIRED: Final = "expired"
_HEADER: Final = b"traceparent"
# Version, trace id, parent id and flags. All zeros and version ff are invalid; later versions may append fields.
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?=-|\Z)").match
_SIZE: Final = 55


class TracePoint:
    """One step of a message.

    step         one of the steps above
    time         Unix time in nanoseconds
    parent       trace id and parent id of the `traceparent`, in hexadecimal, joined by "-"
    vhost, name  the queue, or the exchange of a publish
    queue, seq   the id of the queue and the sequence number of the entry; 0 for a publish
    address      exchange and routing key, as `Message.address`
    size         body size in bytes
    protocol     of the publisher or the consumer; "" if none is involved
    outcome, reason  as in events
    queues       number of queues that a publish or a dead letter was routed to
    """

    __slots__ = (
        "address",
        "name",
        "outcome",
        "parent",
        "protocol",
        "queue",
        "queues",
        "reason",
        "seq",
        "size",
        "step",
        "time",
        "vhost",
    )

    def __init__(
        self,
        step: str,
        parent: str,
        vhost: str,
        name: str,
        queue: int,
        seq: int,
        address: bytes,
        size: int,
        protocol: str,
        outcome: str,
        reason: str,
        queues: int,
    ) -> None:
        self.step = step
        self.time = time.time_ns()
        self.parent = parent
        self.vhost = vhost
        self.name = name
        self.queue = queue
        self.seq = seq
        self.address = address
        self.size = size
        self.protocol = protocol
        self.outcome = outcome
        self.reason = reason
        self.queues = queues


class Tracing:
    """The trace points of a broker.

    Args:
        broker: The broker.
        ratio: The share of all traces to record, from 0 to 1. Like OpenTelemetry's sampler by ratio, it depends on the
            trace id, so that a trace is recorded completely or not at all.

    Attributes:
        dropped: Trace points that exceeded the limit since the last `take`.
    """

    def __init__(self, broker: Broker, ratio: float) -> None:
        self.broker = broker
        self.dropped = 0
        self._points: list[TracePoint] = []
        self._bound = round(ratio * (1 << 64))

    def watch(self, queue: Queue) -> None:
        """Record the steps of messages in a queue."""
        set_traces(queue, QueueTraces(self, queue))

    def of_exchange(self, vhost: str, exchange: str) -> ExchangeTraces:
        """Return the traces of an exchange."""
        return ExchangeTraces(self, vhost, exchange)

    def parent_of(self, message: Message) -> str:
        """Return the parent of a message's trace points; "" if the message is not traced."""
        if _HEADER not in message.header:
            return ""
        self.broker.work += 1 + (len(message.header) >> HEADER_SHIFT)
        text = self.broker.header_of(message, _HEADER)
        if _TRACEPARENT(text) is None or (text.startswith("00") and len(text) != _SIZE):
            return ""
        if not int(text[53:55], 16) & 1 or int(text[19:35], 16) >= self._bound:
            return ""
        return text[3:52]

    def add(self, point: TracePoint) -> None:
        if len(self._points) < MAX_POINTS:
            self._points.append(point)
        else:
            self.dropped += 1

    def take(self) -> tuple[list[TracePoint], int]:
        """Remove and return the trace points, and the number of those that were dropped."""
        points, dropped = self._points, self.dropped
        self._points, self.dropped = [], 0
        return points, dropped


class QueueTraces:
    """The trace points of one queue."""

    __slots__ = ("queue", "tracing")

    def __init__(self, tracing: Tracing, queue: Queue) -> None:
        self.tracing = tracing
        self.queue = queue

    def _note(self, step: str, entry: Entry, protocol: str, outcome: str = "", reason: str = "", queues: int = 0) -> None:
        message = entry.message
        parent = self.tracing.parent_of(message)
        if parent:
            queue = self.queue
            self.tracing.add(
                TracePoint(
                    step,
                    parent,
                    queue.vhost.name,
                    queue.name,
                    queue.id,
                    entry.seq,
                    address_of(entry),
                    message.size,
                    protocol,
                    outcome,
                    reason,
                    queues,
                )
            )

    def routed(self, entry: Entry) -> None:
        """Record the arrival of an entry."""
        self._note(ROUTE, entry, PROTOCOLS[entry.message.format])

    def delivered(self, entry: Entry, protocol: str, copy: bool) -> None:
        """Record a delivery; `copy`: to a browser, so that the entry stays."""
        self._note(DELIVER, entry, protocol, COPY if copy else "")

    def settled(self, entry: Entry, outcome: str, protocol: str) -> None:
        """Record the outcome of a delivery."""
        self._note(SETTLE, entry, protocol, outcome)

    def left(self, entry: Entry, reason: str) -> None:
        """Record that an entry leaves the queue for a reason, which may be an outcome."""
        if reason != REJECTED:
            self._note(EXPIRE if reason == _EXPIRED else DROP, entry, "", "", reason)

    def dead_lettered(self, entry: Entry, reason: str, targets: int) -> None:
        """Record that an entry was dead-lettered to `targets` queues."""
        self._note(DEAD_LETTER, entry, "", ROUTED if targets else UNROUTABLE, reason, targets)


class ExchangeTraces:
    """The trace points of one exchange."""

    __slots__ = ("name", "tracing", "vhost")

    def __init__(self, tracing: Tracing, vhost: str, name: str) -> None:
        self.tracing = tracing
        self.vhost = vhost
        self.name = name

    def published(self, message: Message, queues: list[Queue]) -> None:
        """Record the publish of a message that was routed to these queues."""
        parent = self.tracing.parent_of(message)
        if parent:
            self.tracing.add(
                TracePoint(
                    PUBLISH,
                    parent,
                    self.vhost,
                    self.name,
                    0,
                    0,
                    message.address,
                    message.size,
                    PROTOCOLS[message.format],
                    ROUTED if queues else UNROUTABLE,
                    "",
                    len(queues),
                )
            )
