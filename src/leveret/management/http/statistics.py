"""Statistics in RabbitMQ's shape: a counter or gauge with its rate."""

from __future__ import annotations

from typing import Final

from leveret.management.http.control import Row

# Keys of `message_stats` of the overview, of vhosts, queues and channels.
MESSAGE_STATS: Final = (
    "ack",
    "confirm",
    "deliver",
    "deliver_get",
    "deliver_no_ack",
    "disk_reads",
    "disk_writes",
    "drop_unroutable",
    "get",
    "get_empty",
    "get_no_ack",
    "publish",
    "redeliver",
    "return_unroutable",
)
# Statistics of Erlang's garbage collection, which are always 0.
_GARBAGE_COLLECTION: Final = ("fullsweep_after", "max_heap_size", "min_bin_vheap_size", "min_heap_size", "minor_gcs")


def garbage_collection() -> Row:
    """Return `garbage_collection` of a queue, connection or channel."""
    return dict.fromkeys(_GARBAGE_COLLECTION, 0)


def rate(value: float = 0.0) -> Row:
    """Return the details of a statistic."""
    return {"rate": value}


def with_rates(values: Row) -> Row:
    """Return statistics, each followed by its details."""
    result: Row = {}
    for name, value in values.items():
        result[name] = value
        result[f"{name}_details"] = rate()
    return result


def message_stats(names: tuple[str, ...] = MESSAGE_STATS, **values: int) -> Row:
    """Return `message_stats` with these values; the others are 0."""
    return with_rates({name: values.get(name, 0) for name in names})


def queue_totals(ready: int, unacked: int) -> Row:
    """Return the number of messages, ready and unacked, with rates."""
    return with_rates({"messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked})
