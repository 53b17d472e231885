"""`leveret permissions`."""

from __future__ import annotations

import click

from leveret.cli.listing import listing
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option

COLUMNS = (
    ("user", "user"),
    ("vhost", "vhost"),
    ("configure", "configure"),
    ("write", "write"),
    ("read", "read"),
    ("source", "source"),
)


@listing(
    "List, set and delete permissions. Permissions from the configuration file can only be changed there.",
    vhost_option,
    click.option("--user", help="Only this user."),
)
def permissions(vhost: str | None, user: str | None) -> None:
    """List permissions."""
    current().show_list("permissions.list", COLUMNS, vhost=vhost, user=user)


@permissions.command("set")
@click.argument("user")
@in_vhost_option
@click.option(
    "--configure", required=True, metavar="REGEX", help="Queues and exchanges that the user may declare and delete."
)
@click.option("--write", required=True, metavar="REGEX", help="Queues and exchanges that the user may publish to.")
@click.option("--read", required=True, metavar="REGEX", help="Queues and exchanges that the user may consume from.")
@remote_options
def set_permission(user: str, vhost: str, configure: str, write: str, read: str) -> None:
    """Set a user's permissions in a vhost. A REGEX may match any part of a name; an empty one matches no name."""
    current().call("permissions.set", user=user, vhost=vhost, configure=configure, write=write, read=read)
    click.echo(f"set the permissions of user '{user}' in vhost '{vhost}'")


@permissions.command()
@click.argument("user")
@in_vhost_option
@remote_options
def delete(user: str, vhost: str) -> None:
    """Delete a user's permissions in a vhost."""
    current().call("permissions.delete", user=user, vhost=vhost)
    click.echo(f"deleted the permissions of user '{user}' in vhost '{vhost}'")
