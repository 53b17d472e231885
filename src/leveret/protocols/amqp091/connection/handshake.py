"""Methods of channel 0: negotiation, open and close (0-9-1 class connection). Authentication is in `login`."""

from __future__ import annotations

import logging
import platform
import socket
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import InvalidPath, NotAllowed
from leveret.broker.values import FieldTable
from leveret.protocols.amqp091.connection.heartbeat import Heartbeat
from leveret.protocols.amqp091.connection.login import Login
from leveret.wire.amqp0.values import Arguments, ContentProperties

if TYPE_CHECKING:
    from leveret.protocols.amqp091.connection.base import BaseConnection
    from leveret.wire.amqp0.commands import Method

logger = logging.getLogger("leveret.connection")

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


def start(connection: BaseConnection) -> None:
    """Send connection.start with server properties and mechanisms."""
    start_with(
        connection,
        {**server_properties(connection), "cluster_name": connection.services.node_name, "capabilities": CAPABILITIES},
    )


def server_properties(connection: BaseConnection) -> FieldTable:
    """Return the server properties without tables: all are strings."""
    return {
        "product": "Leveret",
        "platform": f"Python {platform.python_version()}",
        "host": socket.gethostname(),
        "copyright": "The Leveret authors",
        "information": "Licensed under the Apache License 2.0",
        **connection.services.server_properties,
    }


def start_with(connection: BaseConnection, properties: ContentProperties) -> None:
    login = Login(connection)
    connection.login = login
    connection.engine.send(
        0,
        "connection.start",
        {
            "version_major": 0,
            "version_minor": 9,
            "server_properties": properties,
            "mechanisms": " ".join(login.offered),
            "locales": "en_US",
        },
    )


def perform(connection: BaseConnection, command: Method) -> None:
    """Perform a method of class connection. The engine has checked that it is allowed in this state."""
    arguments = command.arguments
    name = command.name
    if name == "connection.start-ok":
        _start_ok(connection, **arguments)
    elif name == "connection.secure-ok":
        if connection.login is not None:
            connection.login.secure_ok(_encoded(arguments["response"]))
    elif name == "connection.tune-ok":
        pass  # the engine has applied the values
    elif name == "connection.open":
        open_vhost(connection, arguments["virtual_host"])
        opened(connection, {})
    elif name == "connection.close":
        connection.close_received()
    elif name == "connection.close-ok":
        connection.awaits_close_ok = False
        connection.peer.close()
    elif name == "connection.update-secret":
        # Credentials are checked at login only.
        connection.engine.send(0, "connection.update-secret-ok", {})


def _start_ok(
    connection: BaseConnection, client_properties: FieldTable, mechanism: str, response: bytes | str, locale: str
) -> None:
    connection.client_properties = client_properties
    capabilities = client_properties.get("capabilities")
    if isinstance(capabilities, dict):
        connection.notify_cancel = bool(capabilities.get("consumer_cancel_notify"))
        connection.notify_blocked = bool(capabilities.get("connection.blocked"))
        connection.close_on_auth_failure = bool(capabilities.get("authentication_failure_close"))
    if connection.login is not None:
        connection.login.start_ok(mechanism, _encoded(response))


def _encoded(response: bytes | str) -> bytes:
    return response.encode("utf-8", "surrogateescape") if isinstance(response, str) else response


def open_vhost(connection: BaseConnection, virtual_host: str) -> None:
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
    if not services.users.may_open(connection.user, virtual_host):
        raise NotAllowed(f"access to vhost '{virtual_host}' refused for user '{connection.user}'")
    connection.services.check_limits(connection.user, vhost, NotAllowed)
    settings = services.vhost_settings.get(virtual_host)
    if settings is not None:
        if settings.qos_spec is not None:
            connection.qos_spec = settings.qos_spec
        connection.consumer_timeout = settings.consumer_timeout
    connection.enter_vhost(vhost)


def opened(connection: BaseConnection, arguments: Arguments) -> None:
    """Send connection.open-ok and start heartbeats."""
    services = connection.services
    connection.engine.send(0, "connection.open-ok", arguments)
    interval = connection.engine.heartbeat
    if interval:
        connection.heartbeat = Heartbeat(connection, interval)
        timers = connection.broker.timers
        timers.at(timers.now() + connection.heartbeat.quarter, connection.heartbeat)
    if services.alarm:
        connection.alarm(services.alarm)
