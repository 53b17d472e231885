"""Destinations of messages: of the target of a link, or of each message to an anonymous terminus.

A message to an anonymous terminus is treated like a link to the address of the message (Anonymous Terminus for Message
Routing 1.0, section 2.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.errors import AccessRefused, NotFound
from leveret.protocols.amqp10.errors import LinkRefused
from leveret.protocols.amqp10.terminus import addresses
from leveret.wire.amqp10 import codes, constants
from leveret.wire.amqp10.annotations import find_annotation

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue
    from leveret.protocols.amqp10.connection.connection import Connection
    from leveret.protocols.amqp10.terminus.addresses import Node
    from leveret.protocols.amqp10.terminus.terminus import TemporaryTopic
    from leveret.wire.amqp10.sections import Sections

# Beginning of the names of services in other brokers, such as `$cbs` and `$management`, for which no queue is created.
SERVICE_PREFIX: Final = "$"
# Annotation of JMS clients with the type of a destination: a byte (AMQP JMS Mapping 1.0, section 3.2.4).
JMS_DESTINATION: Final = b"x-opt-jms-dest"
_CAPABILITIES: Final = ((addresses.QUEUE,), (addresses.TOPIC,), (addresses.TEMPORARY_QUEUE,), (addresses.TEMPORARY_TOPIC,))


class Destination:
    """A destination of messages.

    Attributes:
        exchange: exchange to publish to.
        key: routing key; None means the subject of the message.
        accepts_all: whether unroutable messages are accepted (topics).
        rejects_durable: whether durable messages are refused because the queue is not durable (messaging 3.2.1, strict
            mode).
        topic: the temporary topic; None for any other destination.
    """

    __slots__ = ("accepts_all", "exchange", "key", "rejects_durable", "topic")

    def __init__(
        self, exchange: str, key: str | None, accepts_all: bool, rejects_durable: bool, topic: TemporaryTopic | None
    ) -> None:
        self.exchange = exchange
        self.key = key
        self.accepts_all = accepts_all
        self.rejects_durable = rejects_durable
        self.topic = topic


def resolve(connection: Connection, address: str, capabilities: tuple[str, ...]) -> Destination:
    """Return the destination of a target address; create its queue if the address allows that.

    Raises:
        LinkRefused: the address is invalid.
        BrokerError: the destination does not exist or may not be used.
    """
    vhost = connection.vhost
    node = addresses.parse(address, vhost, capabilities)
    rejects_durable = False
    if node.queue is not None:
        queue = find_queue(connection, node)
        rejects_durable = bool(vhost.strict and not queue.durable and not queue.lifetime.temporary)
    topic = find_topic(connection, node)
    exchange = vhost.published_to(node.exchange)
    if exchange is None:
        raise NotFound(f"no exchange '{node.exchange}' in vhost '{connection.vhost_name}'")
    connection.check("write", exchange.name)
    if exchange.internal:
        raise AccessRefused(f"cannot publish to internal exchange '{node.exchange}' in vhost '{connection.vhost_name}'")
    return Destination(node.exchange, node.key, node.topic, rejects_durable, topic)


def find_queue(connection: Connection, node: Node) -> Queue:
    """Return the queue of a node, and create it if the address allows that.

    As in 0-9-1, a message can be sent to a queue that is exclusive to another connection.
    """
    vhost = connection.vhost
    name = node.queue
    assert name is not None
    queue: Queue | None = vhost.find_queue(name)
    if queue is None:
        if not node.create or not connection.own.auto_create:
            raise NotFound(f"no queue '{name}' in vhost '{connection.vhost_name}'")
        if name.startswith(SERVICE_PREFIX):
            raise NotFound(
                f"no node '{name}': names that begin with '{SERVICE_PREFIX}' are those of services such as claims-based"
                " security, which this broker does not have; log in with SASL (auth.mechanisms), and declare a queue with"
                " such a name explicitly"
            )
        connection.check("configure", name)
        vhost.declare_queue(name, connection, durable=True)
        queue = vhost.queues[name]
    return queue


def find_topic(connection: Connection, node: Node) -> TemporaryTopic | None:
    """Return the temporary topic of a node; None for another kind of node. Raises LinkRefused if the topic has ended."""
    key = node.key
    if not node.topic or key is None or not key.startswith(addresses.TEMPORARY_KEY):
        return None
    topic = connection.shared.termini.topics.get((connection.vhost_name, key))
    if topic is None:
        raise LinkRefused(
            constants.NOT_FOUND,
            f"no temporary topic '{key}' in vhost '{connection.vhost_name}': a temporary topic ends with its link",
        )
    return topic


def capabilities_of(sections: Sections) -> tuple[str, ...]:
    """Return the terminus capabilities that a message to an anonymous terminus requests."""
    if sections.message_annotations < 0:
        return ()
    data = sections.data
    at = find_annotation(data, sections.message_annotations, sections.message_annotations_end, JMS_DESTINATION)
    if at < 0 or data[at] != codes.BYTE or data[at + 1] >= len(_CAPABILITIES):
        return ()
    return _CAPABILITIES[data[at + 1]]
