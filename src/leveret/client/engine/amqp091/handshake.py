"""The handshake of a connection (0-9-1 sections 2.2.4 and 1.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret._build import __version__
from leveret.client.engine.common.frontend import Procedure
from leveret.client.engine.common.login import Login
from leveret.client.errors import AuthenticationFailed, ConnectionClosed, ConnectionFailed, ConnectionLost, VhostRefused
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.constants import ACCESS_REFUSED, INVALID_PATH, NOT_ALLOWED, NOT_FOUND
from leveret.wire.amqp0.values import Arguments, FieldTable

if TYPE_CHECKING:
    from leveret.client.engine.amqp091.connection import ConnectionCore
    from leveret.client.parameters import Parameters

# Reply codes to connection.open that concern the vhost. A server that is shutting down or full sends other codes.
_VHOST_CODES: Final = (INVALID_PATH, ACCESS_REFUSED, NOT_FOUND, NOT_ALLOWED)
# Reply text for a server that closes the connection during the login.
CLOSED_DURING_LOGIN: Final = "the server closed the connection without giving a reason"
# The version in connection.start, in 0-9 as in 0-9-1.
VERSION: Final = (0, 9)
CAPABILITIES: Final = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


def handshake(connection: ConnectionCore) -> Procedure:
    """Run the handshake, from the protocol header to `connection.open-ok` (a procedure)."""
    parameters = connection.parameters
    start: Method = yield connection.expect()
    spoken = start.arguments["version_major"], start.arguments["version_minor"]
    if spoken != VERSION:
        raise ConnectionFailed(
            f"{parameters.host}:{parameters.port} speaks AMQP version {spoken[0]}.{spoken[1]}; expected"
            f" {VERSION[0]}.{VERSION[1]}",
            host=parameters.host,
            port=parameters.port,
        )
    connection.server_properties = start.arguments["server_properties"]
    offered = start.arguments["mechanisms"].split()
    login = Login(parameters)
    mechanism = login.mechanism
    if not parameters.may_use(offered):
        raise AuthenticationFailed(
            f"the server offers the mechanisms {', '.join(offered)}, not {mechanism}; set the option"
            " mechanism to one of them",
            host=parameters.host,
            port=parameters.port,
        )
    connection.send(
        "connection.start-ok",
        {
            "client_properties": _client_properties(parameters),
            "mechanism": mechanism,
            "response": login.first(),
            "locale": parameters.locale,
        },
    )
    try:
        tune: Method = yield connection.expect()
        while tune.name == "connection.secure":
            challenge = tune.arguments["challenge"].encode("utf-8", "surrogateescape")
            connection.send("connection.secure-ok", {"response": login.respond(challenge)})
            tune = yield connection.expect()
        login.done()
    except ConnectionLost:
        # Servers without authentication_failure_close close the socket.
        raise _refused(parameters, ACCESS_REFUSED, CLOSED_DURING_LOGIN, False) from None
    except ConnectionClosed as error:
        raise _refused(parameters, error.reply_code, error.reply_text, False) from None
    connection.send("connection.tune-ok", _tune_ok_arguments(parameters, tune.arguments))
    connection.send("connection.open", {"virtual_host": parameters.vhost})
    try:
        yield connection.expect()
    except ConnectionLost:
        raise
    except ConnectionClosed as error:
        raise _refused(parameters, error.reply_code, error.reply_text, True) from None


def _refused(parameters: Parameters, code: int, text: str, opening: bool) -> ConnectionFailed:
    """Return the exception for a close by the server; `opening` says whether the client had requested the vhost."""
    at = f"{parameters.host}:{parameters.port}"
    kind = ConnectionFailed
    message = f"{at} refused the connection: {code} {text}"
    if opening and code in _VHOST_CODES:
        kind = VhostRefused
        message = (
            f"{at} refused the vhost {parameters.vhost!r} to user {parameters.user!r}: {code} {text};"
            " expected an existing vhost that the user may access (options vhost, user)"
        )
    elif code == ACCESS_REFUSED:
        kind = AuthenticationFailed
        message = (
            f"{at} refused user {parameters.user!r} by {parameters.mechanism}: {text};"
            " expected a valid user and password (options user, password, mechanism)"
        )
    return kind(message, host=parameters.host, port=parameters.port, reply_code=code, reply_text=text)


def _client_properties(parameters: Parameters) -> FieldTable:
    properties: FieldTable = {
        "product": "Leveret",
        "version": __version__,
        "platform": "Python",
        "copyright": "The Leveret authors",
        "information": "Licensed under the Apache License 2.0",
        "capabilities": dict(CAPABILITIES),
    }
    if parameters.name:
        properties["connection_name"] = parameters.name
    properties.update(parameters.client_properties or {})
    return properties


def _tune_ok_arguments(parameters: Parameters, proposed: Arguments) -> dict[str, int]:
    """Return the smaller of both sides' limits; 0 is unlimited (0-9-1 `connection.tune-ok`)."""
    return {
        "channel_max": _smaller_limit(parameters.channel_max, proposed["channel_max"]),
        "frame_max": _smaller_limit(parameters.frame_max, proposed["frame_max"]),
        # The requested heartbeat applies if the server proposes none; 0 disables heartbeats.
        "heartbeat": 0 if parameters.heartbeat == 0 else _smaller_limit(parameters.heartbeat, proposed["heartbeat"]),
    }


def _smaller_limit(ours: int, proposed: int) -> int:
    return min(ours, proposed) if ours and proposed else ours or proposed
