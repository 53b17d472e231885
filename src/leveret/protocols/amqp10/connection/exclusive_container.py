"""Exclusive containers: the capability `sole-connection-for-container` of OASIS's Enforcing Connection Uniqueness 1.0.

If either of two connections with the same container-id desires it, the newer one is refused. Container-ids are scoped to a
user in a vhost, so one user cannot lock out another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.protocols.amqp10.errors import ConnectionRefused
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.values import Symbol

if TYPE_CHECKING:
    from leveret.protocols.amqp10.connection.connection import Connection

CAPABILITY: Final = "sole-connection-for-container"


def enter(connection: Connection, wanted: bool) -> None:
    """Add the connection to its container.

    Raises:
        ConnectionRefused: another connection has the container-id, and one of the two is exclusive.
    """
    key = (connection.vhost_name, connection.user, connection.container_id)
    containers = connection.shared.containers
    others = containers.get(key)
    if others is None:
        containers[key] = {connection: None}
    # An exclusive connection is always the only one of its container.
    elif wanted or (len(others) == 1 and next(iter(others)).exclusive):
        raise ConnectionRefused(
            constants.INVALID_FIELD,
            f"another connection has the container-id '{connection.container_id}', and one of the two desires {CAPABILITY}",
            {"invalid-field": Symbol("container-id")},
        )
    else:
        others[connection] = None
    connection.container = key
    connection.exclusive = wanted


def leave(connection: Connection) -> None:
    """Remove a closed connection from its container."""
    key = connection.container
    if key is None:
        return
    connection.container = None
    containers = connection.shared.containers
    others = containers[key]
    del others[connection]
    if not others:
        del containers[key]
