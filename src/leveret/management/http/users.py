"""Users, their permissions and their topic permissions."""

from __future__ import annotations

from typing import Final

from leveret.management.http.control import Row
from leveret.management.http.errors import BrokerRefused, HttpError, bad_request, not_found
from leveret.management.http.lists import columns_of, select
from leveret.management.http.request import CREATED, NO_CONTENT, Answer, Request, exchange_of
from leveret.security.tags import ADMINISTRATOR

_SHA256: Final = "rabbit_password_hashing_sha256"
_PERMISSIONS: Final = ("configure", "write", "read")
# The tag of users that the API does not delete.
_PROTECTED: Final = "protected"


def user_row(item: Row) -> Row:
    """Return a user. The hash is empty if the user has no password."""
    limits = {
        name: max(value, 0)  # a negative setting allows none
        for name, value in (("max-connections", item["max_connections"]), ("max-channels", item["max_channels"]))
        if value
    }
    return {
        "hashing_algorithm": item["hashing_algorithm"] or _SHA256,
        "limits": limits,
        "name": item["name"],
        "password_hash": item["password_hash"],
        "tags": item["tags"],
    }


async def _users(request: Request) -> list[Row]:
    found: list[Row] = await request.control.call("users.list", {"hashes": True})
    return found


async def _find(request: Request, name: str) -> Row | None:
    return next((item for item in await _users(request) if item["name"] == name), None)


async def list_all(request: Request) -> Answer:
    return Answer(body=select([user_row(item) for item in await _users(request)], request.query))


async def list_without_permissions(request: Request) -> Answer:
    found = [user_row(item) for item in await _users(request) if not item["vhosts"]]
    return Answer(body=select(found, request.query))


async def show(request: Request) -> Answer:
    item = await _find(request, request.path["user"])
    if item is None:
        raise not_found()
    return Answer(body=columns_of(user_row(item), request.query))


async def put(request: Request) -> Answer:
    """Add a user, or replace the password and the tags. `tags` is required.

    The password is `password`, or `password_hash` of the algorithm `hashing_algorithm`. A user without either, or with an
    empty hash, cannot log in by password. The keys of `limits` and `permissions` are set, and the others stay.
    """
    body = request.body()
    if body.get("tags") is not None:
        tags = _tags(body["tags"])
    elif body.get("administrator") is not None:
        tags = [ADMINISTRATOR] if request.flag("administrator") else []
    else:
        raise bad_request("tags_not_present")
    user = request.path["user"]
    change: Row = {"name": user, "tags": tags}
    limits = _limits(body.get("limits"))
    permissions = _permissions_of(body.get("permissions"))
    if body.get("password") is not None and body.get("password_hash") is not None:
        raise bad_request("both_password_and_password_hash_are_provided")
    if body.get("password") is not None:
        change["password"] = request.text("password")
    elif body.get("password_hash") is not None:
        change["password_hash"] = request.text("password_hash")
        if body.get("hashing_algorithm") is not None:
            change["hashing_algorithm"] = request.text("hashing_algorithm")
    stored = await request.change_users("users.set", change)
    for name, value in limits.items():
        await request.change_users("user_limits.set", {"user": user, "name": name, "value": value})
    for vhost, permission in permissions.items():
        await _set(request, "permissions.set", {"vhost": vhost, **permission})
    return CREATED if stored["created"] else NO_CONTENT


def _tags(value: object) -> object:
    """Return tags: a list, or a text with commas. Raises `HttpError` (400)."""
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(tag, str) for tag in value)):
        return value
    raise bad_request("invalid value of 'tags'; expected a list of strings")


def _limits(value: object) -> Row:
    """Return the limits of a user. Raises `HttpError` (400)."""
    if not value:  # RabbitMQ has written empty tables as empty lists
        return {}
    names = ("max-connections", "max-channels")
    if isinstance(value, dict) and all(name in names and type(limit) is int for name, limit in value.items()):
        return value
    raise bad_request(f"invalid value of 'limits'; expected an object of integers with {' and '.join(names)}")


def _permissions_of(value: object) -> dict[str, Row]:
    """Return the permissions of a user by vhost. Raises `HttpError` (400)."""
    if not value:
        return {}
    if isinstance(value, dict):
        found = {vhost: permission for vhost, permission in value.items() if isinstance(permission, dict)}
        wanted = {vhost: {name: one.get(name) for name in _PERMISSIONS} for vhost, one in found.items()}
        if len(found) == len(value) and all(type(text) is str for one in wanted.values() for text in one.values()):
            return wanted
    raise bad_request(
        "invalid value of 'permissions'; expected an object of vhosts, each an object with 'configure', 'write' and 'read'"
    )


async def delete(request: Request) -> Answer:
    await _delete(request, request.path["user"])
    return NO_CONTENT


async def delete_many(request: Request) -> Answer:
    """Delete the users in the key `users`. Missing ones are ignored."""
    (names,) = request.required("users")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("invalid value of 'users'; expected a list of strings")
    for name in names:
        try:
            await _delete(request, name)
        except HttpError as error:
            if error.status != 404:
                raise
    return NO_CONTENT


async def _delete(request: Request, name: str) -> None:
    item = await _find(request, name)
    if item is None:
        raise not_found()
    if _PROTECTED in item["tags"]:
        raise bad_request(f"user '{name}' is protected from deletion by its tag '{_PROTECTED}'")
    await request.change_users("users.delete", {"name": name})


async def hash_password(request: Request) -> Answer:
    """Return the hash of a password in RabbitMQ's format, from the path or the key `password`."""
    if "password" in request.path:
        password = request.path["password"]
    else:
        request.required("password")
        password = request.text("password")
    return Answer(body={"ok": (await request.control.call("users.hash_password", {"password": password}))["password_hash"]})


def permission_row(item: Row) -> Row:
    """Return the permissions of a user in a vhost."""
    return {name: item[name] for name in ("user", "vhost", "configure", "write", "read")}


async def _permissions(request: Request, **filters: str) -> list[Row]:
    return [permission_row(item) for item in await request.control.call("permissions.list", filters)]


async def list_permissions(request: Request) -> Answer:
    return Answer(body=select(await _permissions(request), request.query))


async def list_permissions_of_user(request: Request) -> Answer:
    user = await _existing_user(request)
    return Answer(body=select(await _permissions(request, user=user), request.query))


async def list_permissions_in_vhost(request: Request) -> Answer:
    await _check_vhost(request)
    return Answer(body=select(await _permissions(request, vhost=request.vhost), request.query))


async def _existing_user(request: Request) -> str:
    """Return the user in the path. Raises `HttpError` (404) if it does not exist."""
    if await _find(request, request.path["user"]) is None:
        raise not_found()
    return request.path["user"]


async def _check_vhost(request: Request) -> None:
    """Raise `HttpError` (404) if the vhost in the path does not exist. Every vhost has a default exchange."""
    await request.get("exchanges.show", {"vhost": request.vhost, "name": ""})


async def _set(request: Request, call: str, change: Row) -> None:
    """Set permissions of the user in the path. Raises `HttpError` (400) if the user or the vhost does not exist."""
    try:
        await request.change_users(call, {"user": request.path["user"], **change})
    except BrokerRefused as refused:
        if refused.condition == "not-found":
            raise bad_request("vhost_or_user_not_found") from None
        raise


async def show_permission(request: Request) -> Answer:
    found = await _permissions(request, vhost=request.vhost, user=request.path["user"])
    if not found:
        raise not_found()
    return Answer(body=found[0])


async def put_permission(request: Request) -> Answer:
    """Set the permissions of a user in a vhost: `configure`, `write` and `read`, all required."""
    request.required(*_PERMISSIONS)
    existing = await _permissions(request, vhost=request.vhost, user=request.path["user"])
    change = {name: request.text(name) for name in _PERMISSIONS}
    await _set(request, "permissions.set", {"vhost": request.vhost, **change})
    return NO_CONTENT if existing else CREATED


async def delete_permission(request: Request) -> Answer:
    if not await _permissions(request, vhost=request.vhost, user=request.path["user"]):
        raise not_found()
    await request.change_users("permissions.delete", {"user": request.path["user"], "vhost": request.vhost})
    return NO_CONTENT


async def _topic_permissions(request: Request, **filters: str) -> list[Row]:
    found = await request.control.call("topic_permissions.list", filters)
    return [{name: item[name] for name in ("user", "vhost", "exchange", "write", "read")} for item in found]


async def _topic_permissions_in_path(request: Request) -> list[Row]:
    found = await _topic_permissions(request, vhost=request.vhost, user=request.path["user"])
    exchange = request.path.get("exchange")
    return [item for item in found if exchange is None or item["exchange"] == exchange_of(exchange)]


async def list_topic_permissions(request: Request) -> Answer:
    return Answer(body=select(await _topic_permissions(request), request.query))


async def list_topic_permissions_of_user(request: Request) -> Answer:
    user = await _existing_user(request)
    return Answer(body=select(await _topic_permissions(request, user=user), request.query))


async def list_topic_permissions_in_vhost(request: Request) -> Answer:
    await _check_vhost(request)
    return Answer(body=select(await _topic_permissions(request, vhost=request.vhost), request.query))


async def show_topic_permissions(request: Request) -> Answer:
    """Return the topic permissions of a user in a vhost, of all exchanges or of the one in the path."""
    found = await _topic_permissions_in_path(request)
    if not found:
        raise not_found()
    return Answer(body=select(found, request.query))


async def put_topic_permission(request: Request) -> Answer:
    """Set the topic permissions of a user for an exchange: `exchange`, `write` and `read`, all required."""
    request.required("exchange", "write", "read")
    existing = await _topic_permissions_in_path(request)
    change = {name: request.text(name) for name in ("exchange", "write", "read")}
    await _set(request, "topic_permissions.set", {"vhost": request.vhost, **change})
    return NO_CONTENT if existing else CREATED


async def delete_topic_permissions(request: Request) -> Answer:
    """Delete the topic permissions of a user in a vhost, of all exchanges or of the one in the path."""
    found = await _topic_permissions_in_path(request)
    if not found:
        raise not_found()
    change: Row = {"user": request.path["user"], "vhost": request.vhost}
    if "exchange" in request.path:
        change["exchange"] = found[0]["exchange"]
    await request.change_users("topic_permissions.clear", change)
    return NO_CONTENT
