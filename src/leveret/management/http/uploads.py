"""Bodies that are processed while they are received."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from leveret.management.http.request import BrokenUpload

if TYPE_CHECKING:
    from starlette.types import Receive

# Seconds for the next part of a body to arrive.
PAUSE: Final = 60.0
# Seconds that all parts of a body may take to arrive; the time to process them does not count.
TOTAL: Final = 600.0


async def chunks(receive: Receive, limit: int, total: float = TOTAL) -> AsyncIterator[bytes]:
    """Yield the parts of a body.

    Args:
        receive: Returns the next message of the server.
        limit: Maximum size of the body in bytes.
        total: Seconds that all parts may take to arrive.

    Raises:
        BrokenUpload: The body is too large, does not arrive in time, or is broken off.
    """
    clock = asyncio.get_running_loop().time
    size = 0
    more = True
    while more:
        began = clock()
        try:
            async with asyncio.timeout(min(PAUSE, total)):
                message = await receive()
        except TimeoutError:
            reason = f"expected the next part within {PAUSE:g} seconds, and all parts within {TOTAL:g}"
            raise BrokenUpload(408, f"the body does not arrive in time; {reason}") from None
        total -= clock() - began
        if message["type"] == "http.disconnect":
            raise BrokenUpload(400, "the client closed the connection")
        content = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(content)
        if size > limit:
            raise BrokenUpload(400, f"the body has more than {limit} bytes; {expected_size(limit)}")
        yield content


def expected_size(limit: int) -> str:
    """Return what a client with a larger body can do."""
    return f"expected at most {limit} (management.max_body_size): send several files, or use the command line"
