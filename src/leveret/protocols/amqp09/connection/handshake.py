"""Class connection of 0-9: start with plain texts only, known hosts, redirection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.errors import InvalidPath
from leveret.protocols.amqp091.connection import handshake as handshake091
from leveret.wire.amqp0.commands import Method

if TYPE_CHECKING:
    from leveret.protocols.amqp09.connection.base import BaseConnection

# In the name of the client's product: "qpid", "Qpid Java Client", "Apache Qpid JMS".
QPID: Final = "qpid"
PRODUCT: Final = "Leveret (compatible with Apache Qpid)"


def start(connection: BaseConnection) -> None:
    """connection.start. Decoders of 2007 know texts and integers in a table, and die of anything else. Qpid's JMS client
    asks for bindings, which its addresses need, where the product's name has qpid in it only."""
    handshake091.start_with(connection, {**handshake091.server_properties(connection), "product": PRODUCT})


def perform(connection: BaseConnection, command: Method) -> None:
    """A method of class connection from the client."""
    if command.name == "connection.open":
        _open(connection, command.arguments["virtual_host"], command.arguments["insist"])
    else:
        if command.name == "connection.start-ok":
            product = command.arguments["client_properties"].get("product")
            connection.of_qpid = isinstance(product, str) and QPID in product.lower()
        handshake091.perform(connection, command)
        # There is no method to tell a client that its consumer has gone, whatever it says that it can do.
        connection.notify_cancel = False


def _open(connection: BaseConnection, virtual_host: str, insist: bool) -> None:
    settings = connection.shared.settings
    if settings.redirect and not insist:
        connection.engine.send(0, "connection.redirect", {"host": settings.redirect, "known_hosts": settings.known_hosts})
        return  # the client closes the socket, or opens after all
    vhosts = connection.services.broker.vhosts
    if virtual_host not in vhosts:
        # A path begins with a slash, and vhosts have names without it, but for the one that is called so.
        virtual_host = virtual_host.removeprefix("/") or "/"
        if virtual_host not in vhosts:
            raise InvalidPath(f"vhost '{virtual_host}' not found")
    handshake091.open_vhost(connection, virtual_host)
    connection.qos_spec = True
    realms = connection.shared.realms.get(virtual_host)
    if realms is not None:
        connection.realms = realms
    handshake091.opened(connection, {"known_hosts": settings.known_hosts})
