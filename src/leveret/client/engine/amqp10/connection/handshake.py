"""The handshake of a connection (security 5.3, transport 2.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret._build import __version__
from leveret.client.engine.amqp091.handshake import CLOSED_DURING_LOGIN
from leveret.client.engine.amqp10.connection.engine import AMQP, SASL
from leveret.client.engine.common.frontend import Procedure
from leveret.client.engine.common.login import Login
from leveret.client.errors import (
    AuthenticationFailed,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    Error,
    ProtocolMismatch,
    VhostRefused,
)
from leveret.client.parameters import SCRAM
from leveret.wire.amqp0.values import Arguments
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.errors import EncodeError
from leveret.wire.amqp10.frames import Header
from leveret.wire.amqp10.security import SaslChallenge, SaslInit, SaslMechanisms, SaslOutcome, SaslResponse
from leveret.wire.amqp10.transport import Open
from leveret.wire.amqp10.values import Checked, Symbol
from leveret.wire.amqp10.values import Value as WireValue

if TYPE_CHECKING:
    from leveret.client.engine.amqp10.connection.connection import Amqp10ConnectionCore
    from leveret.client.parameters import Parameters

DEFAULT_VHOST: Final = "/"
# The specification allows 512 bytes. Tokens as passwords are longer, and brokers that accept tokens accept 8,192 bytes.
MAX_LOGIN_FRAME: Final = 8192
_VHOST_CONDITIONS: Final = (constants.NOT_FOUND, constants.UNAUTHORIZED_ACCESS, constants.NOT_ALLOWED)
_CODES: Final = {
    constants.SASL_CODE_AUTH: "wrong name or password",
    constants.SASL_CODE_SYS: "a system error",
    constants.SASL_CODE_SYS_PERM: "a permanent system error",
    constants.SASL_CODE_SYS_TEMP: "a temporary system error",
}


def handshake(connection: Amqp10ConnectionCore) -> Procedure:
    """Run the handshake, from the first protocol header to the server's first begin (a procedure).

    A server that refuses the vhost first opens the connection and then closes it, so an open alone proves nothing.
    """
    parameters = connection.parameters
    yield from _login(connection, parameters)
    connection.send_protocol_header(AMQP)
    connection.send(
        Open(
            connection.container_id,
            _hostname(parameters),
            connection.engine.max_frame_size,
            connection.engine.channel_max,
            connection.engine.idle_time_out or None,
            properties=_properties(parameters),
        )
    )
    try:
        _check_header(connection, (yield connection.expect()), AMQP)
        theirs = yield connection.expect()
        if not isinstance(theirs, Open):
            raise ConnectionFailed(
                f"{_at(parameters)} sent another frame than open", host=parameters.host, port=parameters.port
            )
        connection.agree(theirs)
        connection.engine.allow_close()
        probe = connection.new_channel(False, False, internal=True)
        begun = probe.begin()
        yield begun
        yield probe.end()
    except ConnectionLost:
        raise
    except ConnectionClosed as error:
        raise _refused(parameters, error) from None


def _login(connection: Amqp10ConnectionCore, parameters: Parameters) -> Procedure:
    connection.send_protocol_header(SASL)
    _check_header(connection, (yield connection.expect()), SASL)
    try:
        offered = yield connection.expect()
        if not isinstance(offered, SaslMechanisms):
            raise _failed(parameters, "the server did not offer mechanisms")
        login = Login(parameters)
        mechanism = login.mechanism
        if not parameters.may_use(offered.sasl_server_mechanisms):
            raise _failed(
                parameters,
                f"the server offers the mechanisms {', '.join(offered.sasl_server_mechanisms)}, not"
                f" {mechanism}; set the option mechanism to one of them",
            )
        connection.engine.limit_frames(MAX_LOGIN_FRAME)
        try:
            connection.send(SaslInit(mechanism, login.first() or None, _hostname(parameters)))
        except EncodeError as error:
            raise _failed(parameters, f"the user or password is too long: {error}") from None
        connection.engine.limit_frames(constants.MIN_MAX_FRAME_SIZE)
        outcome = yield connection.expect()
        while isinstance(outcome, SaslChallenge) and mechanism in SCRAM:
            connection.send(SaslResponse(login.respond(outcome.challenge)))
            outcome = yield connection.expect()
        if not isinstance(outcome, SaslOutcome):
            raise _failed(parameters, f"the server did not end the {mechanism} exchange with an outcome")
    except ConnectionLost:
        raise _failed(parameters, CLOSED_DURING_LOGIN) from None
    if outcome.code != constants.SASL_CODE_OK:
        raise _failed(
            parameters,
            f"user {parameters.user!r} by {mechanism}: {_CODES.get(outcome.code, outcome.code)};"
            " expected a valid user and password (options user, password, mechanism)",
        )
    login.done(outcome.additional_data or b"")


def _check_header(connection: Amqp10ConnectionCore, header: Checked, expected: int) -> None:
    if isinstance(header, Header) and header.is_supported() and header.protocol == expected:
        return
    parameters = connection.parameters
    spoken = ""
    if not isinstance(header, Header):
        text = "the server sent a frame before its header"
    elif header.is_supported():
        text = (
            f"the server requires protocol id {header.protocol} of AMQP 1.0; expected {expected} (0: plain AMQP without"
            " SASL, 2: TLS, 3: SASL)"
        )
    else:
        numbers = (header.major, header.minor, header.revision)
        spoken = "-".join(map(str, numbers if header.major == 0 else numbers[:2]))
        text = f"the server speaks AMQP {spoken} instead of 1.0"
    error = ProtocolMismatch(text, host=parameters.host, port=parameters.port)
    error.speaks = spoken
    connection.mismatch(error)
    raise error


def _at(parameters: Parameters) -> str:
    return f"{parameters.host}:{parameters.port}"


def _failed(parameters: Parameters, text: str) -> AuthenticationFailed:
    return AuthenticationFailed(
        f"{_at(parameters)} refused the login: {text}", host=parameters.host, port=parameters.port, reply_text=text
    )


def _refused(parameters: Parameters, error: Error) -> ConnectionFailed:
    kind = ConnectionFailed
    text = f"{_at(parameters)} refused the connection: {error}"
    if error.condition in _VHOST_CONDITIONS:
        kind = VhostRefused
        asked = f"hostname {parameters.hostname!r}" if parameters.hostname else f"vhost {parameters.vhost!r}"
        text = (
            f"{_at(parameters)} refused the {asked} to user {parameters.user!r}: {error};"
            " expected an existing vhost that the user may access (options vhost, hostname, user)"
        )
    failed = kind(text, host=parameters.host, port=parameters.port, reply_text=error.reply_text)
    failed.condition, failed.info = error.condition, error.info
    return failed


def _hostname(parameters: Parameters) -> str:
    """Return the `hostname` field. Leveret and RabbitMQ take the vhost from it."""
    if parameters.hostname:
        return parameters.hostname
    return parameters.host if parameters.vhost == DEFAULT_VHOST else f"vhost:{parameters.vhost}"


def _properties(parameters: Parameters) -> dict[Symbol, WireValue]:
    properties: Arguments = {"product": "Leveret", "version": __version__, "platform": "Python"}
    if parameters.name:
        properties["connection_name"] = parameters.name
    properties.update(parameters.client_properties or {})
    return {Symbol(key): value for key, value in properties.items()}
