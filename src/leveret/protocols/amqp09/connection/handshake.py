"""Class connection of 0-9: negotiation, known hosts, redirection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.errors import InvalidPath
from leveret.protocols.amqp091.connection import handshake as handshake091
from leveret.wire.amqp0.commands import Method

if TYPE_CHECKING:
    from leveret.protocols.amqp09.connection.base import BaseConnection

# Part of the product name of Qpid clients: "qpid", "Qpid Java Client", "Apache Qpid JMS".
QPID: Final = "qpid"
PRODUCT: Final = "Leveret (compatible with Apache Qpid)"


def start(connection: BaseConnection) -> None:
    """Send connection.start.

    Its properties are strings, because decoders of 2007 fail on field types other than strings and integers. The product
    name contains "qpid", because only then does Qpid's JMS client query bindings, which its addresses need.
    """
    handshake091.start_with(connection, {**handshake091.server_properties(connection), "product": PRODUCT})


def perform(connection: BaseConnection, command: Method) -> None:
    """Perform a method of class connection."""
    if command.name == "connection.open":
        _open(connection, command.arguments["virtual_host"], command.arguments["insist"])
    else:
        if command.name == "connection.start-ok":
            product = command.arguments["client_properties"].get("product")
            connection.is_qpid_client = isinstance(product, str) and QPID in product.lower()
        handshake091.perform(connection, command)
        # 0-9 has no method for cancel notifications, whatever capabilities the client declares.
        connection.notify_cancel = False


def _open(connection: BaseConnection, virtual_host: str, insist: bool) -> None:
    settings = connection.shared.settings
    if settings.redirect and not insist:
        connection.engine.send(0, "connection.redirect", {"host": settings.redirect, "known_hosts": settings.known_hosts})
        return  # the client closes the socket, or insists
    vhosts = connection.services.broker.vhosts
    if virtual_host not in vhosts:
        # Paths begin with a slash. Vhost names do not, except '/'.
        virtual_host = virtual_host.removeprefix("/") or "/"
        if virtual_host not in vhosts:
            raise InvalidPath(f"vhost '{virtual_host}' not found")
    handshake091.open_vhost(connection, virtual_host)
    connection.qos_spec = True
    realms = connection.shared.realms.get(virtual_host)
    if realms is not None:
        connection.realms = realms
    handshake091.opened(connection, {"known_hosts": settings.known_hosts})
