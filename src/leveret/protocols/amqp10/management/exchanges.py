"""Exchanges in the management node.

PUT /exchanges/X     204 if it is created or exists with the same properties, 409 if they differ
DELETE /exchanges/X  204, also if the exchange does not exist
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.errors import NotAllowed, PreconditionFailed
from leveret.protocols import definitions
from leveret.protocols.amqp10.management.messages import Answer, Request, RequestRefused, fields_of, name_in

if TYPE_CHECKING:
    from leveret.protocols.amqp10.connection.connection import Connection

FIELDS: Final[dict[str, type]] = {"type": str, "durable": bool, "auto_delete": bool, "internal": bool, "arguments": dict}


def declare(connection: Connection, request: Request, quoted: str) -> Answer:
    name = name_in(quoted, "an exchange")
    fields = fields_of(request, "exchange", FIELDS)
    existed = name in connection.vhost.exchanges
    try:
        found = definitions.declare_exchange(
            connection, name, fields.get("type", "direct"), durable=fields.get("durable", True),
            auto_delete=fields.get("auto_delete", False), internal=fields.get("internal", False),
            arguments=fields.get("arguments", {}))
    except (PreconditionFailed, NotAllowed) as error:
        raise RequestRefused(409 if existed else 400, str(error)) from None
    return Answer(204, kept=found.durable)


def delete(connection: Connection, request: Request, quoted: str) -> Answer:
    name = name_in(quoted, "an exchange")
    if name in connection.vhost.exchanges or name.startswith("amq."):
        definitions.delete_exchange(connection, name)
    else:
        connection.check("configure", name)  # nothing else, also in strict mode
    return Answer(204, kept=True, removed=True)
