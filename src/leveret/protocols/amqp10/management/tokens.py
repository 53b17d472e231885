"""Tokens in the management node.

PUT /auth/tokens  204
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.protocols.amqp10.management.messages import Answer, Request, RequestRefused

if TYPE_CHECKING:
    from leveret.protocols.amqp10.connection.connection import Connection


def put(connection: Connection, request: Request) -> Answer:
    """A client with a new token. Logins do not expire here, so there is nothing to renew (as with `update-secret` of
    0-9-1)."""
    if not isinstance(request.body, bytes):
        raise RequestRefused(400, "the body was expected to be the bytes of a token")
    return Answer(204)
