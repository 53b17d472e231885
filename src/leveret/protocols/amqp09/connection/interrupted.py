"""Channels whose connection was lost without a close. They can be resumed by `channel.resume` until a timeout.

An interrupted channel keeps its state but gets no deliveries: its connection object remains, as if its socket were full.
The exclusive queues of the lost connection belong to its `Interruption`, and pass to the connection that resumes one of its
channels.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leveret.broker.errors import NotAllowed, NotFound, ResourceLocked
from leveret.broker.queues.queue import Queue
from leveret.broker.timers import Timed
from leveret.protocols.amqp091.methods.basic import check_countable

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost
    from leveret.protocols.amqp09.channel.channel import Channel
    from leveret.protocols.amqp09.connection.base import BaseConnection
    from leveret.security.users import UserStore

logger = logging.getLogger("leveret.connection")


class Interruption(Timed):
    """The interrupted channels of one lost connection, by id."""

    def __init__(self, connection: BaseConnection) -> None:
        super().__init__()
        self.connection = connection
        self.vhost: Vhost = connection.vhost
        self.user = connection.user
        self.channels: dict[str, Channel] = {}

    def fire(self, now: int) -> None:
        logger.info("%s: %d channels were not resumed in time", self.connection.peer.subject, len(self.channels))
        self.end()

    def end(self) -> None:
        """Close the channels that have not been resumed."""
        for channel in list(self.channels.values()):
            channel.close()


class Interrupted:
    """The channels of all connections of 0-9, by id.

    Attributes:
        open: channels whose connection is not known to be lost.
        kept: interruptions by channel id, oldest first.
        of_user: the same for each user.
    """

    def __init__(self) -> None:
        self.open: dict[str, Channel] = {}
        self.kept: dict[str, Interruption] = {}
        self.of_user: dict[str, dict[str, Interruption]] = {}

    def interrupt(self, connection: BaseConnection) -> None:
        """Keep the channels of a lost connection until the timeout, up to the limit of the user."""
        settings = connection.shared.settings
        if settings.resume_timeout <= 0 or settings.resume_channels <= 0 or not connection.channels:
            return
        interruption = Interruption(connection)
        of_user = self.of_user.setdefault(connection.user, {})
        for number, channel in list(connection.channels_of_0_9().items()):
            del connection.channels[number]
            interruption.channels[channel.id] = channel
            self.open.pop(channel.id, None)
            self.kept[channel.id] = of_user[channel.id] = interruption
        # Nothing is delivered from now on, as if the socket were full.
        connection.pause_writing()
        interruption.vhost.transfer_exclusive(connection, interruption)
        for channel in list(interruption.channels.values()):
            channel.interrupt()
        while len(of_user) > settings.resume_channels:
            id = next(iter(of_user))
            of_user[id].channels[id].close()
        if interruption.channels:
            logger.info(
                "%s: %d channels may be resumed for %g s",
                connection.peer.subject,
                len(interruption.channels),
                settings.resume_timeout,
            )
            timers = connection.broker.timers
            timers.at(timers.now() + round(settings.resume_timeout * 1000), interruption)

    def resume(self, connection: BaseConnection, number: int, id: str) -> None:
        """Resume an interrupted channel as channel `number` of a connection.

        Raises:
            NotFound: the channel never existed, no longer exists, or belongs to another user or vhost; the error is the
                same, so that it reveals nothing.
            ResourceLocked: the channel is open on this connection, or is still performing a command.
            NotAllowed: another consumer of the connection has a tag that a consumer of the channel has.
            PreconditionFailed: the connection has a prefetch-size, and the channel too many deliveries to add up theirs.
        """
        channel = self._find(connection, id)
        if channel.stalled:
            raise ResourceLocked("the channel is still performing its last command: resume it again later")
        for tag in channel.consumers.by_tag:
            if connection.tag_owner(tag) is not None:
                raise NotAllowed(
                    f"consumer tag '{tag}' of the channel is in use on another channel: tags are unique in the connection"
                )
        if connection.window.prefetch_size:
            check_countable(
                [channel], "cannot resume the channel on a connection with a prefetch-size", "resume it before basic.qos"
            )
        interruption = self.kept[id]
        interruption.vhost.transfer_exclusive(interruption, connection)
        self._forget(channel, interruption)
        self.open[id] = channel
        connection.channels[number] = channel
        channel.move(connection, number)

    def _find(self, connection: BaseConnection, id: str) -> Channel:
        found = self.open.get(id)
        if found is not None and found.opened_on.user == connection.user and found.vhost is connection.vhost:
            other = found.opened_on
            if other is connection:
                raise ResourceLocked("the channel is open on this connection")
            # The client has noticed the loss of the connection before the broker.
            other.peer.abort()
            other.connection_lost()
        interruption = self.kept.get(id)
        if interruption is None or interruption.user != connection.user or interruption.vhost is not connection.vhost:
            raise NotFound("no interrupted channel has this channel-id")
        return interruption.channels[id]

    def closed(self, channel: Channel) -> None:
        """Forget a closed channel. After the last one of a lost connection, delete its exclusive queues."""
        self.open.pop(channel.id, None)
        interruption = self.kept.get(channel.id)
        if interruption is not None:
            self._forget(channel, interruption)
            if not interruption.channels:
                interruption.vhost.remove_exclusive(interruption)

    def _forget(self, channel: Channel, interruption: Interruption) -> None:
        del self.kept[channel.id]
        del interruption.channels[channel.id]
        of_user = self.of_user[interruption.user]
        del of_user[channel.id]
        if not of_user:
            del self.of_user[interruption.user]
        if not interruption.channels:
            channel.broker.timers.cancel(interruption)

    def release_exclusive(self, user: str, queue: Queue | None) -> None:
        """Close interrupted channels of the user that use the queue exclusively, because the client did not resume them."""
        if queue is None or not self.kept:
            return
        owner = queue.lifetime.exclusive_owner
        if isinstance(owner, Interruption):
            if owner.user == user:
                owner.end()
        elif queue.consumers.exclusive_consumer is not None:
            holder = queue.consumers.exclusive_consumer.channel
            for id, interruption in self.of_user.get(user, {}).items():
                if interruption.channels[id] is holder:
                    interruption.channels[id].close()
                    return

    def vhost_removed(self, vhost: Vhost) -> None:
        for interruption in set(self.kept.values()):
            if interruption.vhost is vhost:
                interruption.end()

    def users_changed(self, users: UserStore) -> None:
        """Drop the channels of a deleted user."""
        for interruption in set(self.kept.values()):
            if users.was_removed(interruption.user):
                interruption.end()
