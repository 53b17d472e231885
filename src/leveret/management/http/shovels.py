"""Shovels, with the keys of RabbitMQ's plugin `rabbitmq_shovel_management`."""

from __future__ import annotations

import time
from typing import Final

from leveret.management.descriptions import TERMINATED
from leveret.management.http.control import Row
from leveret.management.http.lists import columns_of, select
from leveret.management.http.request import NO_CONTENT, Answer, Request

LIST: Final = "shovels.list"
# RabbitMQ gives local time.
_TIME_FORMAT: Final = "%Y-%m-%d %H:%M:%S"
# The keys of an end. As in RabbitMQ, the answer has those that the definition sets.
_ENDS: Final = tuple(
    f"{side}_{key}"
    for side in ("src", "dest")
    for key in ("uri", "protocol", "queue", "exchange", "exchange_key", "address")
)
_NUMBERS: Final = ("published", "forwarded", "pending", "remaining", "restarts", "error")


def _show(request: Request, item: Row) -> Row:
    row = {
        "node": request.settings.node,
        "timestamp": time.strftime(_TIME_FORMAT, time.localtime(item["changed"])),
        **{key: item[key] for key in ("name", "vhost", "type", "state", "user")},
        **{key: item[key] for key in _ENDS if item[key]},
        **{key: item[key] for key in _NUMBERS},
    }
    if item["state"] == TERMINATED:
        row["reason"] = item["error"]
    return row


async def list_all(request: Request) -> Answer:
    found = await request.control.list(LIST)
    return Answer(
        body=select([_show(request, item) for item in found if request.identity.sees(item["vhost"])], request.query)
    )


async def list_in_vhost(request: Request) -> Answer:
    found = await request.control.list(LIST, {"vhost": request.vhost})
    return Answer(body=select([_show(request, item) for item in found], request.query))


async def show(request: Request) -> Answer:
    found = await request.get("shovels.show", _address(request))
    return Answer(body=columns_of(_show(request, found), request.query))


async def delete(request: Request) -> Answer:
    """Delete the parameter of a dynamic shovel."""
    address = {"component": "shovel", **_address(request)}
    await request.get("parameters.show", address)
    await request.change("parameters.delete", address)
    return NO_CONTENT


async def restart(request: Request) -> Answer:
    """Close both connections of a shovel, and start it again."""
    await request.get("shovels.show", _address(request))
    await request.change("shovels.restart", _address(request))
    return NO_CONTENT


def _address(request: Request) -> Row:
    return {"vhost": request.vhost, "name": request.name}
