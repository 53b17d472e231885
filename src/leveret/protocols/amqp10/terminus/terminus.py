"""Termini, which may outlive their links (transport section 2.6, messaging section 3.5).

The expiry policy decides how long a terminus outlives its link. A detach without `closed`, the end of the session and the
loss of the connection suspend it: it keeps its node and its unsettled deliveries, and a link of the same identity resumes
it. A detach with `closed` destroys it. The expiry timer starts with the event of the policy and stops at an attach.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.destination import SendTarget
from leveret.broker.timers import Timed
from leveret.broker.vhost import QUEUE_WORK
from leveret.protocols.amqp10.terminus import terminus_store
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.broker.message import Entry
    from leveret.protocols.amqp10.connection.connection import Connection
    from leveret.protocols.amqp10.link.link import Link
    from leveret.protocols.amqp10.link.outgoing import LinkConsumer
    from leveret.protocols.amqp10.link.pending_attach import PendingAttach
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint
    from leveret.protocols.amqp10.terminus.dynamic_node import DynamicNode
    from leveret.protocols.amqp10.terminus.recovery import TerminusRecovery
    from leveret.protocols.amqp10.terminus.registry import TerminusRegistry
    from leveret.protocols.amqp10.terminus.shared_subscription import SharedSubscription

# Identity of a link: vhost, user, container-id, name, and whether the broker is its receiver.
Key = tuple[str, str, str, str, bool]

LINK_DETACH: Final = constants.TERMINUS_EXPIRY_POLICY_LINK_DETACH
SESSION_END: Final = constants.TERMINUS_EXPIRY_POLICY_SESSION_END
CONNECTION_CLOSE: Final = constants.TERMINUS_EXPIRY_POLICY_CONNECTION_CLOSE
NEVER: Final = constants.TERMINUS_EXPIRY_POLICY_NEVER
CONFIGURATION: Final = constants.TERMINUS_DURABILITY_CONFIGURATION
UNSETTLED_STATE: Final = constants.TERMINUS_DURABILITY_UNSETTLED_STATE


def outlives(description: Checked) -> bool:
    """Return whether a source or target requests more than the default lifetime."""
    return bool(description.timeout or description.durable or description.expiry_policy in (NEVER, CONNECTION_CLOSE))


class Expiry(Timed):
    """The expiry timer of a terminus. Cancelling it clears `terminus`: the timers may keep a reference for a while."""

    def __init__(self, terminus: Terminus) -> None:
        super().__init__()
        self.terminus: Terminus | None = terminus

    def fire(self, now: int) -> None:
        terminus = self.terminus
        if terminus is not None:
            terminus.destroy()


class TemporaryTopic(SendTarget):
    """A topic that is created for a link and ends with its terminus. Its key is unique."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key
        self.ended = False

    def ending(self) -> str:
        """Return the text of the error for links that still send to it."""
        return f"the temporary topic '{self.key}' has ended with its link"


class Terminus:
    """One terminus of the broker.

    Attributes:
        id: its id in the log; empty if it is not in the log.
        durable: terminus-durability, as in source and target.
        expiry_policy: expiry-policy, as in source and target.
        timeout: seconds until it expires.
        link: the attached link; None while it is suspended.
        session: last session with a link to it; None when that has ended.
        connection: last connection with a link to it; None when that has closed.
        attached: number of attaches, which is part of the delivery-tags.
        claims: number of attaches that were begun. Only the latest of those that wait is accepted.
        released: number of times that all its unsettled deliveries were released.
        moving: whether it is taking over its unsettled deliveries in steps. Until then, no link can be attached.
        node: its own dynamic queue; None if there is none.
        topic: its temporary topic; None if there is none.
    """

    def __init__(self, registry: TerminusRegistry, key: Key) -> None:
        self.registry = registry
        self.key = key
        self.id = ""
        self.durable = 0
        self.expiry_policy: str = SESSION_END
        self.timeout = 0
        self.link: Link | None = None
        self.session: SessionEndpoint | None = None
        self.connection: Connection | None = None
        self.attached = 0
        self.claims = 0
        self.released = 0
        self.moving = False
        # Whether the end of its session, which is in progress, starts the expiry timer.
        self.expires_next = False
        self.node: DynamicNode | None = None
        self.topic: TemporaryTopic | None = None
        self.expiry: Expiry | None = None
        self.removed = False
        self.counted = False
        # Whether the client has closed it, which ends a shared subscription without other links.
        self.unsubscribes = False

    # Overridden by subclasses

    # Whether suspended deliveries of the terminus keep messages of a queue acquired.
    acquires_messages = False

    @abstractmethod
    def description(self) -> Checked:
        """Return the source or target, as last sent to the client; None before."""

    def belongs_to(self, subscription: SharedSubscription) -> bool:
        """Return whether it is the terminus of a link of a shared subscription."""
        return False

    def unacked_entries(self) -> list[Entry]:
        """Return the entries of deliveries that are in no session."""
        return []

    def release_all(self) -> int:
        """Requeue all unsettled deliveries. Return their number."""
        return 0

    def count(self) -> bool:
        """Start or stop to count towards the user's limit. Return whether it counts now."""
        self.counted = not self.counted
        return self.counted

    def register(self) -> None:
        """Add the terminus to the registry."""
        self.registry.add(self)

    def restore_delivery(self, recovery: TerminusRecovery, tag: bytes, value: bytes) -> bool:
        """Restore an unsettled delivery from the log. Return False if the terminus has none."""
        return False

    def restore_part(self, tag: bytes, data: bytes) -> bool:
        """Restore the received part of a delivery from the log. Return False if the terminus receives none."""
        return False

    # Attach and detach

    def attach(self, link: Link, description: Checked) -> None:
        """Attach a link; `description` is the source or target of the attach."""
        self.take_over(description)
        self.stop_expiry()
        self.expires_next = False
        self.link = link
        if self.session is not None:
            self.session.suspended.pop(self, None)
        self.attached += 1
        session = link.session
        if self.session is not session:
            self._leave_session()
            self.session = session
            self.connection = session.connection
            session.termini[self] = None
        self.register()
        if self.durable:
            terminus_store.put(self.registry.broker.log, self, description)
        elif self.id:
            terminus_store.remove(self.registry.broker.log, self)
            self.id = ""

    def take_over(self, description: Checked) -> None:
        """Adopt the properties of a source or target."""
        self.durable = description.durable
        self.expiry_policy = description.expiry_policy
        self.timeout = description.timeout

    def restore(self, description: Checked, id: str, attached: int) -> None:
        """Restore the terminus from the log."""
        self.take_over(description)
        self.id = id
        self.attached = attached

    def create_topic(self, key: str) -> TemporaryTopic:
        """Create its temporary topic."""
        self.topic = TemporaryTopic(key)
        return self.topic

    def own(self, node: DynamicNode) -> None:
        """Own a dynamic node, which `destroy` deletes."""
        self.node = node

    def unsubscribe(self) -> None:
        """Note that the client closes its link, which ends a shared subscription without other links."""
        self.unsubscribes = True

    def detached(self) -> None:
        """Suspend the terminus after its link is detached."""
        self.link = None
        if self.moving:
            self.expires_next = self.expiry_policy == LINK_DETACH  # `session_ended` follows
        elif self.expiry_policy == LINK_DETACH:
            self.expire()
        elif not self.counted and self.session is not None:
            self.session.remember(self)

    def session_ended(self) -> None:
        """Handle the end of the last session with a link to it."""
        if self.removed:
            self.session = None
            return
        self.collect()
        self.session = None
        self.link = None
        connection = self.connection
        if self.expiry_policy == SESSION_END or self.expires_next:
            self.expire()
        elif connection is not None and connection.released:
            self.connection_closed()
        elif connection is not None:
            connection.termini[self] = None

    def connection_closed(self) -> None:
        """Handle the end of the last connection with a link to it."""
        self.connection = None
        if self.expiry_policy == CONNECTION_CLOSE and not self.removed:
            self.expire()

    def follow_connection(self) -> None:
        """Handle the end of its last connection now, if its turn has not come among the termini of the connection."""
        connection = self.connection
        if connection is not None and connection.released and self in connection.termini:
            del connection.termini[self]
            self.connection_closed()

    def survives(self) -> bool:
        """Return whether it outlives its session."""
        return self.timeout > 0 or self.expiry_policy == NEVER or self.expiry_policy == CONNECTION_CLOSE

    def is_kept(self) -> bool:
        """Return whether the client requests more than the default lifetime. An error does not destroy such a terminus."""
        return outlives(self)

    def _leave_session(self) -> None:
        session = self.session
        if session is not None:
            self.session = None
            session.termini.pop(self, None)
            session.suspended.pop(self, None)
        connection = self.connection
        if connection is not None:
            self.connection = None
            connection.termini.pop(self, None)

    # Expiry

    def expire(self) -> None:
        """Start the expiry timer."""
        if not self.timeout:
            self.destroy()
            return
        timers = self.registry.broker.timers
        if self.expiry is None:
            self.expiry = Expiry(self)
        timers.at(timers.now() + self.timeout * 1000, self.expiry)

    def stop_expiry(self) -> None:
        expiry = self.expiry
        if expiry is not None:
            self.expiry = None
            expiry.terminus = None
            self.registry.broker.timers.cancel(expiry)

    # The end

    def destroy(self) -> None:
        """Destroy the terminus: release unsettled deliveries, and delete its dynamic node."""
        if self.removed:
            return
        self.removed = True
        self.stop_expiry()
        self.drop()
        self._leave_session()
        self.link = None
        self.registry.remove(self)
        if self.id:
            terminus_store.remove(self.registry.broker.log, self)
        topic = self.topic
        if topic is not None:
            self.topic = None
            topic.ended = True
            self.registry.topics.pop((self.key[0], topic.key), None)
            topic.notify_senders(self.registry.broker.jobs, topic.ending())
        node = self.node
        if node is not None:
            self.node = None
            self.registry.broker.jobs.removals.add(_leaving(node))

    @abstractmethod
    def drop(self) -> None:
        """Release unsettled deliveries."""

    @abstractmethod
    def collect(self) -> None:
        """Move the unsettled deliveries out of their session."""

    def collecting(self) -> Iterator[int]:
        """Collect in steps."""
        self.collect()
        return iter(())

    def begin_moving(self) -> None:
        """Take over its unsettled deliveries in steps. Until `end_moving`, no link can be attached."""
        self.moving = True

    def end_moving(self) -> None:
        self.moving = False

    def begin_collecting(self) -> None:
        """Collect before a link is attached in another session, in steps. Meanwhile the terminus is `moving`."""
        if not self.moving:
            self.begin_moving()
            self.registry.broker.jobs.run_steps(self._collecting_first())

    def _collecting_first(self) -> Iterator[int]:
        try:
            yield from self.collecting()
        finally:
            self.end_moving()

    def claim(self) -> int:
        """Begin an attach, and return its number among all attaches of the terminus."""
        self.claims += 1
        return self.claims

    def preparing(self, pending: PendingAttach) -> Iterator[int]:
        """Prepare the unsettled deliveries for an attach, in steps."""
        return iter(())

    def last_consumer(self) -> LinkConsumer | None:
        """Return the consumer whose unsettled deliveries are in a session; None if there is none."""
        return None

    # Properties

    def role(self) -> str:
        """Return its role as used in the log and in commands."""
        return terminus_store.RECEIVER if self.key[4] else terminus_store.SENDER

    def need_id(self) -> str:
        if not self.id:
            self.id = secrets.token_hex(8)
        return self.id

    def forget_id(self) -> None:
        """Get another id when the terminus is next stored."""
        self.id = ""

    def is_attached(self) -> bool:
        return self.link is not None

    @abstractmethod
    def unsettled_count(self) -> int:
        """Return the number of unsettled deliveries."""

    @abstractmethod
    def address(self) -> str:
        """Return the address of its node; empty if it has none."""


def _leaving(node: DynamicNode) -> Iterator[int]:
    """Delete a node as a step of a job: a session may have thousands of nodes."""
    node.leave()
    yield QUEUE_WORK
