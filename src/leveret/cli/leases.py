"""`leveret leases`."""

from __future__ import annotations

from typing import Any

import click

from leveret.cli.listing import listing
from leveret.cli.output import octets
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option


def _batches(batches: list[dict[str, Any]]) -> str:
    """Numbers of batches with the messages in each, and which of them somebody has read."""
    return ", ".join(f"{batch['batch']} ({batch['count']}{', read' if batch['read'] else ''})" for batch in batches)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f}s"


COLUMNS = (
    ("vhost", "vhost"), ("queue", "queue"), ("lease", "lease"), ("epoch", "epoch"), ("committed", "committed"),
    ("batches", "batches", _batches), ("messages", "messages"), ("octets", "size", octets), ("readers", "readers"),
    ("age", "age", _seconds), ("idle", "idle", _seconds), ("timeout", "timeout", _seconds),
)


@listing("List leases; `release` ends one.", vhost_option)
def leases(vhost: str | None, **_: Any) -> None:
    """List leases with what they have planned."""
    current().show_list("leases.list", COLUMNS, ("vhost", "queue", "lease"), vhost=vhost)


@leases.command()
@click.argument("queue")
@click.argument("lease")
@in_vhost_option
@remote_options
def release(queue: str, lease: str, vhost: str, **_: Any) -> None:
    """End a lease that nobody will go on with. What it had planned goes back to the queue, also what was read: somebody may
    have it already."""
    result = current().call("leases.release", name=queue, vhost=vhost, lease=lease)
    click.echo(f"{result['messages']} messages of lease '{lease}' are in queue '{queue}' again")
