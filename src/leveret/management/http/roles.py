"""Roles of users in management."""

from __future__ import annotations

from leveret.management.http.lists import select
from leveret.management.http.request import NO_CONTENT, Answer, Request


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
    grants = request.identity.grants
    role = grants.role_for(request.vhost, request.name)
    address = {"vhost": request.vhost, "name": request.name}
    permitted = await request.control.call("permissions.show_own", address, user=request.identity.name)
    return Answer(body={"restricted": bool(grants), "role": role, **permitted})
