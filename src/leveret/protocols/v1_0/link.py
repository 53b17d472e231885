"""What links of both directions have in common (transport section 2.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.protocols.v1_0.errors import make_error
from leveret.wire.amqp1 import constants

if TYPE_CHECKING:
    from leveret.protocols.v1_0.endpoint import SessionEndpoint
    from leveret.protocols.v1_0.terminus import Terminus
    from leveret.wire.amqp1.transport import Flow


class Link:
    """One link endpoint of ours.

    receives        whether we are its receiver
    handle_in, handle  the client's and ours
    delivery_count, credit  the state of flow control, as seen from here
    terminus        what of it outlives it, None where nothing does
    gone            a detach has closed it: nothing more is said of its deliveries
    """

    receives = False

    def __init__(self, session: SessionEndpoint, name: str, handle_in: int, handle: int) -> None:
        self.session = session
        self.name = name
        self.handle_in = handle_in
        self.handle = handle
        self.snd_settle_mode = 2
        self.rcv_settle_mode = 0
        self.delivery_count = 0
        self.credit = 0
        self.terminus: Terminus | None = None
        self.closed = False
        self.removed = False
        self.key: Any = None

    def flow(self, frame: Flow) -> None:
        """The client's state of the link."""
        raise NotImplementedError

    def wake(self) -> None:
        """The session's window or the socket has room again."""

    def leave(self) -> None:
        """Take nothing more: the link is about to be closed."""

    def close(self) -> None:
        """The link is gone for good, and its terminus."""
        raise NotImplementedError

    def suspend(self) -> None:
        """The link is gone, its terminus stays; without one it is the same as `close`."""
        self.close()

    def deleted(self) -> None:
        """An operator deletes the link."""
        session = self.session
        session.refuse(self, make_error(constants.LINK_DETACH_FORCED, f"link '{self.name}' was deleted by an operator"))
        session.connection.broker.end_turn()

    def forget(self) -> None:
        """What every link does at its end: leave the registry."""
        self.closed = True
        connection = self.session.connection
        registry = connection.services.links
        if registry.get(self.key) is self:
            del registry[self.key]
