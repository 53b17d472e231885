"""What links of both directions have in common (transport section 2.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leveret.protocols.v1_0.endpoint import SessionEndpoint
    from leveret.protocols.v1_0.nodes import DynamicNode
    from leveret.wire.amqp1.transport import Flow


class Link:
    """One link endpoint of ours.

    receives        whether we are its receiver
    handle_in, handle  the client's and ours
    delivery_count, credit  the state of flow control, as seen from here
    node            a node that was created for this link, None where there is none
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
        self.node: DynamicNode | None = None
        self.closed = False
        self.key: Any = None

    def flow(self, frame: Flow) -> None:
        """The client's state of the link."""
        raise NotImplementedError

    def wake(self) -> None:
        """The session's window or the socket has room again."""

    def leave(self) -> None:
        """Take nothing more: the link is about to be closed."""

    def close(self) -> None:
        """The link is gone."""
        raise NotImplementedError

    def forget(self) -> None:
        """What every link does at its end: leave the registry, and the node that it may have created."""
        self.closed = True
        connection = self.session.connection
        registry = connection.services.links
        if registry.get(self.key) is self:
            del registry[self.key]
        node = self.node
        if node is not None:
            self.node = None
            node.leave()
