"""The broker's side of one connection in one protocol: bytes in, bytes out. Each protocol subclasses it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from leveret.broker.consumer import Output

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost
    from leveret.management.descriptions import ChannelInfo, ConnectionInfo
    from leveret.protocols.peer import Peer


class Session(Output):
    """One connection of one protocol.

    number  identifies it within the process
    user    the authenticated user, "" before the login
    opened  the handshake is over: the client has a vhost
    operation  the last one of its input that is not about single messages, "" for none
    peer    the socket
    closing  the connection is being closed, by either side, or is lost
    """

    number: int
    user: str
    opened: bool
    operation: str
    peer: Peer
    closing: bool

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError

    def perform_rest(self) -> None:
        """Perform input that the previous turn had no time for."""
        raise NotImplementedError

    def connection_lost(self) -> None:
        raise NotImplementedError

    def pause_writing(self) -> None:
        """The socket's buffer is full."""
        raise NotImplementedError

    def resume_writing(self) -> None:
        raise NotImplementedError

    def wake(self) -> None:
        """Ask the consumers that have been refused for want of credit again."""
        raise NotImplementedError

    def check_peer(self) -> None:
        """Called now and then: notice the end of a socket that is not being read."""
        raise NotImplementedError

    def shut_down(self, reason: str) -> None:
        """The operator closes the connection (0-9-1: 320 connection-forced)."""
        raise NotImplementedError

    def vhost_removed(self, vhost: Vhost) -> None:
        """A vhost is being deleted: its connections are closed."""
        raise NotImplementedError

    def users_changed(self) -> None:
        """Users or permissions have changed: the connection of a user that is gone is closed."""
        raise NotImplementedError

    def alarm(self, reason: str) -> None:
        """Throttle publishers for this reason; resume them for ""."""
        raise NotImplementedError

    def peer_name(self) -> str:
        """The addresses of its socket."""
        raise NotImplementedError

    def channel_count(self) -> int:
        """How many channels (sessions) are open."""
        raise NotImplementedError

    def describe(self) -> ConnectionInfo:
        """For `leveret connections`."""
        raise NotImplementedError

    def describe_channels(self) -> Iterable[ChannelInfo]:
        """For `leveret channels`."""
        raise NotImplementedError
