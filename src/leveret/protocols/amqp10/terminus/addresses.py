"""Addresses of sources and targets: resolution to a queue, or to an exchange and routing key.

The forms, in the order in which they are tried:

/management                                       the management node, whose links `link_pair` attaches
/queues/Q, /exchanges/X[/KEY]                     RabbitMQ's v2: split, then percent-decoded; nothing is created
/queue/Q, /amq/queue/Q, /exchange/X[/KEY], /topic/KEY   its v1; /queue/Q creates Q
queue://Q, topic://KEY                            queue://Q creates Q
anything else                                     a queue; else an exchange; else split at its first "/" into exchange and
                                                  key; else a queue that is created

Without a routing key, a target uses the subject of each message, and a source receives all messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from leveret.protocols.amqp10.errors import LinkRefused
from leveret.wire.amqp10 import constants

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost

TOPIC_EXCHANGE: Final = "amq.topic"
# Prefix of the names of sink transactions. No exchange or queue has such a name.
STAGES: Final = "leveret.stage:"
TOPIC_SCHEME: Final = "topic://"
# Prefix of the keys of temporary topics.
TEMPORARY_KEY: Final = "amq.gen/"
QUEUE: Final = "queue"
TOPIC: Final = "topic"
TEMPORARY_QUEUE: Final = "temporary-queue"
TEMPORARY_TOPIC: Final = "temporary-topic"


class Node:
    """A resolved address.

    Attributes:
        queue: name of the queue; None for an exchange.
        exchange: exchange to publish to.
        key: routing key; None means the subject of the message.
        create: whether a missing queue is created.
        topic: whether the address names a topic, which accepts messages without a subscription.
    """

    __slots__ = ("create", "exchange", "key", "queue", "topic")

    def __init__(
        self,
        queue: str | None = None,
        exchange: str = "",
        key: str | None = None,
        create: bool = False,
        topic: bool = False,
    ) -> None:
        self.queue = queue
        self.exchange = exchange
        self.key = key
        self.create = create
        self.topic = topic


def parse(address: str, vhost: Vhost, capabilities: tuple[str, ...] = ()) -> Node:
    """Return the node of an address in a vhost.

    The capabilities `queue` and `topic` narrow the choice. A temporary node never has a name chosen by the client.

    Raises LinkRefused with `amqp:invalid-field` for an address that begins like one of the forms but is malformed.
    """
    if not address:
        raise LinkRefused(constants.INVALID_FIELD, "the address is empty")
    if address == "/management":
        raise LinkRefused(constants.NOT_ALLOWED, "the management node accepts only the requests of a link pair")
    if address.startswith("/"):
        node = _path(address)
        if node is not None:
            return node
    if address.startswith("queue://"):
        return _queue(address[8:], address, True)
    if address.startswith(TOPIC_SCHEME):
        return _topic(key_of_topic(address), address)
    if TOPIC in capabilities and QUEUE not in capabilities:
        return _exchange_of(address, vhost) or _topic(address, address)
    create = TEMPORARY_QUEUE not in capabilities and TEMPORARY_TOPIC not in capabilities
    if vhost.find_queue(address) is not None or (QUEUE in capabilities and TOPIC not in capabilities):
        return _queue(address, address, create)
    return _exchange_of(address, vhost) or _queue(address, address, create)


def key_of_topic(address: str) -> str:
    """Return the key in an address `topic://KEY`."""
    return address[len(TOPIC_SCHEME) :]


def _exchange_of(address: str, vhost: Vhost) -> Node | None:
    """Return the node of an existing exchange, with or without a key; None if there is none."""
    if address in vhost.exchanges:
        return Node(exchange=address)
    name, slash, key = address.partition("/")
    if name.startswith(STAGES):
        return Node(exchange=name, key=key if slash else None)
    if slash and name and name in vhost.exchanges:
        return Node(exchange=name, key=key)
    return None


def _path(address: str) -> Node | None:
    parts = address.split("/")
    kind = parts[1]
    rest = parts[2:]
    if kind == "queues" or kind == "queue":
        if len(rest) != 1:
            raise _invalid(address, f"/{kind}/QUEUE")
        return _queue(_decoded(rest[0], address), address, kind == "queue")
    if kind == "exchanges" or kind == "exchange":
        if not 1 <= len(rest) <= 2:
            raise _invalid(address, f"/{kind}/EXCHANGE[/KEY]")
        name = _decoded(rest[0], address)
        if not name:
            raise _invalid(address, f"/{kind}/EXCHANGE[/KEY]")
        return Node(exchange=name, key=_decoded(rest[1], address) if len(rest) == 2 else None)
    if kind == "topic":
        if len(rest) != 1:
            raise _invalid(address, "/topic/KEY")
        return _topic(_decoded(rest[0], address), address)
    if kind == "amq" and rest[:1] == ["queue"]:
        if len(rest) != 2:
            raise _invalid(address, "/amq/queue/QUEUE")
        return _queue(_decoded(rest[1], address), address, False)
    return None


def _queue(name: str, address: str, create: bool) -> Node:
    if not name:
        raise _invalid(address, "a queue name")
    return Node(queue=name, key=name, create=create)


def _topic(key: str, address: str) -> Node:
    if not key:
        raise _invalid(address, "a topic")
    return Node(exchange=TOPIC_EXCHANGE, key=key, topic=True)


def _decoded(part: str, address: str) -> str:
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise LinkRefused(constants.INVALID_FIELD, f"the address '{address}' is not UTF-8 after percent-decoding") from None


def _invalid(address: str, expected: str) -> LinkRefused:
    return LinkRefused(constants.INVALID_FIELD, f"invalid address '{address}': expected {expected}")
