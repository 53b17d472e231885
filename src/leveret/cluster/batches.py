"""Batches of changes to definitions: each change is made where its object is, in the order of the batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from itertools import groupby
from typing import Final

import msgspec

from leveret.broker.errors import BrokerError
from leveret.cluster.front import Front
from leveret.cluster.requests import FrontCall
from leveret.cluster.shards import Shard
from leveret.management.control_socket import encode_result
from leveret.management.operations.batches import Refusal, Refusals, check_number

# Changes of shared objects.
SHARED: Final = frozenset(
    (
        "users.set",
        "users.change",
        "user_limits.set",
        "permissions.set",
        "topic_permissions.set",
        "global_parameters.set",
    )
)
_ADD_VHOST: Final = "vhosts.add"
# Changes whose name is that of a vhost.
_OF_VHOSTS: Final = frozenset((_ADD_VHOST, "vhosts.change", "vhosts.trace"))
_APPLY: Final = "definitions.apply"


class _Change(msgspec.Struct):
    """A change whose values are not decoded, and so stay exactly as they are."""

    call: str
    arguments: msgspec.Raw


class _Batch(msgspec.Struct):
    changes: list[_Change]


class _Request(msgspec.Struct):
    arguments: _Batch


class _Object(msgspec.Struct):
    """The fields of a change that say where its object is."""

    name: str = ""
    vhost: str = "/"


async def run_batch(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Apply or check changes.

    Changes in shards are made at the same time, those of one shard in their order. Changes of shared objects wait for the
    changes before them, and the changes after them wait for them.
    """
    changes = msgspec.json.decode(call.original, type=_Request).arguments.changes
    check_number(len(changes))
    refused: list[Refusal] = []
    for is_shared, group in groupby(enumerate(changes), lambda one: one[1].call in SHARED):
        found = dict(group)
        refused += await _run_here(front, call, found) if is_shared else await _run_in_shards(front, call, found)
    async for line in encode_result(Refusals(refused=sorted(refused, key=lambda refusal: refusal.index))):
        yield line


async def _run_here(front: Front, call: FrontCall, changes: dict[int, _Change]) -> list[Refusal]:
    """Make changes of shared objects, by their index in the batch, and return those that were refused."""
    arguments = {
        "changes": [{"call": one.call, "arguments": msgspec.json.decode(one.arguments)} for one in changes.values()]
    }
    result = await front.admin.call(call.name, arguments, call.principal)
    assert isinstance(result, Refusals)
    if call.name == _APPLY:
        await front.shards.applied()
    return _numbered(result.refused, list(changes))


async def _run_in_shards(front: Front, call: FrontCall, changes: dict[int, _Change]) -> list[Refusal]:
    """Make changes in the shards of their vhosts, and return those that were refused."""
    by_shard: dict[int, dict[int, _Change]] = {}
    refused = await _prepare(front, changes) if call.name == _APPLY else []
    unprepared = {refusal.index for refusal in refused}
    with ExitStack() as placing:
        for index, change in changes.items():
            if index in unprepared:
                continue
            try:
                shard = _shard_of(front, call, change, placing)
                by_shard.setdefault(shard.number, {})[index] = change
            except BrokerError as error:
                refused.append(_refusal(index, error))
        for found in await asyncio.gather(
            *(_run_in_shard(front, call, front.shards.all[number], found) for number, found in by_shard.items())
        ):
            refused += found
        if call.name == _APPLY:
            indexes = {refusal.index for refusal in refused}
            for number, changed in by_shard.items():
                for index, change in changed.items():
                    if change.call == _ADD_VHOST and index not in indexes:
                        front.shards.note_vhost(front.shards.all[number], _object(change).name, exists=True)
            await front.shards.applied()
    return refused


async def _prepare(front: Front, changes: dict[int, _Change]) -> list[Refusal]:
    """Prepare the shards of new vhosts. Returns the vhosts whose shards do not start."""

    async def prepare(index: int, name: str) -> Refusal | None:
        try:
            await front.shards.prepare(name, None)
        except BrokerError as error:
            return _refusal(index, error)
        return None

    new = {index: _object(change).name for index, change in changes.items() if change.call == _ADD_VHOST}
    refused = await asyncio.gather(*(prepare(index, name) for index, name in new.items()))
    return [refusal for refusal in refused if refusal is not None]


async def _run_in_shard(front: Front, call: FrontCall, shard: Shard, changes: dict[int, _Change]) -> list[Refusal]:
    try:
        request = call.derived(call.name, _Batch(list(changes.values())))
        result = await front.calls.call(shard, request, Refusals)
    except BrokerError as error:
        return [_refusal(index, error) for index in changes]
    return _numbered(result.refused, list(changes))


def _shard_of(front: Front, call: FrontCall, change: _Change, placing: ExitStack) -> Shard:
    """Return the shard of a change. One with invalid fields gets any shard, which refuses it. Raises `BrokerError`."""
    where = _object(change)
    if change.call == _ADD_VHOST and call.name == _APPLY:
        return placing.enter_context(front.placing(where.name))
    return front.shard_of(where.name if change.call in _OF_VHOSTS else where.vhost)


def _object(change: _Change) -> _Object:
    try:
        return msgspec.json.decode(change.arguments, type=_Object)
    except msgspec.ValidationError:
        return _Object()


def _numbered(refused: list[Refusal], indexes: list[int]) -> list[Refusal]:
    """Return refused changes of a part of the batch with their indexes in the batch."""
    return [msgspec.structs.replace(refusal, index=indexes[refusal.index]) for refusal in refused]


def _refusal(index: int, error: BrokerError) -> Refusal:
    return Refusal(index=index, condition=error.condition, text=str(error))
