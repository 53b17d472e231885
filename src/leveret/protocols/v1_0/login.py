"""SASL (security section 5.3): mechanisms, init, challenge, response, outcome; and who is let in without it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from leveret.security.mechanisms.base import Challenge, Context, NeedsPassword, Success
from leveret.security.mechanisms.registry import create, offered
from leveret.wire.amqp1 import constants
from leveret.wire.amqp1.security import SaslChallenge, SaslInit, SaslMechanisms, SaslOutcome, SaslResponse

if TYPE_CHECKING:
    from leveret.protocols.v1_0.connection import Connection

log = logging.getLogger("leveret.connection")

ANONYMOUS: Final = "ANONYMOUS"
# AMQPLAIN is one of 0-x: its response is a field table.
NOT_HERE: Final = ("AMQPLAIN",)
# A refused login waits this long before the socket is closed, so that guessing is slow.
REFUSAL_DELAY: Final = 1.0


class Login:
    """The SASL exchange of one connection. It ends with `Connection.logged_in` or with the socket's end."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        services = connection.services
        anonymous = anonymous_user(connection)
        self._context = Context(certificate=connection.peer.certificate, external_name=services.external_name,
                                anonymous_user=anonymous)
        enabled = [name for name in services.mechanisms if name not in NOT_HERE]
        if anonymous is not None and ANONYMOUS not in enabled:
            enabled.append(ANONYMOUS)
        self._enabled = enabled
        self._mechanism: Any = None
        self._waiting = False

    def start(self) -> None:
        """Say which mechanisms there are."""
        names = offered(self._enabled, self._context)
        # The list must not be empty; nobody gets in by what is on it then.
        self.connection.send(SaslMechanisms(tuple(names) or ("PLAIN",)))

    def receive(self, frame: Any) -> None:
        """A frame of the client."""
        if isinstance(frame, SaslInit) and self._mechanism is None:
            chosen = create(str(frame.mechanism), self._enabled, self._context)
            if chosen is None:
                self._refuse(f"mechanism '{frame.mechanism}' was not offered")
                return
            self._mechanism = chosen
            self._step(frame.initial_response or b"")
        elif isinstance(frame, SaslResponse) and self._mechanism is not None and not self._waiting:
            self._step(frame.response)
        else:
            self._refuse("an illegal frame during the login")

    def _step(self, response: bytes) -> None:
        connection = self.connection
        outcome = self._mechanism.step(response)
        if isinstance(outcome, Challenge):
            connection.send(SaslChallenge(outcome.data))
        elif isinstance(outcome, NeedsPassword):
            users = connection.services.users
            name = outcome.username
            password = outcome.password
            verdict = users.cached_verdict(name, password)
            if verdict is not None:
                self._verified(name, verdict)
                return
            self._waiting = True
            connection.login_waits(True)
            # For a client that has gone in the meantime nothing is computed.
            connection.peer.run_blocking(lambda: not connection.lost and users.verify(name, password),
                                         lambda result: self._verified_later(name, result))
        elif isinstance(outcome, Success):
            self._verified(outcome.username, True)
        else:
            self._refuse(outcome.reason)

    def _verified_later(self, name: str, verdict: Any) -> None:
        connection = self.connection
        if connection.lost:
            return
        if isinstance(verdict, BaseException):
            log.error("%s: the password of '%s' could not be checked: %s", connection.peer.name, name, verdict)
            verdict = False
        self._waiting = False
        self._verified(name, bool(verdict))
        connection.login_waits(False)
        connection.broker.end_turn()

    def _verified(self, name: str, verdict: bool) -> None:
        connection = self.connection
        if verdict and not may_connect(connection, name):
            log.warning("%s: user '%s' may log in from this machine only (auth.loopback_users)", connection.peer.name, name)
            verdict = False
        if not verdict or connection.services.users.get(name) is None:
            self._refuse(f"login of '{name}' by {self._mechanism.name}")
            return
        connection.send(SaslOutcome(constants.SASL_CODE_OK))
        connection.logged_in(name)

    def _refuse(self, reason: str) -> None:
        connection = self.connection
        log.warning("%s: login refused: %s", connection.peer.name, reason)
        connection.send(SaslOutcome(constants.SASL_CODE_AUTH))
        connection.end_login()
        connection.peer.call_later(REFUSAL_DELAY, connection.peer.close)


def anonymous_user(connection: Connection) -> str | None:
    """Who a client is that says nothing of itself; None where that is nobody."""
    services = connection.services
    name = services.amqp10.anonymous_user
    if name and services.users.get(name) is not None and may_connect(connection, name):
        return name
    return None


def may_connect(connection: Connection, name: str) -> bool:
    peer = connection.peer
    return connection.services.users.may_connect_from(name, "127.0.0.1" if peer.local else peer.host)
