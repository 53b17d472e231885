"""`leveret links`."""

from __future__ import annotations

import click

from leveret.cli.listing import listing
from leveret.cli.options import together
from leveret.cli.output import Columns, seconds
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option

COLUMNS: Columns = (
    ("vhost", "vhost"),
    ("user", "user"),
    ("container", "container"),
    ("name", "name"),
    ("role", "role"),
    ("address", "address"),
    ("state", "state"),
    ("unsettled", "unsettled"),
    ("durable", "durable"),
    ("expiry", "expiry"),
    ("timeout", "timeout", seconds),
)


# Options that identify a link, in addition to its name.
_link = together(
    in_vhost_option,
    click.option("--container", help="Container-id of the client."),
    click.option("--user", help="User of the link."),
    click.option("--role", help="Role of the broker's end: sender, receiver, shared-durable or shared-volatile."),
)


@listing("List, release and delete AMQP 1.0 links, attached or suspended.", vhost_option)
def links(vhost: str | None) -> None:
    """List links with their unsettled deliveries and expiry."""
    current().show_list("links.list", COLUMNS, ("vhost", "user", "container", "name", "role"), vhost=vhost)


@links.command()
@click.argument("name")
@_link
@remote_options
def release(name: str, vhost: str, container: str | None, user: str | None, role: str | None) -> None:
    """Requeue the unsettled messages of a suspended link."""
    result = current().call("links.release", name=name, vhost=vhost, container=container, user=user, role=role)
    click.echo(f"released link '{name}': requeued {result['messages']} messages")


@links.command()
@click.argument("name")
@_link
@remote_options
def delete(name: str, vhost: str, container: str | None, user: str | None, role: str | None) -> None:
    """Delete a link and its subscription. An attached link is detached."""
    current().call("links.delete", name=name, vhost=vhost, container=container, user=user, role=role)
    click.echo(f"deleted link '{name}'")
