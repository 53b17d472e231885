"""`leveret shovel`."""

from __future__ import annotations

import click

from leveret.cli.listing import listing
from leveret.cli.output import Columns
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option

COLUMNS: Columns = (
    ("vhost", "vhost"),
    ("name", "name"),
    ("type", "type"),
    ("state", "state"),
    ("src_uri", "source"),
    ("src_queue", "queue"),
    ("dest_uri", "destination"),
    ("dest_queue", "queue"),
    ("forwarded", "forwarded"),
    ("pending", "pending"),
    ("restarts", "restarts"),
    ("error", "error"),
)


@listing("List, show and restart shovels.", vhost_option)
def shovel(vhost: str | None) -> None:
    """List shovels with their states."""
    current().show_list("shovels.list", COLUMNS, ("vhost", "name"), vhost=vhost)


@shovel.command()
@click.argument("name")
@in_vhost_option
@remote_options
def show(name: str, vhost: str) -> None:
    """Show a shovel with its state."""
    current().show_one("shovels.show", name=name, vhost=vhost)


@shovel.command()
@click.argument("name")
@in_vhost_option
@remote_options
def restart(name: str, vhost: str) -> None:
    """Close both connections of a shovel, and start it again."""
    current().call("shovels.restart", name=name, vhost=vhost)
    click.echo(f"restarted shovel '{name}'")
