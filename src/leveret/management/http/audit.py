"""The audit log."""

from __future__ import annotations

from typing import Final

from leveret.management.http.errors import bad_request
from leveret.management.http.request import Answer, Request

_TEXTS: Final = ("user", "action", "kind", "vhost", "object", "since", "until")
_NUMBERS: Final = ("page", "page_size")


async def search(request: Request) -> Answer:
    """Return a page of changes; the parameters of the query are the conditions."""
    query = request.query
    wanted: dict[str, object] = {name: query[name] for name in _TEXTS if name in query}
    for name in _NUMBERS:
        if name in query:
            if not query[name].isdecimal():
                raise bad_request(f"invalid value of '{name}'; expected a number")
            wanted[name] = int(query[name])
    return Answer(body=await request.control.call("audit.search", wanted))
