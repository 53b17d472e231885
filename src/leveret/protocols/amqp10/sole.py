"""At most one connection for a container, where one side of it wants that: the capability `sole-connection-for-container`
of OASIS's Enforcing Connection Uniqueness, with its policy to refuse the newer connection.

Containers are those of a user in a vhost, so that nobody keeps anybody else out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.protocols.amqp10.errors import ConnectionRefused
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.values import Symbol

if TYPE_CHECKING:
    from leveret.protocols.amqp10.connection import Connection

CAPABILITY: Final = "sole-connection-for-container"


def enter(connection: Connection, wanted: bool) -> None:
    """Count the connection among those of its container. Raises ConnectionRefused where it cannot be the only one though
    that is `wanted`, or where the one that is there wants to be alone."""
    key = (connection.vhost_name, connection.user, connection.container_id)
    containers = connection.services.containers
    others = containers.get(key)
    if others is None:
        containers[key] = {connection: None}
    # One that wants to be alone is alone.
    elif wanted or (len(others) == 1 and next(iter(others)).sole):
        raise ConnectionRefused(constants.INVALID_FIELD, f"another connection has the container-id"
                                f" '{connection.container_id}', and one of the two desires {CAPABILITY}",
                                {"invalid-field": Symbol("container-id")})
    else:
        others[connection] = None
    connection.container = key
    connection.sole = wanted


def leave(connection: Connection) -> None:
    """The connection is over."""
    key = connection.container
    if key is None:
        return
    connection.container = None
    containers = connection.services.containers
    others = containers[key]
    del others[connection]
    if not others:
        del containers[key]
