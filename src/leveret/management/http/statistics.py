"""Statistics in RabbitMQ's shape: a counter or gauge with its rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leveret.management.http.control import Row
from leveret.management.http.measured import LENGTHS, MESSAGES, ZERO, Rates

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
# `garbage_collection` of a queue, connection or channel: statistics of Erlang's, which are always 0.
GARBAGE_COLLECTION: Final[Row] = dict.fromkeys(
    ("fullsweep_after", "max_heap_size", "min_bin_vheap_size", "min_heap_size", "minor_gcs"), 0
)


def deduplication(item: Row) -> Row:
    """Return the keys that only queues and exchanges with deduplication have."""
    if not item["deduplicates"]:
        return {}
    return {"deduplication_keys": item["deduplication_keys"], "dropped_duplicates": item["dropped_duplicates"]}


def with_rates(values: Row, rates: Rates | None = None) -> Row:
    """Return statistics, each followed by its details."""
    result: Row = {}
    for name, value in values.items():
        result[name] = value
        result[f"{name}_details"] = ZERO if rates is None else rates.details(name, value)
    return result


def message_stats(values: Mapping[str, int], rates: Rates | None = None, names: tuple[str, ...] = MESSAGE_STATS) -> Row:
    """Return `message_stats` with these values; the others are 0."""
    if names is MESSAGE_STATS:
        changes = _changes(rates, MESSAGES)
        if changes is not None:
            return {**_NO_STATS, **values, **changes}
    return with_rates({name: values.get(name, 0) for name in names}, rates)


_NO_STATS: Final = with_rates(dict.fromkeys(MESSAGE_STATS, 0))
_NO_LENGTH_RATES: Final = dict.fromkeys(
    ("messages_details", "messages_ready_details", "messages_unacknowledged_details"), ZERO
)


def stats_of(totals: dict[str, int]) -> dict[str, int]:
    """Return the values of `message_stats` of the totals of a vhost."""
    found: dict[str, int] = {name: totals[name] for name in MESSAGE_STATS if name in totals}
    found["deliver_get"] = sum(totals[name] for name in ("deliver", "deliver_no_ack", "get", "get_no_ack"))
    return found


def queue_totals(ready: int, unacked: int, rates: Rates | None = None) -> Row:
    """Return the number of messages, ready and unacked, with rates."""
    values = {"messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked}
    changes = _changes(rates, LENGTHS)
    return with_rates(values, rates) if changes is None else {**values, **_NO_LENGTH_RATES, **changes}


def _changes(rates: Rates | None, family: str) -> Mapping[str, Row] | None:
    return {} if rates is None else rates.changes(family)
