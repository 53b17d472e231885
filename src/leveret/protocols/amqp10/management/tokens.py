"""Tokens in the management node.

PUT /auth/tokens  204
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.protocols.amqp10.management.messages import FORBIDDEN, Answer, Renewal, Request, RequestRefused

if TYPE_CHECKING:
    from leveret.protocols.vhost_session import VhostSession


def put(connection: VhostSession, request: Request) -> Answer:
    """Replace the client's token, which may need time. Without logins by token, the new one is ignored.

    A refused token leaves the old one in place until it expires.
    """
    if not isinstance(request.body, bytes):
        raise RequestRefused(400, "expected the bytes of a token as body")
    renewal = Renewal(request)
    connection.renew(request.body, renewal.resolve)
    if renewal.reason:
        raise RequestRefused(FORBIDDEN, renewal.reason)
    return Answer(204, renewal=renewal if renewal.reason is None else None)
