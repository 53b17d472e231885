"""Marks in charts, such as deployments. A mark is a global parameter of the broker, so that it survives restarts."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from leveret._text import field_error
from leveret.management.http.control import Row
from leveret.management.http.errors import BrokerRefused, bad_request
from leveret.management.http.global_parameters import MARK as PREFIX
from leveret.management.http.lists import select
from leveret.management.http.places import user_of
from leveret.management.http.request import CREATED, NO_CONTENT, Answer, Request

# Maximum number of marks. A further one replaces the oldest of the user with the most.
MAX_MARKS: Final = 100
_MAX_NAME: Final = 200


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A mark. `time` is in milliseconds of Unix time; without it, the time of the request."""

    time: Annotated[int, Meta(ge=0, le=10**14)] | None = None


def read_marks(parameters: list[Row]) -> dict[str, int]:
    """Return the times of marks in global parameters by their names, the oldest first. Others are ignored."""
    found: dict[str, int] = {}
    for item in parameters:
        if item["name"].startswith(PREFIX):
            try:
                at = msgspec.convert(item["value"], Mark).time
            except msgspec.ValidationError:
                continue
            if at is not None:
                found[item["name"].removeprefix(PREFIX)] = at
    return dict(sorted(found.items(), key=lambda mark: mark[1]))


async def list_marks(request: Request) -> Answer:
    """List the marks, the oldest first."""
    marks = await _marks(request)
    return Answer(body=select([{"name": name, "time": at} for name, at in marks.items()], request.query, is_ordered=True))


async def put(request: Request) -> Answer:
    """Set a mark, by default at the current time."""
    name = request.name
    if not name or len(name) > _MAX_NAME:
        raise bad_request(f"the name of a mark has {len(name)} characters; expected 1 to {_MAX_NAME}")
    try:
        at = msgspec.convert(request.body(), Mark).time
    except msgspec.ValidationError as error:
        raise bad_request(f"invalid mark: {field_error(error)}") from None
    value = {"time": int(1000 * time.time()) if at is None else at, "user": request.identity.name}
    stored = await request.change("global_parameters.set", {"name": PREFIX + name, "value": value})
    for surplus in _surplus(await request.control.call("global_parameters.list", {"prefix": PREFIX}), name):
        await _delete(request, surplus)
    return CREATED if stored["created"] else NO_CONTENT


async def delete(request: Request) -> Answer:
    """Delete a mark."""
    await request.get("global_parameters.show", {"name": PREFIX + request.name})
    await _delete(request, request.name)
    return NO_CONTENT


def _surplus(parameters: list[Row], name: str) -> list[str]:
    """Return the marks to delete: the oldest of the user with the most marks, until there are few enough."""
    users = {item["name"].removeprefix(PREFIX): user_of(item) for item in parameters}
    marks = list(read_marks(parameters))
    surplus = []
    while len(marks) > MAX_MARKS:
        numbers = Counter(users[mark] for mark in marks)
        most = max(numbers.values())
        oldest = next(mark for mark in marks if mark != name and numbers[users[mark]] == most)
        marks.remove(oldest)
        surplus.append(oldest)
    return surplus


async def _marks(request: Request) -> dict[str, int]:
    return read_marks(await request.control.call("global_parameters.list", {"prefix": PREFIX}))


async def _delete(request: Request, name: str) -> None:
    """Delete a mark, unless another request has deleted it."""
    try:
        await request.change("global_parameters.delete", {"name": PREFIX + name})
    except BrokerRefused as refused:
        if refused.condition != "not-found":
            raise
