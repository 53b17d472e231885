"""Attach: termini from addresses, permissions, dynamic nodes (transport section 2.7.3, messaging section 3.5).

A refusal is an attach without the terminus, and a detach with the error behind it (transport section 2.6.3).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.arguments import QueueSettings
from leveret.broker.errors import AccessRefused, BrokerError, NotFound, ResourceError
from leveret.protocols.v1_0 import addresses, filters, linkpair
from leveret.protocols.v1_0.addresses import Node
from leveret.protocols.v1_0.coordinator import CAPABILITIES, CoordinatorLink
from leveret.protocols.v1_0.errors import LinkRefused, condition_of, make_error
from leveret.protocols.v1_0.filters import Wanted
from leveret.protocols.v1_0.incoming import IncomingLink
from leveret.protocols.v1_0.link import Link
from leveret.protocols.v1_0.nodes import LIFETIME, DynamicNode, policy_of
from leveret.protocols.v1_0.outgoing import LinkConsumer, OutgoingLink
from leveret.wire.amqp1 import constants, descriptors
from leveret.wire.amqp1.composites import to_described
from leveret.wire.amqp1.messaging import (
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
    Source,
    Target,
)
from leveret.wire.amqp1.transactions import Coordinator
from leveret.wire.amqp1.transport import Attach, Detach, Error

if TYPE_CHECKING:
    from leveret.broker.queues.base import Queue
    from leveret.protocols.v1_0.endpoint import SessionEndpoint

log = logging.getLogger("leveret.connection")

OUTCOMES: Final = ("amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list")
POLICIES: Final[dict[int, Any]] = {
    descriptors.DELETE_ON_CLOSE: DeleteOnClose, descriptors.DELETE_ON_NO_LINKS: DeleteOnNoLinks,
    descriptors.DELETE_ON_NO_MESSAGES: DeleteOnNoMessages,
    descriptors.DELETE_ON_NO_LINKS_OR_MESSAGES: DeleteOnNoLinksOrMessages,
}
# Octets that the names of container and link may have in the name of a dynamic node.
LONGEST_PART: Final = 80


def attach(session: SessionEndpoint, frame: Attach) -> None:
    """Answer the client's attach."""
    connection = session.connection
    receives = not frame.role
    key = (connection.vhost_name, connection.user, connection.container_id, frame.name, receives)
    _steal(connection.services.links.get(key), frame.name)
    handle = session.new_handle()
    link: Link
    try:
        if receives:
            link = _attach_incoming(session, frame, handle)
        else:
            link = _attach_outgoing(session, frame, handle)
    except LinkRefused as refused:
        _refuse(session, frame, handle, refused.error())
        return
    except BrokerError as error:
        _refuse(session, frame, handle, make_error(condition_of(error), str(error)))
        return
    link.key = key
    connection.services.links[key] = link
    session.links[frame.handle] = link
    session.handles[handle] = link
    if isinstance(link, IncomingLink):
        link.grant()
    elif isinstance(link, OutgoingLink):
        link.consumer.queue.add_consumer(link.consumer)


def _steal(link: Link | None, name: str) -> None:
    """A link is in one place at a time (transport section 2.6.1): who attaches it has it."""
    if link is not None and not link.closed:
        session = link.session
        session.refuse(link, make_error(constants.LINK_STOLEN, f"link '{name}' was attached elsewhere"))


def _refuse(session: SessionEndpoint, frame: Attach, handle: int, error: Error) -> None:
    connection = session.connection
    log.info("%s: link '%s' refused with %s: %s", connection.peer.name, frame.name, error.condition, error.description)
    ours = not frame.role
    connection.send(Attach(
        frame.name, handle, ours, frame.snd_settle_mode, frame.rcv_settle_mode,
        frame.source if ours else None, None if ours else frame.target,
        initial_delivery_count=None if ours else 0, channel=session.channel))
    session.errant.add(frame.handle)
    connection.send(Detach(handle, True, error, channel=session.channel))


# A client that sends


def _attach_incoming(session: SessionEndpoint, frame: Attach, handle: int) -> IncomingLink:
    connection = session.connection
    target = frame.target
    if target is None:
        raise LinkRefused(constants.INVALID_FIELD, "the link has no target, and none of its name is known")
    if isinstance(target, Coordinator):
        return _attach_coordinator(session, frame, handle)
    if not isinstance(target, Target):
        raise LinkRefused(constants.NOT_IMPLEMENTED, "the target is of an unknown type")
    if linkpair.wants(target.address):
        return linkpair.attach_requests(session, frame, handle)
    link = IncomingLink(session, frame.name, frame.handle, handle)
    link.snd_settle_mode = frame.snd_settle_mode
    link.rcv_settle_mode = frame.rcv_settle_mode
    link.delivery_count = frame.initial_delivery_count or 0
    source = frame.source
    if isinstance(source, Source) and source.outcomes:
        link.may_reject = OUTCOMES[1] in source.outcomes
    address: str | None = None
    properties: Any = None
    if target.dynamic:
        link.node = _make_node(session, frame.name, target)
        queue = link.node.queue
        address = queue.name
        properties = _lifetime(link.node)
        link.set_target("", address)
    elif target.address is not None:
        address = _text(target.address)
        node = addresses.parse(address, connection.vhost, tuple(target.capabilities))
        if node.queue is not None:
            _find_queue(session, node)
        elif node.exchange not in connection.vhost.exchanges:
            raise NotFound(f"no exchange '{node.exchange}' in vhost '{connection.vhost_name}'")
        connection.check("write", node.exchange)
        if connection.vhost.exchanges[node.exchange].internal:
            raise AccessRefused(f"cannot publish to internal exchange '{node.exchange}' in vhost"
                                f" '{connection.vhost_name}'")
        link.accepts_all = node.topic
        link.set_target(node.exchange, node.key)
    actual = Target(address, dynamic=target.dynamic, dynamic_node_properties=properties,
                    capabilities=_known(target.capabilities), expiry_policy=constants.TERMINUS_EXPIRY_POLICY_LINK_DETACH)
    connection.send(Attach(
        frame.name, handle, True, frame.snd_settle_mode, frame.rcv_settle_mode, frame.source, actual,
        max_message_size=connection.settings.max_message_size or None, channel=session.channel))
    return link


def _attach_coordinator(session: SessionEndpoint, frame: Attach, handle: int) -> CoordinatorLink:
    link = CoordinatorLink(session, frame.name, frame.handle, handle)
    # A controller has to see what becomes of its messages, so none of them is settled.
    link.snd_settle_mode = frame.snd_settle_mode
    link.rcv_settle_mode = frame.rcv_settle_mode
    link.second_mode = frame.rcv_settle_mode == constants.RECEIVER_SETTLE_MODE_SECOND
    link.delivery_count = frame.initial_delivery_count or 0
    source = frame.source
    if isinstance(source, Source) and source.outcomes:
        link.may_reject = OUTCOMES[1] in source.outcomes
    session.connection.send(Attach(
        frame.name, handle, True, frame.snd_settle_mode, frame.rcv_settle_mode, frame.source, Coordinator(CAPABILITIES),
        channel=session.channel))
    return link


# A client that receives


def _attach_outgoing(session: SessionEndpoint, frame: Attach, handle: int) -> Link:
    connection = session.connection
    source = frame.source
    if source is None:
        raise LinkRefused(constants.NOT_FOUND, f"no subscription of a link '{frame.name}' is known")
    if not isinstance(source, Source):
        raise LinkRefused(constants.INVALID_FIELD, "the source is of an unknown type")
    if linkpair.wants(source.address):
        return linkpair.attach_answers(session, frame, handle)
    if source.distribution_mode == constants.STD_DIST_MODE_COPY:
        raise LinkRefused(constants.NOT_IMPLEMENTED, "distribution mode copy is not implemented")
    limit = connection.settings.consumers_per_channel
    if limit and sum(isinstance(other, OutgoingLink) for other in session.handles.values()) >= limit:
        raise ResourceError(f"the session has its most consumers, {limit}; the setting is limits.consumers_per_channel")
    link = OutgoingLink(session, frame.name, frame.handle, handle)
    # A sender that may do both sends unsettled.
    link.snd_settle_mode = frame.snd_settle_mode
    link.rcv_settle_mode = frame.rcv_settle_mode
    properties: Any = None
    if source.dynamic:
        wanted = filters.parse(source.filter, False)
        link.node = _make_node(session, frame.name, source)
        queue = link.node.queue
        address = queue.name
        properties = _lifetime(link.node)
    else:
        if source.address is None:
            raise LinkRefused(constants.INVALID_FIELD, "the source has no address")
        address = _text(source.address)
        node = addresses.parse(address, connection.vhost, tuple(source.capabilities))
        wanted = filters.parse(source.filter, node.queue is None)
        if node.queue is not None:
            queue = _find_queue(session, node)
            connection.check("read", queue.name)
        else:
            link.node = _subscribe(session, frame.name, node, wanted)
            queue = link.node.queue
    if queue.consumers and queue.consumers[0].exclusive:
        raise AccessRefused(f"queue '{queue.name}' in vhost '{connection.vhost_name}' in exclusive use")
    queue.touch()
    link.consumer = LinkConsumer(link, queue, frame.snd_settle_mode == constants.SENDER_SETTLE_MODE_SETTLED, False)
    link.consumer.default_outcome = source.default_outcome
    link.consumer.filter(wanted)
    actual = Source(address, dynamic=source.dynamic, dynamic_node_properties=properties,
                    distribution_mode=constants.STD_DIST_MODE_MOVE, filter=wanted.in_place or None,
                    default_outcome=source.default_outcome,
                    outcomes=source.outcomes or OUTCOMES, capabilities=_known(source.capabilities),
                    expiry_policy=constants.TERMINUS_EXPIRY_POLICY_LINK_DETACH)
    connection.send(Attach(
        frame.name, handle, False, frame.snd_settle_mode, frame.rcv_settle_mode, actual, frame.target,
        initial_delivery_count=0, channel=session.channel))
    return link


def _subscribe(session: SessionEndpoint, name: str, node: Node, wanted: Wanted) -> DynamicNode:
    """A queue of the link's own that is bound to an exchange."""
    connection = session.connection
    vhost = connection.vhost
    connection.check("read", node.exchange)
    exchange = vhost.exchange(node.exchange)
    if not node.exchange:
        raise AccessRefused("nothing can be bound to the default exchange")
    key = node.key if wanted.binding is None else wanted.binding
    if key is None:
        key = "#" if exchange.type == "topic" else ""
    exchange.check_binding(key, wanted.arguments)
    made = _add_queue(session, name)
    vhost.bind(made.queue, node.exchange, key, wanted.arguments)
    return made


# Queues


def _find_queue(session: SessionEndpoint, node: Node) -> Queue:
    """The queue of a node, created where it may be."""
    connection = session.connection
    vhost = connection.vhost
    name = node.queue
    assert name is not None
    if name not in vhost.queues and node.create and connection.own.auto_create:
        connection.check("configure", name)
        vhost.declare_queue(name, connection, durable=True)
    queue: Queue = vhost.queue(name, connection)
    return queue


def _make_node(session: SessionEndpoint, name: str, terminus: Any) -> DynamicNode:
    if terminus.address is not None:
        raise LinkRefused(constants.INVALID_FIELD, "a dynamic terminus must not have an address")
    made = _add_queue(session, name)
    made.policy = policy_of(terminus.dynamic_node_properties)
    return made


def _add_queue(session: SessionEndpoint, link_name: str) -> DynamicNode:
    """A transient queue for a link; its name says whose (messaging section 3.5.3)."""
    connection = session.connection
    vhost = connection.vhost
    connection.broker.check_queue_limit(vhost)
    unique = vhost.new_queue_name()
    vhost.new_names.discard(unique)
    prefix = f"{_short(connection.container_id)}/{_short(link_name)}/"
    queue = vhost.add_reply_queue(prefix + unique.removeprefix("amq.gen-"), QueueSettings({}, {}))
    queue.auto_delete = False
    return DynamicNode(queue, descriptors.DELETE_ON_CLOSE)


def _short(name: str) -> str:
    return name.encode("utf-8", "replace")[:LONGEST_PART].decode("utf-8", "ignore").replace("/", "_")


def _lifetime(node: DynamicNode) -> dict[str, Any]:
    return {LIFETIME: to_described(POLICIES[node.policy]())}


def _text(address: Any) -> str:
    if not isinstance(address, str):
        raise LinkRefused(constants.INVALID_FIELD, "the address is not a string")
    return str(address)


def _known(capabilities: Any) -> tuple[str, ...]:
    """Those of the capabilities that have a meaning here."""
    return tuple(name for name in capabilities if name in ("queue", "topic", "temporary-queue", "temporary-topic"))
