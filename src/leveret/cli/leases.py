"""`leveret leases`."""

from __future__ import annotations

import click

from leveret.cli.listing import listing
from leveret.cli.output import Item, seconds, size
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option


def _batches(batches: list[Item]) -> str:
    """Format batches as their numbers, message counts and read flags."""
    return ", ".join(f"{batch['batch']} ({batch['count']}{', read' if batch['read'] else ''})" for batch in batches)


COLUMNS = (
    ("vhost", "vhost"),
    ("queue", "queue"),
    ("lease", "lease"),
    ("epoch", "epoch"),
    ("committed", "committed"),
    ("batches", "batches", _batches),
    ("messages", "messages"),
    ("octets", "size", size),
    ("readers", "readers"),
    ("age", "age", seconds),
    ("idle", "idle", seconds),
    ("timeout", "timeout", seconds),
)


@listing("List and release queue leases.", vhost_option)
def leases(vhost: str | None) -> None:
    """List leases with their batches."""
    current().show_list("leases.list", COLUMNS, ("vhost", "queue", "lease"), vhost=vhost)


@leases.command()
@click.argument("queue")
@click.argument("lease")
@in_vhost_option
@remote_options
def release(queue: str, lease: str, vhost: str) -> None:
    """Release an abandoned lease, and requeue its messages. Its reader may have processed some of them already."""
    result = current().call("leases.release", name=queue, vhost=vhost, lease=lease)
    click.echo(f"released lease '{lease}': requeued {result['messages']} messages to queue '{queue}'")
