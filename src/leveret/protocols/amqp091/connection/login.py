"""Authentication: the methods from start-ok to tune (0-9-1 section 2.2.4)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leveret.broker.values import FieldTable
from leveret.protocols.authentication import REFUSAL_DELAY, Authentication
from leveret.security.accounts import Account
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.errors import WireError
from leveret.wire.amqp0.fieldtable import decode_table

if TYPE_CHECKING:
    from leveret.protocols.amqp091.connection.base import BaseConnection

logger = logging.getLogger("leveret.connection")


def _read_pairs(data: bytes) -> FieldTable:
    try:
        return decode_table(data, 0, len(data), RABBITMQ)
    except WireError as error:
        raise ValueError(str(error)) from None


class Login(Authentication):
    """The login of one connection. The engine checks that start-ok and secure-ok arrive in order.

    Attributes:
        proven: the authenticated user while the client's reply to the final challenge is pending; None otherwise.
    """

    def __init__(self, connection: BaseConnection) -> None:
        services = connection.services
        super().__init__(connection.peer, services, services.mechanisms, services.anonymous_user, _read_pairs)
        self.connection = connection
        self.proven: Account | None = None

    def start_ok(self, mechanism: str, response: bytes) -> None:
        connection = self.connection
        if not self.start(mechanism, response):
            # start-ok.mechanism.validity: close the socket without sending anything
            logger.warning("%s: mechanism '%s' was not offered", connection.peer.subject, mechanism)
            connection.handshake.end_login()
            connection.peer.close()

    def secure_ok(self, response: bytes) -> None:
        if self.proven is None:
            self.respond(response)
        elif response:
            self.refuse_for(f"unexpected response after the end of the {self.mechanism} exchange")
        else:
            self._tune(self.proven)

    def is_lost(self) -> bool:
        return self.connection.lost

    def wait(self, waiting: bool) -> None:
        # The client may not send anything meanwhile, so its input need not be paused.
        if not waiting:
            self.connection.mark()
            self.connection.broker.end_turn()

    def challenge(self, data: bytes) -> None:
        self.connection.engine.send(0, "connection.secure", {"challenge": data})

    def accept(self, account: Account, data: bytes) -> None:
        if data:
            # connection.tune has no field for it: send it as a challenge with an empty response (RFC 4422 section 5).
            self.proven = account
            self.challenge(data)
        else:
            self._tune(account)

    def refuse(self) -> None:
        connection = self.connection
        connection.handshake.end_login()
        if connection.handshake.client.close_after_refusal:
            connection.close(
                403, f"Login was refused using authentication mechanism {self.mechanism}. For details see the broker's log."
            )
        else:
            connection.peer.call_later(REFUSAL_DELAY, connection.peer.close)

    def _tune(self, account: Account) -> None:
        connection = self.connection
        connection.handshake.end_login()
        connection.set_account(account)
        engine = connection.engine
        engine.send(
            0,
            "connection.tune",
            {"channel_max": engine.channel_max, "frame_max": engine.frame_max, "heartbeat": engine.heartbeat},
        )
