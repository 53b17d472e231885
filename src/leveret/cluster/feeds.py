"""Changes, trace points and log records of all processes, which other processes of the broker read periodically."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Final

import msgspec

from leveret.cluster.calls import PART, RESULT, TIMEOUT, ShardUnavailable, items_of
from leveret.cluster.front import Front
from leveret.cluster.requests import FrontCall
from leveret.cluster.shards import Shard
from leveret.cluster.totals import NodeState, merge_nodes
from leveret.management.control_socket import encode_list
from leveret.management.feed import Change
from leveret.management.json_values import encode_json
from leveret.management.telemetry.points import Point

# Each shard counts the ids of its queues from 1. Those of a shard have its number in the bits from this one on, so that the
# ids of the first shard stay as they are in its store, and all fit into the 53 bits that JavaScript's numbers keep.
_SHARD_BITS: Final = 46
_QUEUE: Final = re.compile(rb'\["(queue(?:\.[a-z]+)?)",(\d+),')
_BEGIN: Final = b'["begin",'
_NODE: Final = b'["node",'
_END: Final = b'["end",'


class _NodeChange(msgspec.Struct, array_like=True):
    kind: str
    key: None
    value: NodeState


def queue_id(shard: int, number: int) -> int:
    """Return the id of a queue of a shard, which no queue of another shard has."""
    return (shard << _SHARD_BITS) + number


async def changes(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Yield what has changed in the shards, and the new records of the audit log, as the changes of one broker.

    The objects of a shard that is not ready are left out, and the change `node` says so. When it is ready again, or another
    one is not, the reader has to begin again, with a new name.
    """
    shards = front.ready()
    own = await front.admin.call(call.name, call.arguments, call.principal)
    assert isinstance(own, Iterator)
    audited: list[bytes] = []
    is_first, own_node = False, None
    for change in own:
        if change is None:
            continue
        assert isinstance(change, Change)
        if change.kind == "begin":
            is_first = change.value
        elif change.kind == "audit":
            audited.append(encode_json(change))
        elif change.kind == "node":
            own_node = msgspec.convert(change.value, NodeState, from_attributes=True)
    assert own_node is not None
    front.readers.check(call.fields.reader, is_first, shards)
    yield encode_list("part", [encode_json(Change(kind="begin", value=is_first))])
    nodes: dict[int, NodeState] = {}
    for shard in shards:
        async with aclosing(front.calls.lines(shard, call.line(), TIMEOUT)) as lines:
            async for line in lines:
                if not line.startswith((PART, RESULT)):
                    yield line
                    return
                items = []
                for item in map(bytes, items_of(line)):
                    if item.startswith(_BEGIN):
                        _check_begin(shard, item, is_first)
                    elif item.startswith(_NODE):
                        nodes[shard.number] = msgspec.json.decode(item, type=_NodeChange).value
                    elif not item.startswith(_END):
                        items.append(_qualified(shard, item))
                if items:
                    yield encode_list("part", items)
    node = encode_json(Change(kind="node", value=merge_nodes(own_node, nodes, front.shards)))
    yield encode_list("result", [*audited, node, encode_json(Change(kind="end"))])


def _check_begin(shard: Shard, item: bytes, is_first: bool) -> None:
    """Raise `ShardUnavailable` if a shard does not know the reader that others know: the reader has to begin again."""
    if msgspec.json.decode(item, type=Change).value != is_first:
        raise ShardUnavailable(f"shard {shard.number} was restarted; begin with a new reader")


def _qualified(shard: Shard, item: bytes) -> bytes:
    """Return a change with an id of a queue that is unique among all shards."""
    found = _QUEUE.match(item)
    if found is None or not shard.number:
        return item
    return b'["%s",%d,%s' % (found[1], queue_id(shard.number, int(found[2])), item[found.end() :])


async def take_traces(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Yield the trace points of all shards. A message stays in its shard, where its points are in the order of time."""
    async with aclosing(front.concatenate(call, _qualified_points)) as lines:
        async for line in lines:
            yield line


def _qualified_points(shard: Shard, items: bytes) -> bytes:
    """Return trace points with ids of queues that are unique among all shards."""
    points = msgspec.json.decode(items, type=list[Point])
    for point in points:
        if point.queue:
            point.queue = queue_id(shard.number, point.queue)
    return msgspec.json.encode(points)


async def read_log(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Yield the next log records of all processes."""
    await front.logs.read(front.ready())
    async with aclosing(front.here(call)) as lines:
        async for line in lines:
            yield line
