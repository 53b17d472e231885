"""Tokens in the management node.

PUT /auth/tokens  204
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.protocols.amqp10.management.messages import Answer, Request, RequestRefused

if TYPE_CHECKING:
    from leveret.protocols.vhost_session import VhostSession


def put(connection: VhostSession, request: Request) -> Answer:
    """Accept and ignore a new token of the client: logins do not expire (as with `update-secret` in 0-9-1)."""
    if not isinstance(request.body, bytes):
        raise RequestRefused(400, "expected the bytes of a token as body")
    return Answer(204)
