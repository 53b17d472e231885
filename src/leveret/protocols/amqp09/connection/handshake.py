"""Class connection of 0-9: negotiation, known hosts, redirection."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import InvalidPath
from leveret.broker.values import FieldTable
from leveret.protocols.amqp091.connection.handshake import ClientDescription, string_properties
from leveret.protocols.amqp091.connection.handshake import Handshake as Handshake091
from leveret.wire.amqp0.values import Arguments, ContentProperties

if TYPE_CHECKING:
    from leveret.protocols.amqp09.shared_state import Amqp09State
    from leveret.protocols.amqp091.connection.base import BaseConnection

PRODUCT: Final = "Leveret (compatible with Apache Qpid)"


class Handshake(Handshake091):
    """Negotiation of one connection."""

    def __init__(self, shared: Amqp09State) -> None:
        super().__init__()
        self.shared = shared
        # The target of a redirect of the client's open; "" for the host of the settings, if they have one.
        self._host = ""

    def server_properties(self, connection: BaseConnection) -> ContentProperties:
        """Return the server properties.

        They are strings, because decoders of 2007 fail on field types other than strings and integers. The product name
        contains "qpid", because only then does Qpid's JMS client query bindings, which its addresses need.
        """
        return {**string_properties(connection), "product": PRODUCT}

    def describe_client(self, properties: FieldTable) -> ClientDescription:
        # 0-9 has no method for cancel notifications, whatever capabilities the client declares.
        return ClientDescription(properties, cancel_method=False)

    def vhost_of(self, arguments: Arguments, vhosts: Container[str]) -> str:
        """Return the vhost that connection.open names; "" for a client that must be redirected."""
        if (self._host or self.shared.settings.redirect) and not arguments["insist"]:
            return ""
        name: str = arguments["virtual_host"]
        # Paths begin with a slash. Vhost names do not, except '/'.
        return name if name in vhosts else name.removeprefix("/") or "/"

    def redirect(self, arguments: Arguments, host: str) -> bool:
        """Answer the connection.open with these arguments by a redirect, unless the settings or the client want none."""
        if arguments["insist"] or not self.shared.settings.redirect_to_owner:
            return False
        self._host = host
        return True

    def open(self, connection: BaseConnection, arguments: Arguments) -> None:
        settings = self.shared.settings
        vhosts = connection.services.broker.vhosts
        virtual_host = self.vhost_of(arguments, vhosts)
        if not virtual_host:
            connection.engine.send(
                0, "connection.redirect", {"host": self._host or settings.redirect, "known_hosts": settings.known_hosts}
            )
            self._host = ""
            return  # the client closes the socket, or insists
        if virtual_host not in vhosts:
            raise InvalidPath(f"vhost '{virtual_host}' not found")
        self.open_vhost(connection, virtual_host)
        connection.engine.send(0, "connection.open-ok", {"known_hosts": settings.known_hosts})
        connection.vhost_opened()
