"""`leveret cluster`."""

from __future__ import annotations

import click

from leveret.cli.cluster_database import import_data
from leveret.cli.listing import listing
from leveret.cli.output import Columns
from leveret.cli.remote import current, remote_options

_NODES: Columns = (
    ("name", "node"),
    ("state", "state"),
    ("address", "address"),
    ("version", "version"),
    ("shards", "shards", lambda shards: ", ".join(map(str, shards))),
    ("here", "here"),
)
# Seconds for a node to move its shards away.
_DRAIN_TIMEOUT = 90.0


@listing("List the nodes of a cluster, and move shards between them.")
def cluster() -> None:
    """List the nodes with the shards that they own."""
    current().show_list("nodes.list", _NODES, ("name",))


@cluster.command("move")
@click.argument("shard", type=int)
@click.argument("node")
@remote_options
def move(shard: int, node: str) -> None:
    """Move SHARD to NODE. Clients of its vhosts reconnect."""
    current().call("nodes.move", shard=shard, node=node)
    click.echo(f"moved shard {shard} to node '{node}'")


@cluster.command("drain")
@click.argument("node")
@click.option("--off", is_flag=True, help="Let the node own shards again.")
@remote_options
def drain(node: str, off: bool) -> None:
    """Move all shards away from NODE, which claims none until `--off` or its restart."""
    current(_DRAIN_TIMEOUT).call("nodes.drain", name=node, on=not off)
    click.echo(f"node '{node}' owns shards again" if off else f"node '{node}' owns no shards")


@cluster.command("forget")
@click.argument("node")
@remote_options
def forget(node: str) -> None:
    """Remove NODE, which is gone, from the list."""
    current().call("nodes.forget", name=node)
    click.echo(f"forgot node '{node}'")


cluster.add_command(import_data)
