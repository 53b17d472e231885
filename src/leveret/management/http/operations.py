"""The operations of the control socket over HTTP, for administrators on other machines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

from leveret.management.http.errors import BrokerRefused, HttpError
from leveret.management.http.request import Answer, Request
from leveret.management.json_values import encode_json

logger = logging.getLogger("leveret.http")

# Operations of this process: logins; and backups, which write to a directory of the machine.
_INTERNAL: Final = ("users.authenticate", "users.resume", "backup.")
_MESSAGES: Final = "messages."
# Operations that change nothing, and that `leveret top` executes all the time.
_STATISTICS: Final = "statistics."
# Items that are encoded at a time.
_STEP: Final = 500
# Status by the condition of the broker's error; 400 for others. Unlike in RabbitMQ's paths, the reason is the broker's.
_STATUSES: Final = {"not-found": 404, "internal-error": 500}


async def execute(request: Request) -> Answer:
    """Execute an operation of the control socket with the body as its arguments, and return its `result`."""
    name = request.name
    if name.startswith(_INTERNAL):
        raise HttpError(400, "bad_request", f"operation '{name}' is not available over HTTP")
    if name.startswith(_MESSAGES):
        request.masks.check_all()
    is_change = not name.startswith(_STATISTICS)
    logger.log(logging.INFO if is_change else logging.DEBUG, "operation '%s' by user '%s'", name, request.identity.name)
    try:
        result = await request.control.call(name, request.body())
    except BrokerRefused as refused:
        raise HttpError(_STATUSES.get(refused.condition, 400), refused.condition, str(refused)) from None
    finally:
        if is_change:
            request.changed()
    if isinstance(result, list):
        return Answer(headers=(("content-type", "application/json"),), stream=_parts(result))
    return Answer(body={"result": result})


async def _parts(items: list[Any]) -> AsyncIterator[bytes]:
    """Encode a list, which may have all queues, and serve other requests between its parts."""
    yield b'{"result":['
    for at in range(0, len(items), _STEP):
        yield (b"," if at else b"") + encode_json(items[at : at + _STEP])[1:-1]
        await asyncio.sleep(0)
    yield b"]}"
