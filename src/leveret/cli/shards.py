"""`leveret shards`."""

from __future__ import annotations

from leveret.cli.listing import listing
from leveret.cli.output import Columns, Item, show_json, show_table, size
from leveret.cli.remote import current

COLUMNS: Columns = (
    ("number", "shard"),
    ("state", "state"),
    ("node", "node"),
    ("pid", "pid"),
    ("connections", "connections"),
    ("memory", "memory", size),
    ("restarts", "restarts"),
    ("vhosts", "vhosts", ", ".join),
)


@listing("List the shards: the processes that serve the vhosts.")
def shards() -> None:
    """List the shards with their vhosts."""
    broker = current()
    found: list[Item] = broker.call("shards.list")
    if broker.as_json:
        show_json(found)
    else:
        # A broker of one machine has no nodes.
        show_table(found, [column for column in COLUMNS if column[0] != "node" or any(shard["node"] for shard in found)])
