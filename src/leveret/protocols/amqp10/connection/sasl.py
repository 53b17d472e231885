"""SASL (security section 5.3): mechanisms, init, challenge, response and outcome, and anonymous users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.protocols.authentication import REFUSAL_DELAY, Authentication, may_connect
from leveret.security.accounts import Account
from leveret.security.mechanisms.amqplain import Amqplain
from leveret.security.mechanisms.anonymous import Anonymous
from leveret.security.mechanisms.plain import Plain
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.composite import Performative
from leveret.wire.amqp10.security import SaslChallenge, SaslInit, SaslMechanisms, SaslOutcome, SaslResponse

if TYPE_CHECKING:
    from leveret.protocols.amqp10.connection.connection import Connection

# The response of AMQPLAIN is a field table, a type of 0-9 and 0-9-1.
EXCLUDED: Final = (Amqplain.name,)


class Login(Authentication):
    """The SASL exchange of one connection. It ends with `Connection.logged_in` or when the socket closes."""

    def __init__(self, connection: Connection) -> None:
        services = connection.services
        anonymous = anonymous_user(connection)
        enabled = [name for name in services.mechanisms if name not in EXCLUDED]
        if anonymous is not None and Anonymous.name not in enabled:
            enabled.append(Anonymous.name)
        super().__init__(connection.peer, services, enabled, anonymous)
        self.connection = connection

    def begin(self) -> None:
        """Offer the mechanisms."""
        # The list must not be empty. If no mechanism is enabled, PLAIN is listed but always refused.
        self.connection.send(SaslMechanisms(tuple(self.offered) or (Plain.name,)))

    def receive(self, frame: Performative) -> None:
        """Process a frame of the client."""
        if isinstance(frame, SaslInit) and not self.mechanism:
            if not self.start(str(frame.mechanism), frame.initial_response):
                self.refuse_for(f"mechanism '{frame.mechanism}' was not offered")
        elif isinstance(frame, SaslResponse) and self.mechanism and not self.busy:
            self.respond(frame.response)
        else:
            self.refuse_for("unexpected frame during login")

    def is_lost(self) -> bool:
        return self.connection.lost

    def wait(self, waiting: bool) -> None:
        connection = self.connection
        connection.login_waits(waiting)
        if not waiting:
            connection.broker.end_turn()

    def challenge(self, data: bytes) -> None:
        self.connection.send(SaslChallenge(data))

    def accept(self, account: Account, data: bytes) -> None:
        self.connection.send(SaslOutcome(constants.SASL_CODE_OK, data or None))
        self.connection.logged_in(account)

    def refuse(self) -> None:
        connection = self.connection
        connection.send(SaslOutcome(constants.SASL_CODE_AUTH))
        connection.end_login()
        connection.peer.call_later(REFUSAL_DELAY, connection.peer.finish)


def anonymous_user(connection: Connection) -> str | None:
    """Return the user of clients without SASL; None if they are refused."""
    services = connection.services
    name = connection.shared.settings.anonymous_user
    if name and services.users.get(name) is not None and may_connect(services.users, connection.peer, name):
        return name
    return None
