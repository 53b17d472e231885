"""The firehose: copies of the messages that are published and delivered, published to the exchange `amq.rabbitmq.trace`.

While the firehose of a vhost is on, every queue and exchange has a watch, which calls it. It adds a trace message for each
publish, with the routing key `publish.EXCHANGE`, and for each delivery, with `deliver.QUEUE`. Body and header table are
RabbitMQ's. Trace messages are published at the end of the turn. Those that exceed a limit are dropped and counted, so that
a slow exchange delays nothing.

Trace messages are not traced themselves, and neither are events, so that a queue for both does not feed itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import Body, size_of
from leveret.broker.consumer import Client, Output
from leveret.broker.dead_letter import split_address
from leveret.broker.errors import BrokerError
from leveret.broker.events import FROM_EVENTS, dotted_key
from leveret.broker.exchanges.topic import TopicExchange
from leveret.broker.jobs import STEP_WORK, Job
from leveret.broker.message import Entry, Message, Overlay, address_of
from leveret.broker.values import FieldTable, FieldValue
from leveret.broker.watches import set_firehose

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue
    from leveret.broker.vhost import Vhost

logger = logging.getLogger("leveret.broker")

TRACE: Final = "amq.rabbitmq.trace"
PUBLISH: Final = "publish"
DELIVER: Final = "deliver"
# Limits of the trace messages that are not published yet: their number, and the bytes of headers and bodies, beyond which
# no other one is added. A body that the trace message shares with its message does not count.
MAX_PENDING: Final = 10_000
MAX_PENDING_BYTES: Final = 8 << 20
# Maximum size of a header in bytes: it must fit a frame.
MAX_HEADER: Final = 64 << 10
# Maximum number of queues, and of routing keys, in a header; in one that is too large otherwise.
MAX_LISTED: Final = 1000
MAX_LISTED_IN_LARGE: Final = 50
# Start of the address of a trace message.
_FROM_TRACE: Final = bytes((len(TRACE),)) + TRACE.encode()
# Units of work to make and publish a trace message. Bytes of a header, and names of queues (as powers of two), that are
# decoded and encoded per unit.
TRACE_WORK: Final = 40
HEADER_SHIFT: Final = 4
NAMES_SHIFT: Final = 1
# Units of work to switch one queue.
SWITCH_WORK: Final = 2


class Firehose(Output):
    """The firehose of a vhost.

    Attributes:
        on: Whether it is switched on.
        dropped: Trace messages that exceeded a limit, or that a queue rejected, since it was switched on.
    """

    def __init__(self, vhost: Vhost) -> None:
        self.vhost = vhost
        self.exchange = TopicExchange(TRACE, True, False, True, None)
        self.on = False
        self.dropped = 0
        self._pending: deque[Message] = deque()
        self._pending_bytes = 0
        # Whether pending trace messages are being published in steps.
        self._in_steps = False

    # Watches

    def switch(self, on: bool) -> None:
        """Switch the firehose on or off. In a vhost with many queues, some of them follow in later turns."""
        if on == self.on:
            return
        self.on = on
        if on:
            self.dropped = 0
            logger.info("the firehose of vhost '%s' is on", self.vhost.name)
        else:
            logger.info("the firehose of vhost '%s' is off, %d trace messages were dropped", self.vhost.name, self.dropped)
        self.vhost.topology_changed()
        self.vhost.broker.jobs.run_steps(self._switching())

    def _switching(self) -> Iterator[int]:
        for queue in self.vhost.queue_list.walk():
            self.watch(queue)
            yield SWITCH_WORK

    def watch(self, queue: Queue) -> None:
        """Start or stop to watch a queue, depending on the switch."""
        set_firehose(queue, self if self.on else None)

    def of_exchange(self, exchange: str) -> Firehose | None:
        """Return the firehose if it watches an exchange. Only the broker publishes to internal exchanges."""
        found = self.vhost.exchanges.get(exchange)
        return self if self.on and found is not None and not found.internal else None

    # Trace messages

    def published(self, message: Message, queues: list[Queue], more_keys: list[str], client: Client) -> None:
        """Trace the publish of a message that was routed to these queues."""
        if not self._is_traced(message):
            return
        properties, body = self.vhost.broker.as_basic(message)
        exchange, key = split_address(message.address)
        table = self._table(exchange, [key, *more_keys], properties, client)
        names: list[FieldValue] = [queue.name for queue in queues[:MAX_LISTED]]
        table["routed_queues"] = names
        self._add(dotted_key(PUBLISH, exchange), message, body, table, len(names) + len(more_keys))

    def delivered(self, entry: Entry, client: Client) -> None:
        """Trace a delivery, which may be the reply to a basic.get."""
        message = entry.message
        if not self._is_traced(message):
            return
        properties, body = self.vhost.broker.as_basic(message)
        if entry.overlay is not None:
            _apply(entry.overlay, entry.seq, properties)
        exchange, key = split_address(address_of(entry))
        copies = _copies(properties)
        table = self._table(exchange, [key, *copies], properties, client)
        table["redelivered"] = 1 if entry.acquired_count > 1 else 0
        self._add(dotted_key(DELIVER, entry.queue.name), message, body, table, len(copies))

    def _is_traced(self, message: Message) -> bool:
        """Return whether to add a trace message: the trace exchange is bound, and no limit is reached."""
        address = message.address
        if not self.exchange.is_bound() or address.startswith((_FROM_TRACE, FROM_EVENTS)):
            return False
        if len(self._pending) < MAX_PENDING and self._pending_bytes < MAX_PENDING_BYTES:
            return True
        self._drop(f"more than {MAX_PENDING}, or {MAX_PENDING_BYTES} bytes of them, were to be published at once")
        return False

    def _table(self, exchange: str, keys: list[str], properties: FieldTable, client: Client) -> FieldTable:
        """Return the headers that both kinds of trace messages have."""
        return {
            "exchange_name": exchange,
            "routing_keys": [*keys[:MAX_LISTED]],
            "properties": properties,
            "node": self.vhost.broker.node_name,
            "vhost": self.vhost.name,
            "connection": client.connection,
            "channel": client.channel,
            "user": client.user,
        }

    def _add(self, key: str, message: Message, body: Body, table: FieldTable, names: int) -> None:
        """Add a trace message with these headers, which list `names` queues and additional routing keys."""
        broker = self.vhost.broker
        size = size_of(body)
        header, headers_at = broker.make_headers(table, size)
        if not 0 < len(header) <= MAX_HEADER:
            header, headers_at = broker.make_headers(_shortened(table), size)
        broker.work += TRACE_WORK + ((len(message.header) + len(header)) >> HEADER_SHIFT) + (names >> NAMES_SHIFT)
        encoded = key.encode("utf-8", "surrogateescape")
        address = _FROM_TRACE + bytes((len(encoded),)) + encoded
        if not self._pending and not self._in_steps:
            broker.outputs.append(self)
        self._pending.append(Message(address, header, body, size, False, headers_at=headers_at))
        self._pending_bytes += len(header)
        if body is not message.body:
            self._pending_bytes += size

    def _drop(self, reason: str) -> None:
        """Count a trace message that is dropped. Only the first one is logged."""
        if not self.dropped:
            logger.warning("trace messages of vhost '%s' are dropped: %s", self.vhost.name, reason)
        self.dropped += 1

    # Publishing

    def flush(self) -> None:
        """Publish the trace messages of the turn. If they are routed to many queues, the rest follows in later turns."""
        left = STEP_WORK
        while self._pending:
            if left <= 0:
                self._in_steps = True
                self.vhost.broker.jobs.add(_Publishing(self))
                return
            left -= self._publish_next()

    def publish_step(self) -> bool:
        """Publish trace messages for one step; return False when there are no more."""
        left = STEP_WORK
        while self._pending and left > 0:
            left -= self._publish_next()
        self._in_steps = bool(self._pending)
        return self._in_steps

    def drop_pending(self) -> None:
        """Drop the pending trace messages after an error."""
        self._in_steps = False
        self.dropped += len(self._pending)
        self._pending.clear()
        self._pending_bytes = 0

    def _publish_next(self) -> int:
        """Publish the next trace message; return the units of work."""
        message = self._pending.popleft()
        if not self._pending:
            self._pending_bytes = 0
        if self.vhost.removed:
            return 1
        begun = self.vhost.broker.work
        try:
            queues = self.vhost.route_own(message)
        except BrokerError as error:
            self._drop(str(error))
            return 1 + self.vhost.broker.work - begun
        for queue in queues:
            if not queue.push(message):
                self._drop(f"queue '{queue.name}' is full")
        return 1 + len(queues) + self.vhost.broker.work - begun


class _Publishing(Job):
    """Publishes trace messages in steps."""

    def __init__(self, firehose: Firehose) -> None:
        super().__init__(firehose.vhost.broker.jobs)
        self.firehose = firehose

    def step(self) -> bool:
        return self.firehose.publish_step()

    def failed(self) -> None:
        self.firehose.drop_pending()


def _apply(overlay: Overlay, seq: int, properties: FieldTable) -> None:
    """Change properties as the overlay of an entry does for consumers."""
    headers = properties.get("headers")
    changed: FieldTable = dict(headers) if isinstance(headers, dict) else {}
    for name, value in overlay.headers.items():
        if value is None:
            changed.pop(name, None)
        else:
            changed[name] = value
    if overlay.shows_offset:
        changed["x-stream-offset"] = seq - 1
    if changed or headers is not None:
        properties["headers"] = changed
    if overlay.drop_expiration:
        properties.pop("expiration", None)


def _copies(properties: FieldTable) -> list[str]:
    """Return the routing keys of the CC header. The broker does not store those of BCC."""
    headers = properties.get("headers")
    found = headers.get("CC") if isinstance(headers, dict) else None
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []


def _shortened(table: FieldTable) -> FieldTable:
    """Return headers without the message's own headers, and with fewer names."""
    properties = table["properties"]
    assert isinstance(properties, dict)
    short: FieldTable = {**table, "properties": {name: value for name, value in properties.items() if name != "headers"}}
    for name in ("routing_keys", "routed_queues"):
        names = short.get(name)
        if isinstance(names, list):
            short[name] = names[:MAX_LISTED_IN_LARGE]
    return short
