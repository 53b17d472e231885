"""Session factory, with the shared state of each protocol."""

from __future__ import annotations

from leveret.protocols.adoption import Adoption
from leveret.protocols.amqp09.connection.connection import Connection as Connection09
from leveret.protocols.amqp09.settings import Amqp09Settings
from leveret.protocols.amqp09.shared_state import Amqp09State
from leveret.protocols.amqp091.connection.connection import Connection as Connection091
from leveret.protocols.amqp10.connection.connection import Connection as Connection10
from leveret.protocols.amqp10.settings import Amqp10Settings
from leveret.protocols.amqp10.shared_state import Amqp10State
from leveret.protocols.detect import V0_9, V0_9_1, V1_0_SASL
from leveret.protocols.peer import Peer, Receiver
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

    def make_session(self, protocol: int, peer: Peer) -> Receiver:
        """Return a new session that speaks `protocol`, a result of `detect`."""
        if protocol == V0_9_1:
            return Connection091(peer, self.services)
        if protocol == V0_9:
            return Connection09(peer, self.amqp09)
        return Connection10(peer, self.amqp10, protocol == V1_0_SASL)

    def adopt_session(self, adoption: Adoption, peer: Peer) -> Session:
        """Return the session of a client whose handshake another process has run up to the client's open.

        Its first input is that of the adoption, by `open_adopted`.
        """
        if adoption.protocol == V0_9_1:
            return Connection091(peer, self.services, adoption)
        if adoption.protocol == V0_9:
            return Connection09(peer, self.amqp09, adoption)
        return Connection10(peer, self.amqp10, False, adoption)

    def open_adopted(self, session: Session, adoption: Adoption) -> None:
        """Pass the input of an adoption to its session, which performs the client's open at once."""
        services = self.services
        services.elsewhere = adoption.elsewhere
        services.elsewhere_of_user = adoption.elsewhere_of_user
        try:
            session.data_received(adoption.input)
        finally:
            services.elsewhere = services.elsewhere_of_user = 0
