"""The client of a connection, as it describes itself in connection.start-ok."""

from __future__ import annotations

from typing import Final

from leveret.broker.values import FieldTable

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
