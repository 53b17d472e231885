"""The broker's side of one connection. Each protocol subclasses `Session`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from leveret.broker.consumer import Output

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost
    from leveret.management.descriptions import ChannelInfo, ConnectionInfo
    from leveret.protocols.peer import Peer


class Session(Output):
    """One connection of one protocol.

    Attributes:
        number: identifies the connection within the process.
        user: the authenticated user; "" before the login.
        account: the account of the user (`Account`); None before the login.
        opened: whether the client has opened a vhost.
        operation: the last operation received, other than on single messages; "" for none.
        peer: the socket.
        closing: whether the connection is lost or being closed by either side.
    """

    number: int
    user: str
    account: Any
    opened: bool
    operation: str
    peer: Peer
    closing: bool

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError

    def perform_pending(self) -> None:
        """Perform the input left over from the previous turn."""
        raise NotImplementedError

    def connection_lost(self) -> None:
        raise NotImplementedError

    def pause_writing(self) -> None:
        """Pause output: the socket's buffer is full."""
        raise NotImplementedError

    def resume_writing(self) -> None:
        raise NotImplementedError

    def wake(self) -> None:
        """Wake consumers that had no credit."""
        raise NotImplementedError

    def check_peer(self) -> None:
        """Check whether a socket that is not being read has closed. Called periodically."""
        raise NotImplementedError

    def shut_down(self, reason: str) -> None:
        """Close the connection at an operator's request (0-9-1: 320 connection-forced)."""
        raise NotImplementedError

    def vhost_removed(self, vhost: Vhost) -> None:
        """Close the connection if its vhost is being deleted."""
        raise NotImplementedError

    def users_changed(self) -> None:
        """Close the connection if its user was deleted. Called after changes of users or permissions."""
        raise NotImplementedError

    def alarm(self, reason: str) -> None:
        """Block publishers for this reason, or resume them if it is empty."""
        raise NotImplementedError

    def peer_name(self) -> str:
        """Return the addresses of both ends of the socket."""
        raise NotImplementedError

    def channel_count(self) -> int:
        """Return the number of open channels or 1.0 sessions."""
        raise NotImplementedError

    def describe(self) -> ConnectionInfo:
        """Describe the connection, for `leveret connections`."""
        raise NotImplementedError

    def describe_channels(self) -> Iterable[ChannelInfo]:
        """Describe the channels, for `leveret channels`."""
        raise NotImplementedError
