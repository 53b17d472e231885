"""The sessions of a connection by channel (transport section 2.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.protocols.amqp10.errors import ConnectionRefused
from leveret.protocols.amqp10.session.endpoint import SessionEndpoint
from leveret.protocols.amqp10.session.serial_numbers import Numbers
from leveret.wire.amqp10 import constants

if TYPE_CHECKING:
    from leveret.protocols.amqp10.connection.connection import Connection
    from leveret.protocols.amqp10.transaction.transaction import LocalTransaction
    from leveret.wire.amqp10.transport import Begin


class Sessions:
    """The sessions of one connection.

    Attributes:
        by_channel: sessions by the client's channel. A session that the broker has ended stays until the client's end
            arrives.
        by_number: sessions by the broker's channel.
        channel_max: highest channel of the broker that the client allows.
        window_full: whether a session was refused a delivery because the connection has too many unsettled ones.
    """

    def __init__(self) -> None:
        self.by_channel: dict[int, SessionEndpoint] = {}
        self.by_number: dict[int, SessionEndpoint] = {}
        self.channel_max = 65535
        self.window_full = False
        self._numbers = Numbers()

    def all(self) -> list[SessionEndpoint]:
        """Return the sessions that the client has not ended."""
        return list(self.by_channel.values())

    def limit(self, channel_max: int) -> None:
        """Set the channel-max of the client."""
        self.channel_max = channel_max

    def begin(self, connection: Connection, frame: Begin) -> None:
        """Begin a session and reply to the client's begin.

        Raises:
            ConnectionRefused: the channel is not allowed, or there are too many sessions.
        """
        channel = frame.channel
        if frame.remote_channel is not None:
            raise ConnectionRefused(
                constants.NOT_ALLOWED, "begin has a remote-channel, but the broker has not begun a session"
            )
        if channel in self.by_channel:
            raise ConnectionRefused(constants.NOT_ALLOWED, f"channel {channel} already has a session")
        if channel >= connection.own.sessions:
            raise ConnectionRefused(
                constants.CONNECTION_FRAMING_ERROR,
                f"channel {channel} is above channel-max, {connection.own.sessions - 1}; the setting is amqp10.sessions",
            )
        limit = connection.account.limits.max_channels
        if limit:
            connection.services.check_channel_limit(connection.user, limit)
        number = self._numbers.lowest(self.by_number)
        if number > self.channel_max:
            raise ConnectionRefused(
                constants.RESOURCE_LIMIT_EXCEEDED, "the client's channel-max does not allow another session"
            )
        session = SessionEndpoint(connection, frame, number)
        self.by_channel[channel] = session
        self.by_number[number] = session
        session.start()

    def forget(self, session: SessionEndpoint) -> None:
        """Remove a session that both sides have ended."""
        if self.by_channel.get(session.channel_in) is session:
            del self.by_channel[session.channel_in]
        if self.by_number.get(session.channel) is session:
            del self.by_number[session.channel]
            self._numbers.release(session.channel)
        self.window_freed_in(session)

    def release(self) -> None:
        """Release and remove all sessions."""
        for session in self.all():
            session.release()
        self.by_channel.clear()
        self.by_number.clear()

    def link_count(self) -> int:
        """Return the number of attached links."""
        return sum(len(session.handles) for session in self.by_channel.values())

    def has_window(self, limit: int) -> bool:
        """Return whether the connection has fewer unsettled deliveries than the limit.

        If not, the sessions that were refused one are woken when others are settled. The count takes longer than one
        delivery.
        """
        count = 0
        for session in self.by_channel.values():
            count += len(session.unacked) + len(session.retiring) + len(session.copies)
        if count < limit:
            return True
        self.window_full = True
        return False

    def window_freed_in(self, session: SessionEndpoint) -> None:
        """Wake links that were refused a delivery because too many deliveries were unsettled."""
        if self.window_full:
            self.window_full = False
            for other in self.all():
                other.wake_refused()
        else:
            session.wake_refused()

    def has_partial(self, transaction: LocalTransaction) -> bool:
        """Return whether a delivery of the transaction is incomplete."""
        return any(
            link.is_receiving_in(transaction) for session in self.by_channel.values() for link in session.handles.values()
        )
