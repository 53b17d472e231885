"""From the protocol that was detected to the session that speaks it."""

from __future__ import annotations

from leveret.protocols.amqp09.connection import Connection as Connection09
from leveret.protocols.amqp091.connection import Connection as Connection091
from leveret.protocols.amqp10.connection.connection import Connection as Connection10
from leveret.protocols.detect import V0_9, V0_9_1, V1_0_SASL
from leveret.protocols.peer import Peer
from leveret.protocols.services import Services
from leveret.protocols.session import Session


def make_session(found: int, peer: Peer, services: Services) -> Session:
    """The session of a connection whose header was `found` (see `detect`)."""
    if found == V0_9_1:
        return Connection091(peer, services)
    if found == V0_9:
        return Connection09(peer, services)
    return Connection10(peer, services, found == V1_0_SASL)
