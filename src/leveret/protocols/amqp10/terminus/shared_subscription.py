"""Shared subscriptions, as in JMS: links that share the messages of one subscription.

A source with the capability `shared` joins the subscription whose name is that of the link up to `|`, in the client's
container, or with `global` in all containers of the user. The subscription outlives its links: the expiry policy applies
when the last one is detached. The unsettled deliveries of a link are requeued for the others at the end of its session,
since it cannot be resumed. A durable and a volatile subscription of the same name are different.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.protocols.amqp10.errors import LinkRefused
from leveret.protocols.amqp10.terminus import filters, terminus_store
from leveret.protocols.amqp10.terminus.source import SourceTerminus
from leveret.protocols.amqp10.terminus.terminus import CONNECTION_CLOSE, NEVER, SESSION_END, Key, Terminus
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.protocols.amqp10.connection.connection import Connection
    from leveret.protocols.amqp10.link.link import Link
    from leveret.protocols.amqp10.terminus.registry import TerminusRegistry
    from leveret.wire.amqp10.messaging import Source
    from leveret.wire.amqp10.transport import Attach

SHARED: Final = "shared"
GLOBAL: Final = "global"
# Container-id of subscriptions that all containers share.
ANY: Final = ""
SEPARATOR: Final = "|"
CAPABILITY: Final = "SHARED-SUBS"


class SharedSubscription(Terminus):
    """A shared subscription. `members` are the termini of its links that are attached or whose session still exists."""

    def __init__(
        self, registry: TerminusRegistry, key: Key, durable: bool, replaces: SharedSubscription | None = None
    ) -> None:
        super().__init__(registry, key)
        self.is_durable = durable
        self.source: Source | None = None
        self.members: dict[Member, None] = {}
        # Subscription that this one will replace.
        self.replaces = replaces

    def role(self) -> str:
        return terminus_store.SHARED_DURABLE if self.is_durable else terminus_store.SHARED_VOLATILE

    def description(self) -> Checked:
        return self.source

    def restore(self, description: Checked, id: str, attached: int) -> None:
        super().restore(description, id, attached)
        self.source = description

    def register(self) -> None:
        self.registry.add_shared(self)

    def join(self, member: Member, source: Source) -> None:
        """Add the member of an attached link."""
        self.take_over(source)
        self.stop_expiry()
        self.source = source
        self.members[member] = None
        if self.connection is not None:
            self.connection.termini.pop(self, None)
            self.connection = None
        self.register()
        if self.durable:
            terminus_store.put(self.registry.broker.log, self, source)

    def replace(self) -> None:
        """Destroy the subscription that this one replaces, if any, now that a link to this one is accepted."""
        replaced = self.replaces
        if replaced is not None:
            self.replaces = None
            replaced.destroy()

    def leave(self, member: Member, connection: Connection | None) -> None:
        """Remove the member of a closed link."""
        self.members.pop(member, None)
        if self.members or self.removed:
            return
        if member.unsubscribes:
            self.destroy()
        elif self.expiry_policy == CONNECTION_CLOSE and connection is not None and not connection.closing:
            self.connection = connection
            connection.termini[self] = None
        elif self.expiry_policy != NEVER:
            self.expire()

    def connection_closed(self) -> None:
        self.connection = None
        if not self.members and not self.removed:
            self.expire()

    def is_attached(self) -> bool:
        """Return whether any link is attached."""
        return any(member.link is not None for member in self.members)

    def destroy(self) -> None:
        super().destroy()
        self.registry.remove_shared(self)

    def drop(self) -> None:
        """Do nothing: unsettled deliveries belong to the members."""

    def collect(self) -> None:
        """Do nothing, like `drop`."""

    def unsettled_count(self) -> int:
        return sum(member.unsettled_count() for member in self.members)

    def address(self) -> str:
        return "" if self.source is None else str(self.source.address or "")


class Member(SourceTerminus):
    """The terminus of one link of a shared subscription. It ends with its session, regardless of the source's policy."""

    def __init__(self, registry: TerminusRegistry, key: Key, subscription: SharedSubscription) -> None:
        super().__init__(registry, key)
        self.subscription = subscription

    def belongs_to(self, subscription: SharedSubscription) -> bool:
        return self.subscription is subscription

    def attach(self, link: Link, description: Checked) -> None:
        super().attach(link, description)
        self.subscription.join(self, description)

    def take_over(self, description: Checked) -> None:
        self.durable = 0
        self.expiry_policy = SESSION_END
        self.timeout = 0

    def destroy(self) -> None:
        if self.removed:
            return
        connection = self.connection
        super().destroy()
        self.subscription.leave(self, connection)


def find(registry: TerminusRegistry, key: Key, source: Source) -> SharedSubscription:
    """Return the subscription that a source requests, or a new one if there is none.

    A subscription with another address or filter is replaced once the link is accepted. Raises LinkRefused if such a
    subscription has attached links.
    """
    identity = _identity(key, GLOBAL in source.capabilities)
    durable = source.durable > 0
    found = registry.find_shared(identity, durable)
    if found is not None and (found.source is None or not is_same(found.source, source)):
        if found.is_attached():
            raise LinkRefused(
                constants.NOT_ALLOWED,
                f"the shared subscription '{identity[3]}' has attached links and another address or filter;"
                " expected the same address and filter, or no attached links",
            )
        return SharedSubscription(registry, identity, durable, found)
    return SharedSubscription(registry, identity, durable) if found is None else found


def is_same(known: Source, wanted: Source) -> bool:
    """Return whether two sources describe the same subscription: they have the same address and effective filters."""
    return bool(
        known.address == wanted.address
        and filters.parse(known.filter, True).in_place == filters.parse(wanted.filter, True).in_place
    )


def find_subscription(registry: TerminusRegistry, key: Key, frame: Attach) -> SharedSubscription | None:
    """Return the subscription of an attach without a source, by its name and the desired capability `global`."""
    identity = _identity(key, GLOBAL in frame.desired_capabilities)
    found = registry.find_shared(identity, True)
    return found if found is not None else registry.find_shared(identity, False)


def _identity(key: Key, everywhere: bool) -> Key:
    vhost, user, container, name, receives = key
    return vhost, user, ANY if everywhere else container, name.partition(SEPARATOR)[0], receives
