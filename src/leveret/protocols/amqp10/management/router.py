"""Dispatch of requests. Every error in a request becomes a response.

| status | meaning |
| --- | --- |
| 400 | the request is malformed or cannot be satisfied |
| 403 | missing permission, or a reserved name |
| 404 | not found |
| 405 | the path does not support the method |
| 409 | the name exists with other properties |
| 500 | internal error |
| 503 | too many responses wait for the client's credit |
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import BrokerError
from leveret.protocols.amqp10.management import bindings, exchanges, queues, tokens
from leveret.protocols.amqp10.management.messages import Answer, Request, RequestRefused, encode, read, refusal
from leveret.wire.amqp10.errors import EncodeError

if TYPE_CHECKING:
    from leveret.protocols.vhost_session import VhostSession

logger = logging.getLogger("leveret.connection")

# Status by condition of a broker error; 400 for all others.
STATUSES: Final[dict[str, int]] = {
    "not-found": 404,
    "access-refused": 403,
    "resource-error": 403,
    "internal-error": 500,
}

Handler = Callable[..., Answer]
# Handlers by path, in which "*" is a name, and by method. Handlers receive names as they are in the path.
PATHS: Final[dict[tuple[str, ...], dict[str, Handler]]] = {
    ("queues", "*"): {"PUT": queues.declare, "GET": queues.show, "DELETE": queues.delete},
    ("queues", "*", "messages"): {"DELETE": queues.purge},
    ("exchanges", "*"): {"PUT": exchanges.declare, "DELETE": exchanges.delete},
    ("bindings",): {"POST": bindings.bind, "GET": bindings.show},
    ("bindings", "*"): {"DELETE": bindings.unbind},
    ("auth", "tokens"): {"PUT": tokens.put},
}


def answer(connection: VhostSession, payload: bytes, busy: str = "") -> tuple[bytes, Answer]:
    """Perform a request, or refuse it if `busy` has a reason. Return the encoded response, and its `Answer`."""
    request = Request()
    try:
        read(request, payload)
        if busy:
            raise RequestRefused(503, busy)
        found = _perform(connection, request)
    except RequestRefused as refused:
        found = _refused(connection, request, refused.status, refused.text)
    except BrokerError as error:
        found = _refused(connection, request, STATUSES.get(error.condition, 400), str(error))
    except Exception:
        logger.exception("%s: internal error in request '%s %s'", connection.peer.subject, request.method, request.target)
        found = refusal(500, "internal error; see the broker's log")
    try:
        return encode(request, found), found
    except EncodeError as failed:
        return encode(request, refusal(500, f"the response cannot be encoded: {failed}")), found


def _perform(connection: VhostSession, request: Request) -> Answer:
    segments = request.segments
    for pattern, methods in PATHS.items():
        if len(pattern) == len(segments) and all(
            fixed in ("*", segment) for fixed, segment in zip(pattern, segments, strict=True)
        ):
            handler = methods.get(request.method)
            if handler is None:
                raise RequestRefused(
                    405, f"invalid method '{request.method}' for '{request.target}': expected {' or '.join(methods)}"
                )
            names = [segment for fixed, segment in zip(pattern, segments, strict=True) if fixed == "*"]
            return handler(connection, request, *names)
    known: list[str] = ["/" + "/".join("NAME" if part == "*" else part for part in pattern) for pattern in PATHS]
    raise RequestRefused(404, f"'{request.target}' does not exist: expected {', '.join(known)}")


def _refused(connection: VhostSession, request: Request, status: int, text: str) -> Answer:
    logger.info(
        "%s: request '%s %s' answered with %d: %s", connection.peer.subject, request.method, request.target, status, text
    )
    return refusal(status, text)
