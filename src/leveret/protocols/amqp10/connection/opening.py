"""Open: user, vhost and limits of a connection (transport section 2.7.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from leveret.broker.errors import NotAllowed, ResourceError
from leveret.protocols.amqp10.connection import exclusive_container
from leveret.protocols.amqp10.connection.idle_timeout import MIN_IDLE_TIMEOUT, IdleTimeout, Keepalive
from leveret.protocols.amqp10.connection.state import OPENED
from leveret.protocols.amqp10.errors import ConnectionRefused
from leveret.protocols.convert.values import plain
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.values import Map

if TYPE_CHECKING:
    from leveret.protocols.amqp10.connection.connection import Connection
    from leveret.wire.amqp10.transport import Open

DEFAULT_VHOST: Final = "/"
VHOST_PREFIX: Final = "vhost:"


def open_connection(connection: Connection, frame: Open) -> None:
    """Process the client's open and reply with the broker's.

    If this raises ConnectionRefused, `Connection.close` sends an open with the property `ESTABLISHMENT_FAILED`, then the
    close.
    """
    if frame.channel:
        raise ConnectionRefused(constants.NOT_ALLOWED, f"open on channel {frame.channel}; expected channel 0")
    connection.container_id = frame.container_id
    if frame.max_frame_size < constants.MIN_MAX_FRAME_SIZE:
        raise ConnectionRefused(
            constants.INVALID_FIELD,
            f"max-frame-size is {frame.max_frame_size}, expected at least {constants.MIN_MAX_FRAME_SIZE}",
        )
    connection.output.max_frame_size = frame.max_frame_size
    connection.remote_channel_max = frame.channel_max
    if isinstance(frame.properties, (dict, Map)):
        client_properties = plain(frame.properties)
        connection.client_properties = client_properties if isinstance(client_properties, dict) else {}
    if not connection.user:
        name = connection.anonymous_user()
        if name is None:
            raise ConnectionRefused(
                constants.UNAUTHORIZED_ACCESS, "clients must log in with SASL; the setting is amqp10.anonymous_user"
            )
        connection.set_user(name)
    try:
        _enter(
            connection,
            _vhost_name(connection, frame.hostname),
            exclusive_container.CAPABILITY in frame.desired_capabilities,
        )
    except ResourceError as error:
        raise ConnectionRefused(constants.RESOURCE_LIMIT_EXCEEDED, str(error)) from None
    except NotAllowed as error:
        raise ConnectionRefused(constants.UNAUTHORIZED_ACCESS, str(error)) from None
    _watch(connection, frame.idle_time_out or 0)
    connection.send_open()


def _vhost_name(connection: Connection, hostname: str | None) -> str:
    """Return the vhost of `vhost:NAME`, literal or percent-decoded; the default vhost for any other host name."""
    if hostname is None or not hostname.startswith(VHOST_PREFIX):
        return DEFAULT_VHOST
    name = hostname[len(VHOST_PREFIX) :]
    vhosts = connection.broker.vhosts
    if name not in vhosts:
        decoded = unquote(name)
        if decoded in vhosts:
            name = decoded
    return name


def _enter(connection: Connection, name: str, alone: bool) -> None:
    services = connection.services
    vhost = services.broker.vhosts.get(name)
    if vhost is None or not services.users.may_open(connection.user, name):
        # The same error in both cases, so that a user without permissions does not learn whether the vhost exists.
        raise NotAllowed(f"vhost '{name}' does not exist, or user '{connection.user}' has no permissions in it")
    connection.services.check_limits(connection.user, vhost, ResourceError)
    connection.vhost_name = name
    exclusive_container.enter(connection, alone)
    connection.enter_vhost(vhost)
    connection.state = OPENED


def _watch(connection: Connection, remote_timeout: int) -> None:
    """Start the idle timers of both directions."""
    if 0 < remote_timeout < MIN_IDLE_TIMEOUT:
        raise ConnectionRefused(
            constants.NOT_ALLOWED, f"idle-time-out is {remote_timeout} ms; expected at least {MIN_IDLE_TIMEOUT} ms"
        )
    timers = connection.broker.timers
    timeout = int(connection.own.idle_timeout * 1000)
    if timeout:
        connection.idle_timeout_timer = IdleTimeout(connection, timeout)
        timers.at(timers.now() + connection.idle_timeout_timer.part, connection.idle_timeout_timer)
    if remote_timeout:
        connection.keepalive = Keepalive(connection, remote_timeout)
        timers.at(timers.now() + connection.keepalive.part, connection.keepalive)
