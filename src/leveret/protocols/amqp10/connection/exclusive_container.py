"""Exclusive containers: the capability `sole-connection-for-container` of OASIS's Enforcing Connection Uniqueness 1.0.

If either of two connections with the same container-id desires it, the newer one is refused. Container-ids are scoped to a
user in a vhost, so one user cannot lock out another.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from leveret.protocols.amqp10.errors import ConnectionRefused
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.values import Symbol

CAPABILITY: Final = "sole-connection-for-container"

# Vhost, user and container-id.
ContainerKey: TypeAlias = tuple[str, str, str]


class ContainerMembership:
    """The membership of one connection in its container.

    Attributes:
        exclusive: whether the connection must be the only one of its container.
    """

    def __init__(self, containers: dict[ContainerKey, dict[ContainerMembership, None]]) -> None:
        self.exclusive = False
        self._containers = containers
        self._key: ContainerKey | None = None

    def enter(self, key: ContainerKey, exclusive: bool) -> None:
        """Add the connection to its container.

        Raises:
            ConnectionRefused: another connection has the container-id, and one of the two is exclusive.
        """
        others = self._containers.get(key)
        if others is None:
            self._containers[key] = {self: None}
        # An exclusive connection is always the only one of its container.
        elif exclusive or (len(others) == 1 and next(iter(others)).exclusive):
            raise ConnectionRefused(
                constants.INVALID_FIELD,
                f"another connection has the container-id '{key[2]}', and one of the two desires {CAPABILITY}",
                {"invalid-field": Symbol("container-id")},
            )
        else:
            others[self] = None
        self._key = key
        self.exclusive = exclusive

    def leave(self) -> None:
        """Remove the closed connection from its container, if it has entered one."""
        key = self._key
        if key is None:
            return
        self._key = None
        others = self._containers[key]
        del others[self]
        if not others:
            del self._containers[key]
