"""Attach: termini from addresses, permissions, dynamic nodes (transport section 2.7.3, messaging section 3.5).

To refuse a link, the broker sends an attach without the terminus, then a detach with the error (transport section 2.6.3).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import AccessRefused, BrokerError, ResourceError
from leveret.protocols.amqp10.errors import LinkRefused, condition_of, make_error
from leveret.protocols.amqp10.link import direct_reply, unsettled_map
from leveret.protocols.amqp10.link.batches import BATCHES, BatchLink
from leveret.protocols.amqp10.link.durable_source import DurableSourceConsumer
from leveret.protocols.amqp10.link.incoming import IncomingLink
from leveret.protocols.amqp10.link.link import Link
from leveret.protocols.amqp10.link.outgoing import BrowsingConsumer, LinkConsumer, OutgoingLink
from leveret.protocols.amqp10.link.pending_attach import PendingAttach
from leveret.protocols.amqp10.management import link_pair
from leveret.protocols.amqp10.terminus import addresses, destinations, filters, shared_subscription
from leveret.protocols.amqp10.terminus.addresses import Node
from leveret.protocols.amqp10.terminus.dynamic_node import LIFETIME, DynamicNode, policy_of
from leveret.protocols.amqp10.terminus.filters import Wanted
from leveret.protocols.amqp10.terminus.shared_subscription import Member, SharedSubscription
from leveret.protocols.amqp10.terminus.source import SourceTerminus
from leveret.protocols.amqp10.terminus.target import TargetTerminus
from leveret.protocols.amqp10.terminus.terminus import CONFIGURATION, UNSETTLED_STATE, Key, Terminus
from leveret.protocols.amqp10.transaction.coordinator import CAPABILITIES, CoordinatorLink
from leveret.wire.amqp10 import constants, descriptors
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.composites import to_described
from leveret.wire.amqp10.messaging import (
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
    Source,
    Target,
)
from leveret.wire.amqp10.transactions import Coordinator
from leveret.wire.amqp10.transport import Attach, Detach, Error
from leveret.wire.amqp10.values import Checked, Table

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue
    from leveret.protocols.amqp10.connection.connection import Connection
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint

logger = logging.getLogger("leveret.connection")

OUTCOMES: Final = ("amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list")
DEFAULTS: Final = (descriptors.ACCEPTED, descriptors.REJECTED, descriptors.RELEASED, descriptors.MODIFIED)
POLICIES: Final[dict[int, Callable[[], Composite]]] = {
    descriptors.DELETE_ON_CLOSE: DeleteOnClose,
    descriptors.DELETE_ON_NO_LINKS: DeleteOnNoLinks,
    descriptors.DELETE_ON_NO_MESSAGES: DeleteOnNoMessages,
    descriptors.DELETE_ON_NO_LINKS_OR_MESSAGES: DeleteOnNoLinksOrMessages,
}
# RabbitMQ's property for the priority of a receiver.
PRIORITY: Final = "rabbitmq:priority"
TERMINUS_CAPABILITIES: Final = (
    "queue",
    "topic",
    "temporary-queue",
    "temporary-topic",
    shared_subscription.SHARED,
    shared_subscription.GLOBAL,
)
# Maximum number of characters in a link name, which is stored as long as the terminus.
MAX_NAME_LENGTH: Final = 1024
# Name used for permission checks when the broker names the queue.
SERVER_NAMED: Final = "amq.gen-"
# Maximum bytes of container-id and link name in the name of a dynamic node.
MAX_NAME_PART: Final = 80


TOPIC_LIFETIME: Final = {LIFETIME: to_described(DeleteOnClose())}


def attach(session: SessionEndpoint, frame: Attach) -> None:
    """Process an attach of the client and reply to it."""
    connection = session.connection
    receives = not frame.role
    key = connection.link_key(frame)
    handle = session.new_handle()
    if len(frame.name) > MAX_NAME_LENGTH:
        _refuse(
            session,
            frame,
            handle,
            make_error(
                constants.INVALID_FIELD,
                f"the name of the link has {len(frame.name)} characters; expected at most {MAX_NAME_LENGTH}",
            ),
        )
        return
    max_links = connection.own.connection_links
    if connection.sessions.link_count() >= max_links:
        _refuse(
            session,
            frame,
            handle,
            make_error(
                constants.RESOURCE_LIMIT_EXCEEDED,
                f"the connection has {max_links} links, the maximum; the setting is amqp10.connection_links",
            ),
        )
        return
    by_key = connection.shared.termini.by_key
    known = by_key.get(key)
    if known is not None:
        known.follow_connection()
        known = by_key.get(key)
    pending = session.pending_attach
    session.pending_attach = None
    if pending is not None and pending.frame is frame:
        if pending.is_superseded(known):
            _refuse(session, frame, handle, _stolen(frame.name))
            return
        if pending.terminus is not known:
            pending = None
    else:
        pending = None
    _steal(connection.shared.links.get(key), frame.name)
    if known is not None:
        if known.session is not None and (known.session is not session or frame.unsettled is not None):
            known.begin_collecting()
        if pending is None:
            pending = PendingAttach(session, frame, known)
        if known.moving or not (_is_replaced(known, frame) or pending.is_ready()):
            session.pending_attach = pending
            connection.defer(frame)  # retried in the next turn
            return
    link: Link
    try:
        if receives:
            link = _attach_incoming(session, frame, handle, key, pending)
        else:
            link = _attach_outgoing(session, frame, handle, key, pending)
    except LinkRefused as refused:
        _refuse(session, frame, handle, refused.error())
        return
    except BrokerError as error:
        _refuse(session, frame, handle, make_error(condition_of(error), str(error)))
        return
    session.add(link)


def _steal(link: Link | None, name: str) -> None:
    """Detach a link that is attached already: the latest attach wins (transport section 2.6.1)."""
    if link is not None and not link.closed:
        session = link.session
        session.steal(link, _stolen(name))


def _stolen(name: str) -> Error:
    return make_error(constants.LINK_STOLEN, f"link '{name}' was attached elsewhere")


def _refuse(session: SessionEndpoint, frame: Attach, handle: int, error: Error) -> None:
    connection = session.connection
    logger.info(
        "%s: link '%s' refused with %s: %s", connection.peer.subject, frame.name, error.condition, error.description
    )
    ours = not frame.role
    connection.send(
        Attach(
            frame.name,
            handle,
            ours,
            frame.snd_settle_mode,
            frame.rcv_settle_mode,
            frame.source if ours else None,
            None if ours else frame.target,
            initial_delivery_count=None if ours else 0,
            channel=session.channel,
        )
    )
    session.errant[frame.handle] = None
    connection.send(Detach(handle, True, error, channel=session.channel))


# The client is the sender


def _attach_incoming(
    session: SessionEndpoint, frame: Attach, handle: int, key: Key, pending: PendingAttach | None
) -> IncomingLink:
    connection = session.connection
    termini = connection.shared.termini
    target = frame.target
    known = terminus = termini.target(key)
    if target is None and terminus is not None:
        target = terminus.target
    if target is None:
        raise LinkRefused(
            constants.INVALID_FIELD, "the link has no target and cannot be resumed: no terminus of that name exists"
        )
    if isinstance(target, Coordinator):
        return _attach_coordinator(session, frame, handle)
    if not isinstance(target, Target):
        raise LinkRefused(constants.NOT_IMPLEMENTED, "the target has an unknown type")
    if link_pair.wants(target.address):
        return link_pair.attach_requests(session, frame, handle)
    if terminus is None or not _is_same(terminus, target):
        terminus = TargetTerminus(termini, key)
    termini.check(terminus, target, known)
    link = BatchLink(session, frame, handle) if target.address == BATCHES else IncomingLink(session, frame, handle)
    address: str | None = None
    properties: Checked = None
    if _wants_topic(target):
        connection.check("write", addresses.TOPIC_EXCHANGE)
        address = _own_topic(session, frame.name, terminus.target, target)
        termini.create_topic(terminus, addresses.key_of_topic(address))
        properties = TOPIC_LIFETIME
        link.send_to(destinations.resolve(connection, address, ()))
    elif terminus.node is not None or target.dynamic:
        node_made = _own_node(session, frame.name, terminus, target)
        address = node_made.queue.name
        properties = _lifetime(node_made)
        link.set_target("", address)
    elif target.address == BATCHES:
        address = BATCHES
    elif target.address is not None:
        address = _text(target.address)
        link.send_to(destinations.resolve(connection, address, tuple(target.capabilities)))
    actual = Target(
        address,
        target.durable,
        target.expiry_policy,
        target.timeout,
        properties is not None,
        properties,
        _known(target.capabilities),
    )
    answer = Attach(
        frame.name,
        handle,
        True,
        frame.snd_settle_mode,
        frame.rcv_settle_mode,
        frame.source,
        actual,
        max_message_size=connection.settings.max_message_size or None,
        channel=session.channel,
    )
    _replace(known, terminus)
    unsettled_map.set_for_target(link, terminus, frame, answer, pending)
    terminus.attach_sender(link, actual)
    connection.send(answer)
    return link


def _attach_coordinator(session: SessionEndpoint, frame: Attach, handle: int) -> CoordinatorLink:
    link = CoordinatorLink(session, frame, handle)
    session.connection.send(
        Attach(
            frame.name,
            handle,
            True,
            frame.snd_settle_mode,
            frame.rcv_settle_mode,
            frame.source,
            Coordinator(CAPABILITIES),
            channel=session.channel,
        )
    )
    return link


# The client is the receiver


def _attach_outgoing(session: SessionEndpoint, frame: Attach, handle: int, key: Key, pending: PendingAttach | None) -> Link:
    connection = session.connection
    termini = connection.shared.termini
    before = terminus = termini.source(key)
    source = frame.source
    if source is None and terminus is not None:
        source = terminus.source
    if source is None:
        known = shared_subscription.find_subscription(termini, key, frame)
        source = None if known is None else known.source
    if source is None:
        raise LinkRefused(constants.NOT_FOUND, f"link '{frame.name}' has no source and no subscription to resume")
    if not isinstance(source, Source):
        raise LinkRefused(constants.INVALID_FIELD, "the source has an unknown type")
    if link_pair.wants(source.address):
        return link_pair.attach_answers(session, frame, handle)
    limit = connection.settings.consumers_per_channel
    if limit and sum(other.consumes for other in session.handles.values()) >= limit:
        raise ResourceError(f"the session already has {limit} consumers; the setting is limits.consumers_per_channel")
    if direct_reply.wants(source):
        return direct_reply.attach(session, frame, handle)
    # Make as many checks as possible before creating anything, and replace the old terminus last.
    priority = _priority(frame)
    default_outcome = _default_outcome(source)
    if terminus is None or not _is_same(terminus, source):
        terminus = SourceTerminus(termini, key)
    if shared_subscription.SHARED not in source.capabilities or source.dynamic or _is_dynamic(terminus):
        termini.check(terminus, source, before)
    subscription: SharedSubscription | None = None
    # A sender that supports both settle modes sends unsettled.
    link = OutgoingLink(session, frame, handle)
    properties: Checked = None
    is_subscription = False
    if _wants_topic(source):
        address = _own_topic(session, frame.name, terminus.source, source)
        properties = TOPIC_LIFETIME
        wanted = filters.parse(source.filter, True)
        node = addresses.parse(address, connection.vhost)
        queue = _subscribe(session, frame.name, terminus, source, node, wanted).queue
        termini.create_topic(terminus, addresses.key_of_topic(address))
        is_subscription = True
    elif source.dynamic or _is_dynamic(terminus):
        wanted = filters.parse(source.filter, False)
        made = _own_node(session, frame.name, terminus, source)
        queue = made.queue
        address = queue.name
        properties = _lifetime(made)
    else:
        if source.address is None:
            raise LinkRefused(constants.INVALID_FIELD, "the source has no address")
        address = _text(source.address)
        node = addresses.parse(address, connection.vhost, tuple(source.capabilities))
        wanted = filters.parse(source.filter, node.queue is None)
        if node.queue is not None:
            termini.check(terminus, source, before)
            queue = _find_queue(session, node)
            connection.check("read", queue.name)
        else:
            destinations.find_topic(connection, node)
            if shared_subscription.SHARED in source.capabilities:
                subscription = shared_subscription.find(termini, key, source)
                if not terminus.belongs_to(subscription):
                    terminus = Member(termini, key, subscription)
                termini.check(subscription, source, before)
            owner = terminus if subscription is None else subscription
            queue = _subscribe(session, frame.name, owner, source, node, wanted).queue
            is_subscription = True
    # The queue of a subscription belongs to the link; if the link only browsed, no consumer would empty it.
    copies = source.distribution_mode == constants.STD_DIST_MODE_COPY
    # Reading a stream removes nothing from it.
    browses = copies and not is_subscription and not queue.replayable and not wanted.lease
    if not browses and queue.consumers.is_exclusive():
        raise AccessRefused(f"queue '{queue.name}' in vhost '{connection.vhost_name}' in exclusive use")
    queue.lifetime.touch()
    settled = frame.snd_settle_mode == constants.SENDER_SETTLE_MODE_SETTLED
    # A queue that does not survive a restart has no durable state; a shared source or a stream has no state of its own.
    durable = source.durable if queue.stored else 0
    if subscription is not None or queue.replayable or wanted.lease:
        durable = min(durable, CONFIGURATION)
    consumer: LinkConsumer
    if browses:
        consumer = BrowsingConsumer(link, queue, settled, terminus.seen_in(queue), default_outcome)
    elif durable == UNSETTLED_STATE and not settled:
        consumer = DurableSourceConsumer(link, queue, terminus.need_id(), priority, default_outcome)
    else:
        consumer = LinkConsumer(link, queue, settled, False, priority, default_outcome)
    wanted.fit_to_queue(queue, copies, settled)
    consumer.filter(wanted)
    if is_subscription and subscription is None:
        consumer.set_sole()
    link.consume(consumer)
    actual = Source(
        address,
        durable,
        source.expiry_policy,
        source.timeout,
        properties is not None,
        properties,
        constants.STD_DIST_MODE_COPY if copies else constants.STD_DIST_MODE_MOVE,
        wanted.in_place or None,
        source.default_outcome,
        _outcomes(source),
        _known(source.capabilities),
    )
    answer = Attach(
        frame.name,
        handle,
        False,
        frame.snd_settle_mode,
        frame.rcv_settle_mode,
        actual,
        frame.target,
        initial_delivery_count=0,
        channel=session.channel,
    )
    _replace(before, terminus)
    if subscription is not None:
        subscription.replace()
    local = unsettled_map.set_for_source(link, terminus, frame, answer, pending)
    terminus.attach_to(queue, link, actual)
    connection.send(answer)
    if local is not None and pending is not None:
        unsettled_map.compare(link, terminus, answer, pending, local)
    return link


def _replace(known: Terminus | None, terminus: Terminus) -> None:
    """Destroy the former terminus of the link if the accepted attach replaces it."""
    if known is not None and known is not terminus:
        known.destroy()


def _subscribe(
    session: SessionEndpoint, name: str, terminus: Terminus, source: Source, node: Node, wanted: Wanted
) -> DynamicNode:
    """Create the queue of a subscription and bind it to an exchange."""
    connection = session.connection
    vhost = connection.vhost
    connection.check("read", node.exchange)
    known = terminus.node
    if known is not None and known.queue.deleted:
        known = None
    exchange = vhost.exchanges.get(node.exchange) if known is not None else vhost.exchange(node.exchange)
    key = node.key if wanted.binding is None else wanted.binding
    if exchange is not None:
        if key is None:
            key = exchange.match_all_key
        if exchange.has_topics:
            connection.check_topic("read", node.exchange, key)
    if known is not None:
        return known
    if not node.exchange:
        raise AccessRefused("queues cannot be bound to the default exchange")
    exchange.check_binding(key, wanted.arguments)
    made = _add_queue(session, name, source.durable > 0, descriptors.DELETE_ON_CLOSE)
    try:
        vhost.bind(made.queue, node.exchange, key, wanted.arguments)
    except BrokerError:
        vhost.remove_queue(made.queue)
        raise
    terminus.own(made)
    return made


# Queues


def _find_queue(session: SessionEndpoint, node: Node) -> Queue:
    """Return the queue of a node, and create it if the address allows that."""
    connection = session.connection
    queue: Queue = connection.vhost.queue(destinations.find_queue(connection, node).name, connection)
    return queue


def _own_node(session: SessionEndpoint, name: str, terminus: Terminus, description: Checked) -> DynamicNode:
    """Return the dynamic node of a terminus, and create it if it does not exist."""
    known = terminus.node
    if known is not None and not known.queue.deleted:
        return known
    if description.dynamic and description.address is not None:
        raise LinkRefused(constants.INVALID_FIELD, "a dynamic terminus must not have an address")
    _check_dynamic(session.connection, name)
    made = _add_queue(session, name, description.durable > 0, policy_of(description.dynamic_node_properties))
    terminus.own(made)
    return made


def _check_dynamic(connection: Connection, link_name: str) -> None:
    """Raise AccessRefused unless the user may configure queues named by the broker, or this queue."""
    if not connection.account.may(connection.vhost_name, "configure", SERVER_NAMED):
        connection.check("configure", _prefix(connection, link_name))


def _wants_topic(description: Checked) -> bool:
    """Return whether the dynamic node is a topic, which is a unique key instead of a queue."""
    return bool(description.dynamic) and addresses.TEMPORARY_TOPIC in description.capabilities


def _own_topic(session: SessionEndpoint, name: str, known: Checked, description: Checked) -> str:
    """Return the address of the temporary topic of a terminus: that of the `known` source or target, or a new one."""
    if known is not None and known.address is not None:
        return str(known.address)
    if description.address is not None:
        raise LinkRefused(constants.INVALID_FIELD, "a dynamic terminus must not have an address")
    unique = secrets.token_urlsafe(16)
    key = f"{_short(session.connection.container_id)}/{_short(name)}/{unique}"
    # The key is used in bindings, where these characters are wildcards.
    return addresses.TOPIC_SCHEME + addresses.TEMPORARY_KEY + key.replace("*", "_").replace("#", "_")


def _is_dynamic(terminus: SourceTerminus) -> bool:
    return terminus.source is not None and terminus.source.dynamic


def _is_same(terminus: Terminus, wanted: Checked) -> bool:
    """Return whether a known terminus matches an attach.

    A different address replaces the terminus, and so does a different filter if it determines what the queue receives.
    """
    known = terminus.description()
    if known is None or not isinstance(wanted, (Source, Target)):
        return False
    if not _has_address_of(known, wanted):
        return False
    if known.dynamic or terminus.node is None or not isinstance(wanted, Source):
        return True
    # An existing queue cannot become durable.
    return shared_subscription.is_same(known, wanted) and (not wanted.durable or terminus.node.queue.stored)


def _is_replaced(terminus: Terminus, frame: Attach) -> bool:
    """Return whether an attach has another address than the known terminus, which it replaces, if it is accepted."""
    known = terminus.description()
    wanted = frame.source if frame.role else frame.target
    return known is not None and isinstance(wanted, (Source, Target)) and not _has_address_of(known, wanted)


def _has_address_of(known: Checked, wanted: Checked) -> bool:
    """Return whether a source or target has the address of a known one, which may be dynamic."""
    if known.dynamic:
        return bool(wanted.dynamic or wanted.address == known.address)
    return bool(not wanted.dynamic and wanted.address == known.address)


def _add_queue(session: SessionEndpoint, link_name: str, durable: bool, policy: int) -> DynamicNode:
    """Create a queue for a link, named after it (messaging section 3.5.3)."""
    connection = session.connection
    vhost = connection.vhost
    connection.broker.check_queue_limit(vhost)
    unique = vhost.new_queue_name()
    vhost.new_names.discard(unique)
    queue = vhost.add_own_queue(_prefix(connection, link_name) + unique.removeprefix("amq.gen-"), durable)
    return DynamicNode(queue, policy)


def _prefix(connection: Connection, link_name: str) -> str:
    return f"{_short(connection.container_id)}/{_short(link_name)}/"


def _short(name: str) -> str:
    return name.encode("utf-8", "replace")[:MAX_NAME_PART].decode("utf-8", "ignore").replace("/", "_")


def _lifetime(node: DynamicNode) -> Table:
    return {LIFETIME: to_described(POLICIES[node.policy]())}


def _outcomes(source: Source) -> tuple[str, ...]:
    """Return the outcomes of the source that the broker supports; all outcomes if there are none."""
    return tuple(name for name in source.outcomes if name in OUTCOMES) or OUTCOMES


def _default_outcome(source: Source) -> Checked:
    """Return the source's default outcome; None means that of the broker."""
    outcome = source.default_outcome
    if outcome is not None and getattr(outcome, "kind", 0) not in DEFAULTS:
        raise LinkRefused(
            constants.INVALID_FIELD,
            "invalid default outcome of the source: expected accepted, rejected, released or modified",
        )
    return outcome


def _text(address: Checked) -> str:
    if not isinstance(address, str):
        raise LinkRefused(constants.INVALID_FIELD, "the address is not a string")
    return str(address)


def _priority(frame: Attach) -> int:
    """Return the consumer priority of a receiver."""
    value = frame.properties.get(PRIORITY) if isinstance(frame.properties, dict) else None
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise LinkRefused(constants.INVALID_FIELD, f"the property {PRIORITY} is {value!r}; expected an integer")
    return int(value)


def _known(capabilities: Checked) -> tuple[str, ...]:
    """Return the supported capabilities."""
    return tuple(name for name in capabilities if name in TERMINUS_CAPABILITIES)
