"""The state of all processes as that of one broker."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from leveret.broker.log import AWAY, FAILED, FULL, OK
from leveret.cluster.calls import ShardUnavailable
from leveret.cluster.front import Front
from leveret.cluster.requests import FrontCall, encode_request
from leveret.cluster.shards import Shard, Shards
from leveret.config.flat import flat_settings
from leveret.management.control_socket import encode_result
from leveret.management.descriptions import Histogram, Performance, ProcessInfo
from leveret.management.operations.cluster import ClusterStatus
from leveret.management.operations.nodes import NodeDetails
from leveret.management.operations.shards import READY, ShardInfo
from leveret.management.operations.status import Health, Settings, Status
from leveret.management.structs import Reply

# The states of a log, the best one first.
_STATES: Final = (OK, FULL, AWAY, FAILED)
_SHARDS: Final = encode_request({"v": 1, "call": "shards.list"})
# Seconds for a shard to answer a health check. Probes wait for 5 seconds by default.
HEALTH_TIMEOUT: Final = 4.0
# The label of the front among the shards.
FRONT: Final = "front"

Statistics = Mapping[str, Any]


class NodeState(Reply, kw_only=True):
    """The change `node` of `statistics.changes`: the state of a process, or of all processes together.

    Attributes:
        overflow: Bytes of messages that are paged out.
        churn: `Churn.counts` of a single process.
        processes: The processes by the name of their shard; not set for a single process.
        shards: The shards, not set for a single process.
        nodes: The nodes, only set for a node, as the following one.
        cluster: The state of the cluster.
    """

    process: ProcessInfo
    alarm: str
    performance: Performance
    log: dict[str, Any]
    overflow: int
    churn: dict[str, int] = {}
    processes: dict[str, NodeState] | msgspec.UnsetType = msgspec.UNSET
    shards: list[ShardInfo] | msgspec.UnsetType = msgspec.UNSET
    nodes: list[NodeDetails] | msgspec.UnsetType = msgspec.UNSET
    cluster: ClusterStatus | msgspec.UnsetType = msgspec.UNSET


async def status(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Yield the state of all processes. Totals are those of the shards that are ready; `shards` says which are not."""
    own = await front.admin.call(call.name, call.arguments, call.principal)
    assert isinstance(own, Status)
    shards = front.ready()
    outcomes = await front.calls.outcomes(shards, call.line(), Status)
    found = {shard.number: outcome for shard, outcome in zip(shards, outcomes, strict=True) if isinstance(outcome, Status)}
    states = list(found.values())
    parts = [own, *states]
    merged = Status(
        **_process(own, parts, len(front.shards.all)),
        alarm=_alarms(own.alarm, {number: state.alarm for number, state in found.items()}),
        vhosts=len(front.vhost_names()),
        connections=sum(state.connections for state in states),
        exchanges=sum(state.exchanges for state in states),
        queues=sum(state.queues for state in states),
        consumers=sum(state.consumers for state in states),
        ready=sum(state.ready for state in states),
        unacked=sum(state.unacked for state in states),
        queue_memory=sum(state.queue_memory for state in states),
        unindexed_queues=sum(state.unindexed_queues for state in states),
        indexed=min((state.indexed for state in states), default=1.0),
        unsealed=next((state.unsealed for state in states if state.unsealed), ""),
        log=_log([own.log, *(state.log for state in states)]),
        shards=[
            _info(shard, found[shard.number].connections, found[shard.number].memory)
            if shard.number in found
            else _unavailable(shard)
            for shard in front.shards.all
        ],
        cluster=front.shards.cluster_status(),
    )
    async for line in encode_result(merged):
        yield line


async def health(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Yield the health of all processes. A shard that does not answer makes the broker unhealthy."""
    own = await front.admin.call(call.name, call.arguments, call.principal)
    assert isinstance(own, Health)
    shards = front.shards.used
    outcomes = await front.calls.outcomes(shards, call.line(), Health, HEALTH_TIMEOUT)
    found = {shard.number: outcome for shard, outcome in zip(shards, outcomes, strict=True) if isinstance(outcome, Health)}
    problems = [(own.state, own.reason)]
    for shard, outcome in zip(shards, outcomes, strict=True):
        if isinstance(outcome, ShardUnavailable):
            problems.append((FAILED, str(outcome)))
        else:
            problems.append((outcome.state, outcome.reason and f"shard {shard.number}: {outcome.reason}"))
    states = list(found.values())
    worst = max((state for state, _ in problems), key=_STATES.index)
    merged = Health(
        alarm=_alarms(own.alarm, {number: state.alarm for number, state in found.items()}),
        state=worst,
        reason="; ".join(reason for state, reason in problems if state == worst and reason),
        listeners=own.listeners,
        connections=sum(state.connections for state in states),
        max_connections=own.max_connections,
        vhosts=len(front.vhost_names()),
        unindexed_queues=sum(state.unindexed_queues for state in states),
        indexed=min((state.indexed for state in states), default=1.0),
        draining=front.shards.is_draining,
        isolated=front.shards.is_isolated,
    )
    async for line in encode_result(merged):
        yield line


async def list_shards(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Yield the list of the shards."""
    shards = front.ready()
    outcomes = await front.calls.outcomes(shards, _SHARDS, list[ShardInfo])
    found = {
        shard.number: outcome[0]
        for shard, outcome in zip(shards, outcomes, strict=True)
        if not isinstance(outcome, ShardUnavailable)
    }
    items = [
        _info(shard, found[shard.number].connections, found[shard.number].memory)
        if shard.number in found
        else _unavailable(shard)
        for shard in front.shards.all
    ]
    async for line in encode_result(iter(items)):
        yield line


def _info(shard: Shard, connections: int, memory: int) -> ShardInfo:
    return ShardInfo(
        number=shard.number,
        state=shard.state,
        pid=max(shard.pid, 0),
        vhosts=sorted(shard.vhosts),
        connections=connections,
        memory=memory,
        restarts=shard.restarts,
        node=shard.node,
        hangs=shard.hangs,
        epoch=shard.epoch,
        takeovers=shard.takeovers,
        takeover_age=shard.takeover_age,
        takeover_seconds=shard.takeover_seconds,
    )


def _unavailable(shard: Shard) -> ShardInfo:
    """Describe a shard that does not answer. It may still count as ready when that was noticed."""
    info = _info(shard, 0, 0)
    info.state = "restarting" if shard.state == READY else shard.state
    return info


def merge_nodes(own: NodeState, shards: Mapping[int, NodeState], everything: Shards) -> NodeState:
    """Return the states of all processes as one, with each of them.

    Args:
        own: The state of this process.
        shards: The states of shards by their numbers.
        everything: All shards, ready or not.
    """
    all_shards = everything.all
    parts = [own, *shards.values()]
    return NodeState(
        process=ProcessInfo(**_process(own.process, [part.process for part in parts], len(all_shards))),
        alarm=_alarms(own.alarm, {number: part.alarm for number, part in shards.items()}),
        performance=Performance(
            turns=_sum([part.performance.turns for part in parts]),
            loop_cpu=sum(part.performance.loop_cpu for part in parts),
            commits=_sum([part.performance.commits for part in parts]),
        ),
        log=_log([part.log for part in parts]),
        overflow=sum(part.overflow for part in parts),
        processes={FRONT: own, **{str(number): part for number, part in shards.items()}},
        shards=[
            _info(shard, shard.connections, shards[shard.number].process.memory)
            if shard.number in shards
            else _unavailable(shard)
            for shard in all_shards
        ],
        nodes=everything.nodes(),
        cluster=everything.cluster_status(),
    )


def _process(own: ProcessInfo, parts: Sequence[ProcessInfo], shards: int) -> dict[str, Any]:
    """Return the fields of the process of a broker: those of the front, with the sums of all processes.

    Each shard has an equal share of the memory limit, and the front, which needs little, has the same limit.
    """
    return {
        **{name: getattr(own, name) for name in ProcessInfo.__struct_fields__},
        "memory": sum(part.memory for part in parts),
        "memory_limit": own.memory_limit * shards,
        "slow_turns": sum(part.slow_turns for part in parts),
        "longest_turn": max(part.longest_turn for part in parts),
    }


def _alarms(own: str, shards: Mapping[int, str]) -> str:
    """Return the alarms of all processes: once if all have the same one, otherwise with the numbers of the shards."""
    if all(alarm == own for alarm in shards.values()):
        return own
    found = [own] if own else []
    return "; ".join(found + [f"shard {number}: {alarm}" for number, alarm in shards.items() if alarm])


def _log(logs: Iterable[Statistics]) -> dict[str, Any]:
    """Return the statistics of several logs as those of one: the worst state, and the sums of numbers."""
    merged: dict[str, Any] = {}
    for log in logs:
        if "state" in merged and _STATES.index(log["state"]) > _STATES.index(merged["state"]):
            merged |= {name: log[name] for name in ("state", "reason") if name in log}
        for name, value in log.items():
            if name not in merged:
                merged[name] = value
            elif not isinstance(value, str):
                merged[name] += value
    return merged


def _sum(histograms: Sequence[Histogram]) -> Histogram:
    return Histogram(
        counts=[sum(counts) for counts in zip(*(one.counts for one in histograms), strict=True)],
        total=sum(one.total for one in histograms),
    )


async def show_config(front: Front, call: FrontCall) -> AsyncGenerator[bytes, None]:
    """Yield the configuration of the broker. This process has another one, with its share of the limits."""
    async for line in encode_result(Settings(settings=flat_settings(front.shards.config))):
        yield line
