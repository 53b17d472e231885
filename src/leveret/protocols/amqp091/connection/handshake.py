"""Methods of channel 0: negotiation, open and close (0-9-1 class connection). Authentication is in `login`."""

from __future__ import annotations

import platform
import socket
from collections.abc import Container
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import InvalidPath, NotAllowed
from leveret.broker.values import FieldTable
from leveret.protocols.amqp091.connection.login import Login
from leveret.protocols.record_batches import announcement
from leveret.security.accounts import import_account
from leveret.wire.amqp0.constants import NOT_ALLOWED
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.fieldtable import decode_table, encode_table
from leveret.wire.amqp0.values import Arguments, ContentProperties
from leveret.wire.record_batches import EXCHANGE

if TYPE_CHECKING:
    from leveret.protocols.adoption import Adoption
    from leveret.protocols.amqp091.connection.base import BaseConnection
    from leveret.wire.amqp0.commands import Method

CAPABILITIES: Final = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}
# Part of the product name of Qpid clients: "qpid", "Qpid Java Client", "Apache Qpid JMS".
QPID: Final = "qpid"


class ClientDescription:
    """The properties of a client, and the capabilities among them.

    Attributes:
        properties: client properties as received.
        cancel_notifications: whether it accepts basic.cancel from the broker.
        blocked_notifications: whether it accepts connection.blocked.
        close_after_refusal: whether it accepts connection.close after a failed login.
        is_qpid_client: whether it is a Qpid client, whose behaviour differs over 0-9 (docs/amqp-0-9-dialects.md).

    Args:
        properties: client properties as received.
        cancel_method: whether the protocol has a method for cancel notifications.
    """

    def __init__(self, properties: FieldTable, cancel_method: bool = True) -> None:
        self.properties = properties
        capabilities = properties.get("capabilities")
        known = capabilities if isinstance(capabilities, dict) else {}
        self.cancel_notifications = cancel_method and bool(known.get("consumer_cancel_notify"))
        self.blocked_notifications = bool(known.get("connection.blocked"))
        self.close_after_refusal = bool(known.get("authentication_failure_close"))
        product = properties.get("product")
        self.is_qpid_client = isinstance(product, str) and QPID in product.lower()


class Handshake:
    """Negotiation of one connection. The engine checks that the client's methods arrive in order.

    Attributes:
        client: the client, as described in start-ok.
        login: the login; None when it has ended.
    """

    def __init__(self) -> None:
        self.client = ClientDescription({})
        self.login: Login | None = None

    def start(self, connection: BaseConnection) -> None:
        """Send connection.start with server properties and mechanisms."""
        login = Login(connection)
        self.login = login
        connection.engine.send(
            0,
            "connection.start",
            {
                "version_major": 0,
                "version_minor": 9,
                "server_properties": self.server_properties(connection),
                "mechanisms": " ".join(login.offered),
                "locales": "en_US",
            },
        )

    def resume(self, connection: BaseConnection, adoption: Adoption) -> None:
        """Continue after connection.tune-ok, up to which another process has run the handshake."""
        client = adoption.client
        assert client is not None
        self.client = self.describe_client(decode_table(client.properties, 0, len(client.properties), RABBITMQ))
        connection.set_account(import_account(adoption.account, connection.services.users))
        connection.engine.begin_tuned(client.frame_max, client.channel_max, client.heartbeat)

    def encoded_properties(self) -> bytes:
        """Return the client properties as `resume` in another process reads them."""
        return encode_table(self.client.properties, RABBITMQ)[4:]

    def server_properties(self, connection: BaseConnection) -> ContentProperties:
        return {
            **string_properties(connection),
            "cluster_name": connection.broker.cluster_name,
            "capabilities": CAPABILITIES,
        }

    def describe_client(self, properties: FieldTable) -> ClientDescription:
        return ClientDescription(properties)

    def end_login(self) -> None:
        """Drop the login: it has ended, or the connection is lost."""
        self.login = None

    def perform(self, connection: BaseConnection, command: Method) -> None:
        """Perform a method of class connection."""
        arguments = command.arguments
        name = command.name
        if name == "connection.start-ok":
            self.client = self.describe_client(arguments["client_properties"])
            if self.login is not None:
                self.login.start_ok(arguments["mechanism"], _encoded(arguments["response"]))
        elif name == "connection.secure-ok":
            if self.login is not None:
                self.login.secure_ok(_encoded(arguments["response"]))
        elif name == "connection.tune-ok":
            pass  # the engine has applied the values
        elif name == "connection.open":
            self.open(connection, arguments)
        elif name == "connection.close":
            connection.close_received()
        elif name == "connection.close-ok":
            connection.close_ok_received()
        elif name == "connection.update-secret":
            connection.renew(_encoded(arguments["new_secret"]), partial(self._renewed, connection))

    def _renewed(self, connection: BaseConnection, refusal: str) -> None:
        """Answer connection.update-secret. As in RabbitMQ, a token that is refused ends the connection."""
        if refusal:
            connection.close(NOT_ALLOWED, f"the new secret was refused: {refusal}")
        else:
            connection.engine.send(0, "connection.update-secret-ok", {})

    def open(self, connection: BaseConnection, arguments: Arguments) -> None:
        """Perform connection.open."""
        self.open_vhost(connection, arguments["virtual_host"])
        connection.engine.send(0, "connection.open-ok", {})
        connection.vhost_opened()

    def vhost_of(self, arguments: Arguments, vhosts: Container[str]) -> str:
        """Return the vhost that connection.open names, which need not be one of the `vhosts`."""
        name: str = arguments["virtual_host"]
        return name

    def redirect(self, arguments: Arguments, host: str) -> bool:
        """Answer the connection.open with these arguments by a redirect. Return False: the protocol has none."""
        return False

    def open_vhost(self, connection: BaseConnection, virtual_host: str) -> None:
        """Open a vhost for the connection.

        Raises:
            NotAllowed: the vhost does not exist, or the user may not open it.
            InvalidPath: the vhost does not exist, with `server.compat.strict`.
        """
        services = connection.services
        vhost = services.broker.vhosts.get(virtual_host)
        if vhost is None:
            unknown = InvalidPath if services.settings.strict else NotAllowed
            raise unknown(f"vhost {virtual_host} not found")
        if not connection.account.may_open(virtual_host):
            raise NotAllowed(f"access to vhost '{virtual_host}' refused for user '{connection.user}'")
        services.check_limits(connection.account, vhost, NotAllowed)
        connection.enter_vhost(vhost)


def string_properties(connection: BaseConnection) -> FieldTable:
    """Return the server properties that are strings."""
    return {
        "product": "Leveret",
        "platform": f"Python {platform.python_version()}",
        "host": socket.gethostname(),
        "copyright": "The Leveret authors",
        "information": "Licensed under the Apache License 2.0",
        **announcement(connection.settings.max_message_size, EXCHANGE),
        **connection.services.server_properties,
    }


def _encoded(response: bytes | str) -> bytes:
    return response.encode("utf-8", "surrogateescape") if isinstance(response, str) else response
