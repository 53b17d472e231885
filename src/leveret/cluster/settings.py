"""The settings of a shard's process, and the configurations of the front and the shards."""

from __future__ import annotations

from typing import Final

import msgspec

from leveret.cluster.layout import shard_path
from leveret.config import Config
from leveret.config.model import TlsConfig
from leveret.node.composition import memory_limit
from leveret.storage.cluster import Observed

# Seconds between counts of the channels and connections of users, which shards and nodes exchange.
COUNT_INTERVAL: Final = 1.0
# Bytes of disk reserved for the log of the front, which has no messages.
_FRONT_RESERVE: Final = 1 << 20
# Maximum seconds between two signs of life of a shard, and their number in `cluster.shard_timeout`.
_BEAT_INTERVAL: Final = 1.0
_BEATS: Final = 5


def beat_interval(timeout: float) -> float:
    """Return the seconds between two signs of life of a shard, for a value of `cluster.shard_timeout`."""
    return min(_BEAT_INTERVAL, timeout / _BEATS) if timeout else _BEAT_INTERVAL


class ShardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a shard's process.

    Attributes:
        number: The number of the shard.
        descriptor: The file descriptor of its end of the link.
        config: The configuration of the shard.
        config_name: The name of the configuration in messages.
        control: The path of the control socket.
        asks_shared: Whether the front needs the shared records in the log of the shard.
        observed: The state of the shard in PostgreSQL, which has no living owner; None if that is unknown.
        accept_missing: As for `Salvage`; also `drop_damaged`.
    """

    number: int
    descriptor: int
    config: Config
    config_name: str
    control: str
    asks_shared: bool
    accept_missing: bool
    drop_damaged: bool
    observed: Observed | None = None


def shard_config(config: Config, number: int) -> Config:
    """Return the configuration of a shard: its own data directory, its share of the memory, and no listeners."""
    path = shard_path(config.server.data_path, number)
    return msgspec.structs.replace(
        _with_memory_share(config), server=msgspec.structs.replace(config.server, data_dir=str(path)), tls=TlsConfig()
    )


def front_config(config: Config) -> Config:
    """Return the configuration of the front. The shards raise the alarm about the disk, which blocks publishers."""
    reserve = min(config.storage.reserve, _FRONT_RESERVE)
    shared = _with_memory_share(config)
    return msgspec.structs.replace(
        shared,
        storage=msgspec.structs.replace(config.storage, reserve=reserve),
        limits=msgspec.structs.replace(shared.limits, disk_free=0),
    )


def _with_memory_share(config: Config) -> Config:
    """Return a configuration whose memory limit is the share of one shard. The front, which needs little, gets the same."""
    limits = config.limits
    limit = memory_limit(limits.memory_high_watermark) / config.cluster.shards
    return msgspec.structs.replace(config, limits=msgspec.structs.replace(limits, memory_high_watermark=limit))
