"""Limits of vhosts and users."""

from __future__ import annotations

from typing import Final

from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request, not_found
from leveret.management.http.lists import select
from leveret.management.http.request import NO_CONTENT, Answer, Request

_VHOST_LIMITS: Final = ("max-connections", "max-queues")
_USER_LIMITS: Final = ("max-connections", "max-channels")


def _name(request: Request, known: tuple[str, ...]) -> str:
    if request.name not in known:
        raise bad_request(f"unknown limit '{request.name}'; expected one of {', '.join(known)}")
    return request.name


async def list_of_vhosts(request: Request) -> Answer:
    found = await request.control.list("vhost_limits.list")
    return Answer(body=select([item for item in found if request.identity.sees(item["vhost"])], request.query))


async def list_of_vhost(request: Request) -> Answer:
    found = await request.control.call("vhost_limits.list", {"vhost": request.vhost})
    return Answer(body=select(found, request.query))


async def put_of_vhost(request: Request) -> Answer:
    """Set a limit: `value` is required. 0 allows none, a negative number means no limit."""
    name = _name(request, _VHOST_LIMITS)
    request.required("value")
    await request.change("vhost_limits.set", {"vhost": request.vhost, "name": name, "value": request.integer("value")})
    return NO_CONTENT


async def delete_of_vhost(request: Request) -> Answer:
    await request.change("vhost_limits.clear", {"vhost": request.vhost, "name": _name(request, _VHOST_LIMITS)})
    return NO_CONTENT


async def list_of_users(request: Request) -> Answer:
    return Answer(body=select(await request.control.call("user_limits.list"), request.query))


async def list_of_user(request: Request) -> Answer:
    user = request.path["user"]
    if user not in [item["name"] for item in await request.control.call("users.list")]:
        raise not_found()
    return Answer(body=select(await request.control.call("user_limits.list", {"user": user}), request.query))


async def put_of_user(request: Request) -> Answer:
    """Set a limit: `value` is required. 0 allows none, a negative number means no limit."""
    name = _name(request, _USER_LIMITS)
    request.required("value")
    change: Row = {"user": request.path["user"], "name": name, "value": request.integer("value")}
    await request.change_users("user_limits.set", change)
    return NO_CONTENT


async def delete_of_user(request: Request) -> Answer:
    await request.change_users("user_limits.clear", {"user": request.path["user"], "name": _name(request, _USER_LIMITS)})
    return NO_CONTENT
