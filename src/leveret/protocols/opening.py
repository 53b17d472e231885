"""Session factory, with the shared state of each protocol."""

from __future__ import annotations

from leveret.protocols.amqp09.connection.connection import Connection as Connection09
from leveret.protocols.amqp09.settings import Amqp09Settings
from leveret.protocols.amqp09.shared_state import Amqp09State
from leveret.protocols.amqp091.connection.connection import Connection as Connection091
from leveret.protocols.amqp10.connection.connection import Connection as Connection10
from leveret.protocols.amqp10.settings import Amqp10Settings
from leveret.protocols.amqp10.shared_state import Amqp10State
from leveret.protocols.detect import V0_9, V0_9_1, V1_0_SASL
from leveret.protocols.peer import Peer
from leveret.protocols.services import Services
from leveret.protocols.session import Session


class Protocols:
    """The protocols that a server speaks."""

    def __init__(
        self, services: Services, *, amqp10: Amqp10Settings | None = None, amqp09: Amqp09Settings | None = None
    ) -> None:
        self.services = services
        self.amqp10 = Amqp10State(services, amqp10)
        self.amqp09 = Amqp09State(services, amqp09)

    def make_session(self, protocol: int, peer: Peer) -> Session:
        """Return a new session that speaks `protocol`, a result of `detect`."""
        if protocol == V0_9_1:
            return Connection091(peer, self.services)
        if protocol == V0_9:
            return Connection09(peer, self.amqp09)
        return Connection10(peer, self.amqp10, protocol == V1_0_SASL)
