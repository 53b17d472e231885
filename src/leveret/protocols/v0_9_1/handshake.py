"""Methods of channel 0: negotiation, authentication, open and close (0-9-1 class connection)."""

from __future__ import annotations

import logging
import platform
import socket
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.errors import NotAllowed
from leveret.protocols.v0_9_1.heartbeat import Heartbeat
from leveret.security.mechanisms.base import Challenge, Context, NeedsPassword, Success
from leveret.security.mechanisms.registry import create, offered
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.errors import WireError
from leveret.wire.amqp0.fieldtable import decode_table

if TYPE_CHECKING:
    from leveret.protocols.v0_9_1.connection import Connection
    from leveret.wire.amqp0.commands import Method

log = logging.getLogger("leveret.connection")

CAPABILITIES: Final = {
    "publisher_confirms": True, "exchange_exchange_bindings": True, "basic.nack": True, "consumer_cancel_notify": True,
    "connection.blocked": True, "consumer_priorities": True, "authentication_failure_close": True,
    "per_consumer_qos": True, "direct_reply_to": True,
}
# A refused login waits this long before the socket is closed, so that guessing is slow.
REFUSAL_DELAY: Final = 1.0


def _context(connection: Connection) -> Context:
    services = connection.services
    return Context(certificate=connection.peer.certificate, external_name=services.external_name,
                   anonymous_user=services.anonymous_user, decode_table=_read_pairs)


def _read_pairs(data: bytes) -> dict[str, Any]:
    try:
        return decode_table(data, 0, len(data), RABBITMQ)
    except WireError as error:
        raise ValueError(str(error)) from None


def start(connection: Connection) -> None:
    """Send connection.start: who we are and how to log in."""
    properties: dict[str, Any] = {
        "product": "Leveret", "platform": f"Python {platform.python_version()}", "host": socket.gethostname(),
        "copyright": "The Leveret authors", "information": "Licensed under the Apache License 2.0",
        "cluster_name": f"leveret@{socket.gethostname()}", "capabilities": CAPABILITIES,
    }
    properties.update(connection.services.server_properties)
    mechanisms = offered(connection.services.mechanisms, _context(connection))
    connection.engine.send(0, "connection.start", {
        "version_major": 0, "version_minor": 9, "server_properties": properties, "mechanisms": " ".join(mechanisms),
        "locales": "en_US"})


def perform(connection: Connection, command: Method) -> None:
    """A method of class connection from the client; the engine has checked that its time is now."""
    arguments = command.arguments
    name = command.name
    if name == "connection.start-ok":
        _start_ok(connection, **arguments)
    elif name == "connection.secure-ok":
        _step(connection, arguments["response"])
    elif name == "connection.tune-ok":
        pass  # the engine has taken the values
    elif name == "connection.open":
        _open(connection, arguments["virtual_host"])
    elif name == "connection.close":
        connection.closing = True
        connection._release()
        connection.drop_output()
        connection.engine.send(0, "connection.close-ok", {})
        connection.flush()
        connection.peer.close()
    elif name == "connection.close-ok":
        connection.awaits_close_ok = False
        connection.peer.close()
    elif name == "connection.update-secret":
        # Passwords do not expire here; tokens that do are replaced without more ado.
        connection.engine.send(0, "connection.update-secret-ok", {})


def _start_ok(connection: Connection, client_properties: dict[str, Any], mechanism: str, response: bytes | str,
              locale: str) -> None:
    connection.client_properties = client_properties
    capabilities = client_properties.get("capabilities")
    if isinstance(capabilities, dict):
        connection.notify_cancel = bool(capabilities.get("consumer_cancel_notify"))
        connection.notify_blocked = bool(capabilities.get("connection.blocked"))
        connection.close_on_auth_failure = bool(capabilities.get("authentication_failure_close"))
    chosen = create(mechanism, connection.services.mechanisms, _context(connection))
    if chosen is None:
        # start-ok.mechanism.validity: closed without sending anything
        log.warning("%s: mechanism '%s' was not offered", connection.peer.name, mechanism)
        connection.peer.close()
        return
    connection.mechanism = chosen
    _step(connection, response)


def _step(connection: Connection, response: bytes | str) -> None:
    octets = response.encode("utf-8", "surrogateescape") if isinstance(response, str) else response
    outcome = connection.mechanism.step(octets)
    if isinstance(outcome, Challenge):
        connection.engine.send(0, "connection.secure", {"challenge": outcome.data})
    elif isinstance(outcome, NeedsPassword):
        users = connection.services.users
        name = outcome.username
        password = outcome.password
        verdict = users.cached_verdict(name, password)
        if verdict is not None:
            _verified(connection, name, verdict)
            return
        # For a client that has gone in the meantime nothing is computed.
        connection.peer.run_blocking(lambda: not connection.lost and users.verify(name, password),
                                     lambda result: _verified_later(connection, name, result))
    elif isinstance(outcome, Success):
        _verified(connection, outcome.username, True)
    else:
        log.warning("%s: login refused: %s", connection.peer.name, outcome.reason)
        _refuse_login(connection, "")


def _verified_later(connection: Connection, name: str, verdict: Any) -> None:
    if connection.lost:
        return
    if isinstance(verdict, BaseException):
        log.error("%s: the password of '%s' could not be checked: %s", connection.peer.name, name, verdict)
        verdict = False
    _verified(connection, name, bool(verdict))
    connection.mark()
    connection.broker.end_turn()


def _verified(connection: Connection, name: str, verdict: bool) -> None:
    users = connection.services.users
    host = "127.0.0.1" if connection.peer.local else connection.peer.host
    if verdict and not users.may_connect_from(name, host):
        log.warning("%s: user '%s' may log in from this machine only (auth.loopback_users)", connection.peer.name, name)
        verdict = False
    if not verdict or users.get(name) is None:
        log.warning("%s: login of '%s' by %s refused", connection.peer.name, name, connection.mechanism.name)
        _refuse_login(connection, name)
        return
    connection.user = name
    connection.user_octets = name.encode("utf-8", "surrogateescape")
    user = users.get(name)
    connection.may_impersonate = user is not None and "impersonator" in user.tags
    engine = connection.engine
    engine.send(0, "connection.tune", {
        "channel_max": engine.channel_max, "frame_max": engine.frame_max, "heartbeat": engine.heartbeat})


def _refuse_login(connection: Connection, name: str) -> None:
    if connection.close_on_auth_failure:
        connection.close(403, f"Login was refused using authentication mechanism {connection.mechanism.name}. For"
                              " details see the broker's log.")
    else:
        connection.peer.call_later(REFUSAL_DELAY, connection.peer.close)


def _open(connection: Connection, virtual_host: str) -> None:
    services = connection.services
    vhost = services.broker.vhosts.get(virtual_host)
    if vhost is None:
        raise NotAllowed(f"vhost {virtual_host} not found")
    if not services.users.may_open(connection.user, virtual_host):
        raise NotAllowed(f"access to vhost '{virtual_host}' refused for user '{connection.user}'")
    connection.services.check_limits(connection.user, vhost, NotAllowed)
    connection.vhost = vhost
    connection.vhost_name = virtual_host
    settings = services.vhost_settings.get(virtual_host)
    if settings is not None:
        if settings.qos_spec is not None:
            connection.qos_spec = settings.qos_spec
        connection.consumer_timeout = settings.consumer_timeout
    vhost.connections += 1
    services.by_user[connection.user] = services.by_user.get(connection.user, 0) + 1
    connection.opened = True
    connection.engine.send(0, "connection.open-ok", {})
    interval = connection.engine.heartbeat
    if interval:
        connection.heartbeat = Heartbeat(connection, interval)
        timers = connection.broker.timers
        timers.at(timers.now() + interval * 500, connection.heartbeat)
    if services.alarm:
        connection.alarm(services.alarm)


def release(connection: Connection) -> None:
    """The connection leaves its vhost, and its exclusive queues go."""
    vhost = connection.vhost
    connection.vhost = None
    vhost.connections -= 1
    by_user = connection.services.by_user
    count = by_user.get(connection.user, 0) - 1
    if count > 0:
        by_user[connection.user] = count
    else:
        by_user.pop(connection.user, None)
    vhost.remove_exclusive(connection)


