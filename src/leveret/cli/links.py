"""`leveret links`."""

from __future__ import annotations

from typing import Any

import click

from leveret.cli.listing import listing
from leveret.cli.options import together
from leveret.cli.output import Columns
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option

COLUMNS: Columns = (
    ("vhost", "vhost"), ("user", "user"), ("container", "container"), ("name", "name"), ("role", "role"),
    ("address", "address"), ("state", "state"), ("unsettled", "unsettled"), ("durable", "durable"), ("expiry", "expiry"),
    ("timeout", "timeout"),
)


# What identifies a link beside its name.
_link = together(
    in_vhost_option,
    click.option("--container", help="The container-id of its client."),
    click.option("--user", help="Whose link it is."),
    click.option("--role", help="What the broker is: sender, receiver, shared-durable or shared-volatile."),
)


@listing("List links of AMQP 1.0, attached and suspended; the subcommands end what they keep.", vhost_option)
def links(vhost: str | None, **_: Any) -> None:
    """List links with what is unsettled and when they expire."""
    current().show_list("links.list", COLUMNS, ("vhost", "user", "container", "name", "role"), vhost=vhost)


@links.command()
@click.argument("name")
@_link
@remote_options
def release(name: str, vhost: str, container: str | None, user: str | None, role: str | None, **_: Any) -> None:
    """Give what a suspended link holds unsettled back to its queue."""
    result = current().call("links.release", name=name, vhost=vhost, container=container, user=user, role=role)
    click.echo(f"{result['messages']} messages of link '{name}' are back in their queue")


@links.command()
@click.argument("name")
@_link
@remote_options
def delete(name: str, vhost: str, container: str | None, user: str | None, role: str | None, **_: Any) -> None:
    """Forget a link, with its subscription; one that is attached is detached."""
    current().call("links.delete", name=name, vhost=vhost, container=container, user=user, role=role)
    click.echo(f"link '{name}' is deleted")
