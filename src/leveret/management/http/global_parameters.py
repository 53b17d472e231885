"""Access to global parameters: those that hold an object of one vhost are for the users of that vhost.

Alert rules and payload schemas are such objects. One without a vhost applies to all vhosts.
"""

from __future__ import annotations

from typing import Final

from leveret.broker.parameters import CLUSTER_NAME
from leveret.management.http import alerts
from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request, not_authorised, not_found
from leveret.management.http.identity import Identity
from leveret.management.http.places import STORED, Kind, user_of
from leveret.management.http.request import CREATED, NO_CONTENT, Answer, Request
from leveret.management.json_values import Json
from leveret.security import roles

ALERT_RULE: Final = alerts.PREFIX
PAYLOAD_SCHEMA: Final = "payload-schema."
MARK: Final = "mark."
# The prefixes of the names of parameters that hold objects, and the paths of those objects.
_PATHS: Final = {ALERT_RULE: "alert-rules", PAYLOAD_SCHEMA: "payload-schemas", MARK: "marks"}
_OF_VHOSTS: Final = (ALERT_RULE, PAYLOAD_SCHEMA)


def is_visible(identity: Identity, item: Row) -> bool:
    """Return whether a user with access to global parameters sees one of them."""
    if item["name"] == roles.PARAMETER:
        return identity.is_administrator()
    if not item["name"].startswith(_OF_VHOSTS):
        return True
    return sees(identity, _vhost_of(item))


def sees(identity: Identity, vhost: str | None) -> bool:
    """Return whether a user sees an object of a vhost, or of all vhosts if None."""
    return vhost is None or identity.sees(vhost)


def check_raw_change(identity: Identity, name: str) -> None:
    """Raise `HttpError` (401) unless a user may change a global parameter as it is stored."""
    if identity.is_administrator():
        return
    if name in (roles.PARAMETER, CLUSTER_NAME):
        raise not_authorised("Not administrator user")
    for prefix, path in _PATHS.items():
        if name.startswith(prefix):
            raise not_authorised(
                f"only administrators may change global parameter '{name}' as it is stored; expected a request to"
                f" /api/leveret/{path}/{name.removeprefix(prefix)}"
            )


async def store(request: Request, prefix: str, vhost: str | None, value: Row, limit: Kind) -> Answer:
    """Add or replace the object that the path names. The user who adds it is stored with it.

    Args:
        request: The request.
        prefix: The prefix of the names of such objects.
        vhost: The vhost of the object; None for all.
        value: The object.
        limit: The maximum number of such objects, of which each user who is no administrator has a share.

    Raises:
        HttpError: The user may not use the vhost (401), or there are too many objects (400).
    """
    name = prefix + request.name
    _check_change(request.identity, vhost)
    await request.occupy(STORED)
    items = await request.control.call("global_parameters.list", {"prefix": prefix})
    existing = next((item for item in items if item["name"] == name), None)
    user: str | None = request.identity.name
    if existing is None:
        _check_number(request.identity, items, limit)
    elif request.identity.may_use(_vhost_of(existing)):
        user = user_of(existing)
    else:
        raise not_authorised(f"the name '{request.name}' is in use in a vhost that the user may not use; expected another")
    if user is not None:
        value = value | {"user": user}
    stored = await request.change("global_parameters.set", {"name": name, "value": value})
    return CREATED if stored["created"] else NO_CONTENT


async def delete(request: Request, prefix: str) -> Answer:
    """Delete the object that the path names. Raises `HttpError` (401, 404) unless the user may use its vhost."""
    name = prefix + request.name
    await request.occupy(STORED)  # another vhost must not get the name before it is deleted
    existing = await request.get("global_parameters.show", {"name": name})
    vhost = _vhost_of(existing)
    if not sees(request.identity, vhost):
        raise not_found()
    _check_change(request.identity, vhost)
    await request.change("global_parameters.delete", {"name": name})
    return NO_CONTENT


def _check_change(identity: Identity, vhost: str | None) -> None:
    if identity.may_use(vhost):
        return
    if vhost is None:
        raise not_authorised("only administrators may change an object of all vhosts; expected one with 'vhost'")
    raise not_authorised(f"the user has no permissions for vhost '{vhost[:255]}'")


def _check_number(identity: Identity, items: list[Row], limit: Kind) -> None:
    if len(items) >= limit.total:
        raise bad_request(f"{limit.total} {limit.name} exist, the maximum; delete one first")
    own = sum(user_of(item) == identity.name for item in items)
    if own >= limit.of_user and not identity.is_administrator():
        raise bad_request(
            f"{own} {limit.name} of user '{identity.name}' exist, the maximum of a user who is no administrator; delete one"
            " first, or ask an administrator to add it"
        )


def _vhost_of(item: Row) -> str | None:
    """Return the vhost of the object in a global parameter; None if it is for all vhosts, or invalid."""
    value: Json = item["value"]
    vhost = value.get("vhost") if isinstance(value, dict) else None
    return vhost if isinstance(vhost, str) else None
