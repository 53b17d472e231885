"""Registry of termini by the identity of their links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.consumer import UnackedOwner
from leveret.broker.errors import NotFound, PreconditionFailed, ResourceError
from leveret.broker.message import Entry
from leveret.management.descriptions import LinkInfo
from leveret.protocols.amqp10.link.link import RECEIVER_SETTLE_MODES, SENDER_SETTLE_MODES
from leveret.protocols.amqp10.terminus import terminus_store
from leveret.protocols.amqp10.terminus.recovery import TerminusRecovery
from leveret.protocols.amqp10.terminus.shared_subscription import SharedSubscription
from leveret.protocols.amqp10.terminus.source import SourceTerminus
from leveret.protocols.amqp10.terminus.target import TargetTerminus
from leveret.protocols.amqp10.terminus.terminus import Key, TemporaryTopic, Terminus, outlives
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.messaging import Source
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.log import Recovery
    from leveret.protocols.amqp10.settings import Amqp10Settings
    from leveret.security.users import UserStore


# Maximum encoded bytes of a source or target.
MAX_TERMINUS_BYTES: Final = 16384


class TerminusRegistry(UnackedOwner):
    """All termini of a broker, attached and suspended. It is the holder of entries that suspended termini have acquired."""

    def __init__(self, broker: Broker, settings: Amqp10Settings) -> None:
        self.broker = broker
        self.settings = settings
        self.by_key: dict[Key, Terminus] = {}
        self.shared: dict[tuple[Key, bool], SharedSubscription] = {}
        # Number of termini of each user that outlive their sessions.
        self.kept: dict[str, int] = {}
        self.terminus_recovery: TerminusRecovery | None = None
        # By vhost and key.
        self.topics: dict[tuple[str, str], TemporaryTopic] = {}
        # Bytes of interrupted deliveries of suspended targets.
        self.partial = 0

    def source(self, key: Key) -> SourceTerminus | None:
        """Return the source of an identity; None if there is none."""
        found = self.by_key.get(key)
        return found if isinstance(found, SourceTerminus) else None

    def target(self, key: Key) -> TargetTerminus | None:
        found = self.by_key.get(key)
        return found if isinstance(found, TargetTerminus) else None

    def check(self, terminus: Terminus, wanted: Checked, replaced: Terminus | None) -> None:
        """Check the limits for a terminus, which is stored at least as long as its link.

        `replaced` is the terminus that it, or its member, replaces.

        Raises:
            ResourceError: the description is too large, or the user has too many termini that outlive their sessions.
        """
        kept = outlives(wanted)
        has_map = wanted.dynamic_node_properties or (isinstance(wanted, Source) and wanted.filter)
        if (kept or has_map) and len(encode_composite(wanted)) > MAX_TERMINUS_BYTES:
            raise ResourceError(f"the source or target of a link is too large: expected at most {MAX_TERMINUS_BYTES} bytes")
        if not kept:
            return
        user = terminus.key[1]
        limit = self.settings.kept_links
        if terminus.counted or (replaced is not None and replaced.counted) or self.kept.get(user, 0) < limit:
            return
        raise ResourceError(
            f"user '{user}' has {limit} links that outlive their sessions, the maximum; the setting is amqp10.kept_links"
        )

    def add(self, terminus: Terminus) -> None:
        self.by_key[terminus.key] = terminus
        if terminus.is_kept() != terminus.counted:
            self._count(terminus)

    def remove(self, terminus: Terminus) -> None:
        if self.by_key.get(terminus.key) is terminus:
            del self.by_key[terminus.key]
        if terminus.counted:
            self._count(terminus)
        if not self.by_key:
            self.broker.holders.pop(self, None)

    def create_topic(self, terminus: Terminus, key: str) -> None:
        """Create the temporary topic of a terminus."""
        if terminus.topic is None:
            self.topics[terminus.key[0], key] = terminus.create_topic(key)

    def find_shared(self, key: Key, durable: bool) -> SharedSubscription | None:
        """Return the shared subscription of an identity; None if there is none."""
        return self.shared.get((key, durable))

    def add_shared(self, subscription: SharedSubscription) -> None:
        self.shared[subscription.key, subscription.is_durable] = subscription
        if subscription.is_kept() != subscription.counted:
            self._count(subscription)

    def remove_shared(self, subscription: SharedSubscription) -> None:
        key = (subscription.key, subscription.is_durable)
        if self.shared.get(key) is subscription:
            del self.shared[key]

    def all(self) -> list[Terminus]:
        return [*self.by_key.values(), *self.shared.values()]

    def _count(self, terminus: Terminus) -> None:
        user = terminus.key[1]
        count = self.kept.get(user, 0) + (1 if terminus.count() else -1)
        if count:
            self.kept[user] = count
        else:
            self.kept.pop(user, None)

    # Held entries

    def hold(self) -> None:
        """Note that a suspended source has acquired entries."""
        self.broker.holders[self] = None

    def all_unacked(self) -> list[Entry]:
        entries: list[Entry] = []
        for terminus in self.by_key.values():
            entries.extend(terminus.unacked_entries())
        return entries

    def unacked_pieces(self) -> Iterator[list[Entry]]:
        for terminus in list(self.by_key.values()):
            yield terminus.unacked_entries()

    # After a start

    def recover(self, recovery: Recovery) -> None:
        """Read the termini and their acquired entries from the log, before the broker recovers its queues."""
        self.terminus_recovery = TerminusRecovery(self, recovery)

    def start(self) -> None:
        """Read the acquired entries back, after the log has started."""
        terminus_recovery = self.terminus_recovery
        if terminus_recovery is not None:
            terminus_recovery.start()

    def is_ready(self) -> bool:
        """Return whether links may be attached."""
        return self.terminus_recovery is None or self.terminus_recovery.done

    # Removal with vhost or user

    def vhost_removed(self, name: str) -> None:
        for terminus in self.all():
            if terminus.key[0] == name:
                terminus.destroy()

    def users_changed(self, users: UserStore) -> None:
        """Destroy the termini of deleted users."""
        for terminus in self.all():
            if users.was_removed(terminus.key[1]):
                terminus.destroy()

    # For operators

    def describe(self) -> Iterator[LinkInfo]:
        """Yield descriptions for `leveret links`, one by one since there may be many."""
        for terminus in self.all():
            if not terminus.removed:
                yield describe(terminus)

    def release(self, vhost: str, user: str, container: str, name: str, role: str) -> int:
        """Requeue the acquired messages of a suspended source. Return their number.

        Raises:
            NotFound: there is no such link.
            PreconditionFailed: the link is attached, or not of the role sender.
        """
        terminus = self._find(vhost, user, container, name, role)
        if not terminus.acquires_messages:
            raise PreconditionFailed(f"link '{name}' acquires no messages; expected role 'sender'")
        if terminus.link is not None:
            raise PreconditionFailed(f"link '{name}' is attached: close its connection, or delete the link")
        return terminus.release_all()

    def delete(self, vhost: str, user: str, container: str, name: str, role: str) -> None:
        """Destroy a terminus; an attached link is detached with an error. Raises NotFound."""
        terminus = self._find(vhost, user, container, name, role)
        link = terminus.link
        if link is not None:
            link.deleted()
        terminus.destroy()

    def _find(self, vhost: str, user: str, container: str, name: str, role: str) -> Terminus:
        terminus: Terminus | None
        key = (vhost, user, container, name, role == terminus_store.RECEIVER)
        if role in (terminus_store.SENDER, terminus_store.RECEIVER):
            terminus = self.by_key.get(key)
        else:
            terminus = self.find_shared(key, role == terminus_store.SHARED_DURABLE)
        if terminus is None:
            raise NotFound(
                f"link '{name}' of container '{container}' and user '{user}' with role '{role}' does not exist in"
                f" vhost '{vhost}'"
            )
        return terminus


def describe(terminus: Terminus) -> LinkInfo:
    """Describe a terminus."""
    vhost, user, container, name, _ = terminus.key
    expiry = terminus.expiry
    link = terminus.link
    found = LinkInfo(
        vhost=vhost,
        user=user,
        container=container,
        name=name,
        role=terminus.role(),
        address=terminus.address(),
        state="attached" if terminus.is_attached() else "suspended",
        connection=None,
        unsettled=terminus.unsettled_count(),
        durable=("none", "configuration", "unsettled-state")[terminus.durable],
        expiry=terminus.expiry_policy,
        timeout=terminus.timeout,
        expires_at=expiry.due if expiry is not None else 0,
    )
    if link is not None:
        found.connection = link.session.connection.number
        found.session = link.session.channel
        found.credit = link.credit
        found.delivery_count = link.delivery_count
        found.sender_settle_mode = SENDER_SETTLE_MODES[link.snd_settle_mode]
        found.receiver_settle_mode = RECEIVER_SETTLE_MODES[link.rcv_settle_mode]
    return found
