"""The broker's side of one connection. Each protocol subclasses `Session`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from leveret.broker.consumer import Output

if TYPE_CHECKING:
    from leveret.broker.vhost import Vhost
    from leveret.management.descriptions import (
        ChannelInfo,
        ConnectionInfo,
        SessionInfo,
        SessionLinkInfo,
        TransactionInfo,
    )
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

    @abstractmethod
    def data_received(self, data: bytes | memoryview) -> None:
        """Handle data from the client. A memoryview is not used after the call."""

    @abstractmethod
    def perform_pending(self) -> None:
        """Perform the input left over from the previous turn."""

    @abstractmethod
    def connection_lost(self) -> None:
        """Handle the end of the connection, once."""

    @abstractmethod
    def pause_writing(self) -> None:
        """Pause output: the socket's buffer is full."""

    @abstractmethod
    def resume_writing(self) -> None:
        """Handle that the buffer of the transport has room again."""

    @abstractmethod
    def wake(self) -> None:
        """Wake consumers that had no credit."""

    @abstractmethod
    def check_peer(self) -> None:
        """Check whether a socket that is not being read has closed. Called periodically."""

    @abstractmethod
    def shut_down(self, reason: str) -> None:
        """Close the connection at an operator's request (0-9-1: 320 connection-forced)."""

    @abstractmethod
    def vhost_removed(self, vhost: Vhost) -> None:
        """Close the connection if its vhost is being deleted."""

    @abstractmethod
    def users_changed(self) -> None:
        """Close the connection if its user was deleted. Called after changes of users or permissions."""

    @abstractmethod
    def alarm(self, reason: str) -> None:
        """Block publishers for this reason, or resume them if it is empty."""

    @abstractmethod
    def peer_name(self) -> str:
        """Return the addresses of both ends of the socket."""

    @abstractmethod
    def channel_count(self) -> int:
        """Return the number of open channels or 1.0 sessions."""

    @abstractmethod
    def describe(self) -> ConnectionInfo:
        """Describe the connection, for `leveret connections`."""

    @abstractmethod
    def describe_channels(self) -> Iterable[ChannelInfo]:
        """Describe the channels, for `leveret channels`."""

    @abstractmethod
    def describe_transactions(self) -> Iterable[TransactionInfo]:
        """Describe the open transactions, for `leveret transactions`."""

    def describe_sessions(self) -> Iterable[SessionInfo]:
        """Describe the sessions, which only AMQP 1.0 has."""
        return ()

    def describe_links(self) -> Iterable[SessionLinkInfo]:
        """Describe the links of the sessions."""
        return ()
