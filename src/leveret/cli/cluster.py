"""`leveret cluster`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from leveret.cli.cluster_database import import_data, restored, upgrade
from leveret.cli.cluster_status import age, cluster_lines
from leveret.cli.failed import Failed
from leveret.cli.listing import listing
from leveret.cli.output import Columns, Item, show_json, show_table, text
from leveret.cli.remote import current, remote_options

_NODES: Columns = (
    ("name", "node"),
    ("state", "state"),
    ("address", "address"),
    ("version", "version"),
    ("shards", "shards", lambda shards: ", ".join(map(str, shards))),
    ("here", "here"),
)
_SHARDS: Columns = (
    ("number", "shard"),
    ("node", "node"),
    ("epoch", "epoch"),
    ("state", "state"),
    ("vhosts", "vhosts", ", ".join),
    ("takeovers", "take-overs"),
    ("takeover_age", "last", age),
    ("takeover_seconds", "served after", lambda seconds: "" if seconds is None else f"{seconds:.2f} s"),
)
_FINDINGS: Columns = (
    ("good", "", lambda good: "ok" if good else "change"),
    ("check", "check"),
    ("text", "found"),
)
# Seconds for a node to move its shards away.
_DRAIN_TIMEOUT = 90.0


@listing("Show and check a cluster of nodes, and move shards between them.")
def cluster() -> None:
    """List the nodes with the shards that they own."""
    _show_nodes()


@cluster.command("nodes")
@remote_options
def nodes() -> None:
    """List the nodes with the shards that they own."""
    _show_nodes()


def _show_nodes() -> None:
    _show("nodes.list", _NODES, ("name",))


def _show(call: str, columns: Columns, order: Sequence[str] = ()) -> None:
    """Print a list, and a warning if the database does not answer."""
    broker = current()
    # Asked for first: it may take seconds, and the command ends when it has printed.
    problem = broker.call("cluster.status")["problem"]
    broker.show_list(call, columns, order)
    if problem:
        click.echo(f"warning: the list is as it was when the database last answered: {text(problem)}", err=True)


@cluster.command("shards")
@remote_options
def shards() -> None:
    """List the shards with their owners, epochs and take-overs."""
    _show("shards.list", _SHARDS)


@cluster.command("status")
@remote_options
def status() -> None:
    """Show the database, the nodes and the last take-over."""
    broker = current()
    found: Item = broker.call("cluster.status")
    if broker.as_json:
        show_json(found)
        return
    for name, value in cluster_lines(found):
        click.echo(f"{name:<22} {value}")


@cluster.command("check")
@remote_options
def check() -> None:
    """Check the cluster: the database and the nodes.

    Covers replication, clocks, versions and links. Exits with 1 if something must be changed.
    """
    broker = current()
    found: list[Item] = broker.call("cluster.check")
    faults = [finding for finding in found if not finding["good"]]
    if broker.as_json:
        show_json(found)
    else:
        show_table(found, _FINDINGS)
        for finding in faults:
            click.echo(f"{finding['check']}: {text(finding['remedy'])}")
    if faults:
        raise Failed(f"{len(faults)} of {len(found)} findings need a change")


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
    """Move all shards away from NODE. It claims none until `--off` or its restart."""
    current(_DRAIN_TIMEOUT).call("nodes.drain", name=node, on=not off)
    click.echo(f"node '{node}' owns shards again" if off else f"node '{node}' owns no shards")


@cluster.command("forget")
@click.argument("node")
@remote_options
def forget(node: str) -> None:
    """Remove NODE, which is gone, from the list."""
    current().call("nodes.forget", name=node)
    click.echo(f"forgot node '{node}'")


for command in (import_data, upgrade, restored):
    cluster.add_command(command)
