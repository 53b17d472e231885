"""`leveret shards`."""

from __future__ import annotations

from leveret.cli.listing import listing
from leveret.cli.output import Columns, size
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


@listing("List the shards: the processes that the vhosts are in.")
def shards() -> None:
    """List the shards with their vhosts."""
    current().show_list("shards.list", COLUMNS)
