"""`leveret uploads`."""

from __future__ import annotations

import click

from leveret.cli.listing import listing
from leveret.cli.options import together
from leveret.cli.output import Columns, seconds, size
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option

COLUMNS: Columns = (
    ("vhost", "vhost"),
    ("identifier", "identifier"),
    ("kind", "kind"),
    ("user", "user"),
    ("state", "state"),
    ("octets", "size", size),
    ("announced", "announced", size),
    ("checkpoints", "checkpoints"),
    ("idle", "idle", seconds),
    ("timeout", "timeout", seconds),
)

# The options that identify an upload.
_upload = together(
    click.argument("identifier"),
    click.option("--user", help="User who uploads it, if IDENTIFIER is ambiguous."),
    click.option("--kind", type=click.Choice(["file", "message"]), help="Kind of upload, if IDENTIFIER is ambiguous."),
)


@listing("List and discard AMQP 0-9 uploads (staged content) that are incomplete or not published.", vhost_option)
def uploads(vhost: str | None) -> None:
    """List uploads. Shows the bytes received so far and the seconds left to resume each upload."""
    current().show_list("staged.list", COLUMNS, ("vhost", "identifier", "kind", "user"), vhost=vhost)


@uploads.command()
@_upload
@in_vhost_option
@remote_options
def show(identifier: str, user: str | None, kind: str | None, vhost: str) -> None:
    """Show an upload with its checkpoints."""
    current().show_one("staged.show", name=identifier, user=user, kind=kind, vhost=vhost)


@uploads.command()
@_upload
@in_vhost_option
@remote_options
def discard(identifier: str, user: str | None, kind: str | None, vhost: str) -> None:
    """Discard an upload. A client that is sending it gets an error."""
    result = current().call("staged.discard", name=identifier, user=user, kind=kind, vhost=vhost)
    click.echo(f"discarded upload '{identifier}' ({size(result['discarded'])})")
