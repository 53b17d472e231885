"""Backups of a broker of several processes.

Each process copies its own log, to the place in the backup that it has in the data directory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, Final

from leveret.broker.errors import BrokerError
from leveret.cluster.calls import TIMEOUT
from leveret.cluster.front import Front
from leveret.cluster.layout import SHARED, shard_path
from leveret.cluster.objects import record
from leveret.cluster.requests import FrontCall
from leveret.cluster.shards import Shard
from leveret.management.control_socket import encode_result
from leveret.management.operations.backup import BackupProgress

_END: Final = "backup.end"


async def start(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Start a backup in all processes, or in none."""
    try:
        progress = await _progress(front, call)
    except BrokerError:
        await _end(front, call)
        raise
    await record(front, call, progress)
    async for line in encode_result(progress):
        yield line


async def show(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Yield the progress of a backup, and renew it in all processes."""
    async for line in encode_result(await _progress(front, call)):
        yield line


async def end(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """End a backup in all processes that are ready; it has ended in others."""
    await _end(front, call)
    await record(front, call, None)
    async for line in encode_result(None):
        yield line


async def _progress(front: Front, call: FrontCall) -> BackupProgress:
    """Execute an operation in all processes, and return the parts of their progress. Raises `BrokerError`."""
    own = await front.admin.call(call.name, _own_fields(call), call.principal, is_audited=False)
    assert isinstance(own, BackupProgress)
    requests = [(shard, call.derived(call.name, fields, is_audited=False)) for shard, fields in _shard_fields(front, call)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_outcome(front, shard, request)) for shard, request in requests]
    parts = []
    for task in tasks:
        outcome = task.result()
        if isinstance(outcome, BrokerError):
            raise outcome
        parts += outcome.parts
    return BackupProgress(parts=[*parts, *own.parts])


async def _outcome(front: Front, shard: Shard, request: bytes) -> BackupProgress | BrokerError:
    try:
        return await front.calls.call(shard, request, BackupProgress, TIMEOUT)
    except BrokerError as error:
        return error


async def _end(front: Front, call: FrontCall) -> None:
    """End a backup in the processes that are ready. The others have no backup, or end it without a renewal."""
    outcome = {"complete": False}
    await front.admin.call(_END, _own_fields(call) | outcome, call.principal, is_audited=False)
    ready = front.ready()
    async with asyncio.TaskGroup() as group:
        for shard, fields in _shard_fields(front, call):
            if shard in ready:
                group.create_task(_try_to_end(front, shard, call.derived(_END, fields | outcome, is_audited=False)))


async def _try_to_end(front: Front, shard: Shard, request: bytes) -> None:
    with contextlib.suppress(BrokerError):
        await front.calls.call(shard, request, type(None), TIMEOUT)


def _own_fields(call: FrontCall) -> dict[str, Any]:
    return {"directory": str(Path(call.fields.directory) / SHARED)}


def _shard_fields(front: Front, call: FrontCall) -> Iterator[tuple[Shard, dict[str, Any]]]:
    for shard in front.shards.all:
        yield shard, {"directory": str(shard_path(Path(call.fields.directory), shard.number))}
