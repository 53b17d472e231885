"""Roles of users in management."""

from __future__ import annotations

import asyncio
from typing import Final

from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request
from leveret.management.http.lists import select
from leveret.management.http.request import NO_CONTENT, Answer, Request

# Names of one request for own rights.
MAX_NAMES: Final = 500
# Names whose role is looked up at a time: each is compared with up to 50 grants.
_STEP: Final = 10


async def list_all(request: Request) -> Answer:
    return Answer(body=select(await request.control.call("roles.list"), request.query))


async def list_of_user(request: Request) -> Answer:
    return Answer(body=select(await request.control.call("roles.list", {"user": request.path["user"]}), request.query))


async def put(request: Request) -> Answer:
    """Replace the roles of a user: `grants` is required."""
    (grants,) = request.required("grants")
    await request.change("roles.set", {"user": request.path["user"], "grants": grants})
    return NO_CONTENT


async def delete(request: Request) -> Answer:
    """Revoke all roles of a user, whose permissions then decide."""
    await request.change("roles.revoke", {"user": request.path["user"]})
    return NO_CONTENT


async def show_own(request: Request) -> Answer:
    """Return the role of the user of the request for a queue or exchange, which need not exist, and the permissions."""
    (found,) = await _own(request, [request.name])
    return Answer(body=found)


async def list_own(request: Request) -> Answer:
    """Return the same for each name of the body: `names` is required."""
    (names,) = request.required("names")
    if not isinstance(names, list) or len(names) > MAX_NAMES or not all(isinstance(name, str) for name in names):
        raise bad_request(f"invalid value of 'names'; expected an array of at most {MAX_NAMES} strings")
    return Answer(body=await _own(request, names))


async def _own(request: Request, names: list[str]) -> list[Row]:
    grants = request.identity.grants
    wanted = {"vhost": request.vhost, "names": names}
    permitted = await request.control.call("permissions.show_own", wanted, user=request.identity.name)
    found: list[Row] = []
    for name, permissions in zip(names, permitted["permissions"], strict=True):
        role = grants.role_for(request.vhost, name)
        found.append({"restricted": bool(grants), "role": role, "permissions": permissions})
        if grants and len(found) % _STEP == 0:
            await asyncio.sleep(0)
    return found
