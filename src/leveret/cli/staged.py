"""`leveret staged`."""

from __future__ import annotations

from typing import Any

import click

from leveret.cli.listing import listing
from leveret.cli.options import together
from leveret.cli.output import Columns, octets
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option

COLUMNS: Columns = (
    ("vhost", "vhost"), ("identifier", "identifier"), ("kind", "kind"), ("user", "user"), ("state", "state"),
    ("octets", "octets"), ("announced", "announced"), ("checkpoints", "checkpoints"), ("idle", "idle"),
    ("timeout", "timeout"),
)

# What says which one is meant.
_upload = together(
    click.argument("identifier"),
    click.option("--user", help="Where the identifier is not enough."),
    click.option("--kind", type=click.Choice(["file", "message"]), help="Where the identifier is not enough."),
)


@listing("List staged contents of AMQP 0-9: uploads that wait for their senders, or to be published.", vhost_option)
def staged(vhost: str | None, **_: Any) -> None:
    """List staged contents with how much of each is there, and how many seconds it will wait."""
    current().show_list("staged.list", COLUMNS, ("vhost", "identifier", "kind", "user"), vhost=vhost)


@staged.command()
@_upload
@in_vhost_option
@remote_options
def show(identifier: str, user: str | None, kind: str | None, vhost: str, **_: Any) -> None:
    """Show one, with its checkpoints."""
    current().show_one("staged.show", name=identifier, user=user, kind=kind, vhost=vhost)


@staged.command()
@_upload
@in_vhost_option
@remote_options
def discard(identifier: str, user: str | None, kind: str | None, vhost: str, **_: Any) -> None:
    """Give one up, with its octets. Whoever is sending it is refused."""
    result = current().call("staged.discard", name=identifier, user=user, kind=kind, vhost=vhost)
    click.echo(f"staged content '{identifier}' is discarded, {octets(result['discarded'])}")
