"""Direct reply-to: a dynamic source with the capability `rabbitmq:volatile-queue`.

Its deliveries are settled. Its reply queue is deleted with the link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.errors import AccessRefused
from leveret.protocols import direct_reply
from leveret.protocols.amqp10.errors import LinkRefused
from leveret.protocols.amqp10.link.outgoing import LinkConsumer, OutgoingLink
from leveret.protocols.amqp10.terminus import filters
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.messaging import Source
from leveret.wire.amqp10.transport import Attach

if TYPE_CHECKING:
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint

CAPABILITY: Final = "rabbitmq:volatile-queue"


def wants(source: Source) -> bool:
    """Return whether a source requests direct reply-to."""
    return source.dynamic and CAPABILITY in source.capabilities


def attach(session: SessionEndpoint, frame: Attach, handle: int) -> OutgoingLink:
    """Create the queue and reply to the attach. Only this link may receive from the queue."""
    source = frame.source
    if source.address is not None:
        raise LinkRefused(constants.INVALID_FIELD, "a dynamic terminus must not have an address")
    if frame.snd_settle_mode != constants.SENDER_SETTLE_MODE_SETTLED:
        raise LinkRefused(
            constants.INVALID_FIELD,
            f"a link to a source with the capability {CAPABILITY} requires snd-settle-mode settled",
        )
    wanted = filters.parse(source.filter, False)
    connection = session.connection
    if not connection.account.has_any_permission(connection.vhost_name):
        raise AccessRefused(f"user '{connection.user}' has no permissions in vhost '{connection.vhost_name}'")
    queue = direct_reply.make_queue(connection.vhost)
    link = OutgoingLink(session, frame, handle)
    consumer = LinkConsumer(link, queue, True, True)
    consumer.filter(wanted)
    consumer.set_sole()
    link.consume(consumer)
    actual = Source(
        "/queues/" + queue.name,
        dynamic=True,
        distribution_mode=constants.STD_DIST_MODE_MOVE,
        filter=wanted.in_place or None,
        capabilities=(CAPABILITY,),
        expiry_policy=constants.TERMINUS_EXPIRY_POLICY_LINK_DETACH,
    )
    session.connection.send(
        Attach(
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
    )
    return link
