"""Exchanges in the management node.

PUT /exchanges/X     204 if it is created or exists with the same properties, 409 if they differ
DELETE /exchanges/X  204, even if the exchange does not exist
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.errors import NotAllowed, PreconditionFailed
from leveret.management.operations.definitions import EXCHANGE_DECLARE, EXCHANGE_DELETE, DeclareExchange, DeleteExchange
from leveret.management.operations.operation import perform_now
from leveret.protocols.amqp10.management.messages import (
    Answer,
    Request,
    RequestRefused,
    context_of,
    fields_of,
    kinds_of,
    name_in,
)

if TYPE_CHECKING:
    from leveret.protocols.vhost_session import VhostSession

FIELDS: Final[dict[str, type]] = kinds_of(DeclareExchange)


def declare(connection: VhostSession, request: Request, quoted: str) -> Answer:
    name = name_in(quoted, "an exchange")
    wanted = DeclareExchange(name=name, **fields_of(request, "exchange", FIELDS))
    existed = name in connection.vhost.exchanges
    try:
        found = perform_now(EXCHANGE_DECLARE, context_of(connection), wanted)
    except (PreconditionFailed, NotAllowed) as error:
        raise RequestRefused(409 if existed else 400, str(error)) from None
    return Answer(204, kept=found.stored)


def delete(connection: VhostSession, request: Request, quoted: str) -> Answer:
    perform_now(EXCHANGE_DELETE, context_of(connection), DeleteExchange(name=name_in(quoted, "an exchange")))
    return Answer(204, kept=True, removed=True)
