"""Parameters of vhosts, and global parameters."""

from __future__ import annotations

from typing import Final

from leveret.management.http.control import Row
from leveret.management.http.errors import not_authorised, not_found
from leveret.management.http.global_parameters import check_raw_change, is_visible
from leveret.management.http.lists import columns_of, select
from leveret.management.http.request import CREATED, NO_CONTENT, Answer, Request
from leveret.management.json_values import Json

# Components that restrict the users of a vhost: only administrators change them.
_RESTRICTIONS: Final = ("operator_policy", "vhost-limits")


def _address(request: Request) -> Row:
    return {"component": request.path["component"], "vhost": request.vhost, "name": request.name}


def _check_change(request: Request) -> None:
    if request.path["component"] in _RESTRICTIONS and not request.identity.is_administrator():
        raise not_authorised("Not administrator user")


def _value(request: Request) -> Json:
    value: Json = request.required("value")[0]
    return value


async def list_all(request: Request) -> Answer:
    return await _list(request)


async def list_of_component(request: Request) -> Answer:
    return await _list(request, component=request.path["component"])


async def list_in_vhost(request: Request) -> Answer:
    return await _list(request, component=request.path["component"], vhost=request.vhost)


async def _list(request: Request, **filters: str) -> Answer:
    found = await request.control.list("parameters.list", filters)
    return Answer(body=select([item for item in found if request.identity.sees(item["vhost"])], request.query))


async def show(request: Request) -> Answer:
    return Answer(body=columns_of(await request.get("parameters.show", _address(request)), request.query))


async def put(request: Request) -> Answer:
    """Add or replace a parameter: `value` is required."""
    _check_change(request)
    stored = await request.change("parameters.set", _address(request) | {"value": _value(request)})
    return CREATED if stored["created"] else NO_CONTENT


async def delete(request: Request) -> Answer:
    _check_change(request)
    await request.get("parameters.show", _address(request))
    await request.change("parameters.delete", _address(request))
    return NO_CONTENT


async def list_global(request: Request) -> Answer:
    found = await request.control.call("global_parameters.list")
    return Answer(body=select([item for item in found if is_visible(request.identity, item)], request.query))


async def show_global(request: Request) -> Answer:
    found = await request.get("global_parameters.show", {"name": request.name})
    if not is_visible(request.identity, found):
        raise not_found()
    return Answer(body=columns_of(found, request.query))


async def put_global(request: Request) -> Answer:
    """Add or replace a global parameter: `value` is required."""
    check_raw_change(request.identity, request.name)
    stored = await request.change("global_parameters.set", {"name": request.name, "value": _value(request)})
    return CREATED if stored["created"] else NO_CONTENT


async def delete_global(request: Request) -> Answer:
    check_raw_change(request.identity, request.name)
    await request.get("global_parameters.show", {"name": request.name})
    await request.change("global_parameters.delete", {"name": request.name})
    return NO_CONTENT
