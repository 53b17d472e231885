"""Users and their permissions."""

from __future__ import annotations

from leveret.management.http.control import Row
from leveret.management.http.errors import BrokerRefused, bad_request, not_found
from leveret.management.http.lists import columns_of, select
from leveret.management.http.request import CREATED, NO_CONTENT, Answer, Request


def user_row(item: Row) -> Row:
    """Return a user. Hashes of Leveret's own format are not shown."""
    limits = {
        name: value
        for name, value in (("max-connections", item["max_connections"]), ("max-channels", item["max_channels"]))
        if value
    }
    return {
        "hashing_algorithm": item.get("hashing_algorithm") or "rabbit_password_hashing_sha256",
        "limits": limits,
        "name": item["name"],
        "password_hash": item.get("password_hash") or "",
        "tags": item["tags"],
    }


async def _find(request: Request, name: str) -> Row | None:
    found: list[Row] = await request.control.call("users.list")
    return next((item for item in found if item["name"] == name), None)


async def list_all(request: Request) -> Answer:
    found = [user_row(item) for item in await request.control.call("users.list")]
    return Answer(body=select(found, request.query))


async def list_without_permissions(request: Request) -> Answer:
    found = [user_row(item) for item in await request.control.call("users.list") if not item["vhosts"]]
    return Answer(body=select(found, request.query))


async def show(request: Request) -> Answer:
    item = await _find(request, request.path["user"])
    if item is None:
        raise not_found()
    return Answer(body=columns_of(user_row(item), request.query))


async def put(request: Request) -> Answer:
    """Add or change a user. `tags` is required; without a password, a new user cannot log in with one."""
    body = request.body()
    tags = body.get("tags", body.get("administrator"))
    if tags is None:
        raise bad_request("tags_not_present")
    change: Row = {"name": request.path["user"], "tags": _tags(tags)}
    if body.get("password") is not None:
        change["password"] = request.text("password")
    elif body.get("password_hash"):
        change["password_hash"] = request.text("password_hash")
        if body.get("hashing_algorithm") is not None:
            change["hashing_algorithm"] = request.text("hashing_algorithm")
    if await _find(request, request.path["user"]) is None:
        await request.change("users.add", change)
        return CREATED
    await request.change("users.change", change)
    return NO_CONTENT


def _tags(value: object) -> list[str]:
    """Return tags from a list, or from a text with commas."""
    if isinstance(value, str):
        return [tag.strip() for tag in value.split(",") if tag.strip()]
    if isinstance(value, list) and all(isinstance(tag, str) for tag in value):
        return value
    raise bad_request("invalid value of 'tags'; expected a list of strings")


async def delete(request: Request) -> Answer:
    await request.change("users.delete", {"name": request.path["user"]})
    return NO_CONTENT


async def delete_many(request: Request) -> Answer:
    """Delete the users in the key `users`. Missing ones are ignored."""
    (names,) = request.required("users")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("invalid value of 'users'; expected a list of strings")
    for name in names:
        try:
            await request.change("users.delete", {"name": name})
        except BrokerRefused as refused:
            if refused.condition != "not-found":
                raise
    return NO_CONTENT


def permission_row(item: Row) -> Row:
    """Return the permissions of a user in a vhost."""
    return {name: item[name] for name in ("user", "vhost", "configure", "write", "read")}


async def _permissions(request: Request, **filters: str) -> list[Row]:
    return [permission_row(item) for item in await request.control.call("permissions.list", filters)]


async def list_permissions(request: Request) -> Answer:
    return Answer(body=select(await _permissions(request), request.query))


async def list_permissions_of_user(request: Request) -> Answer:
    user = request.path["user"]
    if await _find(request, user) is None:
        raise not_found()
    return Answer(body=select(await _permissions(request, user=user), request.query))


async def list_permissions_in_vhost(request: Request) -> Answer:
    if request.vhost not in [item["name"] for item in await request.control.call("vhosts.list")]:
        raise not_found()
    return Answer(body=select(await _permissions(request, vhost=request.vhost), request.query))


async def show_permission(request: Request) -> Answer:
    found = await _permissions(request, vhost=request.vhost, user=request.path["user"])
    if not found:
        raise not_found()
    return Answer(body=found[0])


async def put_permission(request: Request) -> Answer:
    """Set the permissions of a user in a vhost: `configure`, `write` and `read`, all required."""
    user, vhost = request.path["user"], request.vhost
    request.required("configure", "write", "read")
    existing = await _permissions(request, vhost=vhost, user=user)
    await request.change(
        "permissions.set",
        {
            "user": user,
            "vhost": vhost,
            "configure": request.text("configure"),
            "write": request.text("write"),
            "read": request.text("read"),
        },
    )
    return NO_CONTENT if existing else CREATED


async def delete_permission(request: Request) -> Answer:
    await request.change("permissions.delete", {"user": request.path["user"], "vhost": request.vhost})
    return NO_CONTENT
