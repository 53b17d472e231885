"""`leveret topic-permissions`."""

from __future__ import annotations

import click

from leveret.cli.listing import listing
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option

COLUMNS = (
    ("user", "user"),
    ("vhost", "vhost"),
    ("exchange", "exchange"),
    ("write", "write"),
    ("read", "read"),
    ("source", "source"),
)


@listing(
    "List, set and clear topic permissions: the routing keys that a user may use with a topic exchange.",
    vhost_option,
    click.option("--user", help="Only this user."),
)
def topic_permissions(vhost: str | None, user: str | None) -> None:
    """List topic permissions."""
    current().show_list("topic_permissions.list", COLUMNS, vhost=vhost, user=user)


@topic_permissions.command("set")
@click.argument("user")
@click.argument("exchange")
@in_vhost_option
@click.option("--write", required=True, metavar="REGEX", help="Routing keys that the user may publish with.")
@click.option("--read", required=True, metavar="REGEX", help="Binding keys that the user may bind with.")
@remote_options
def set_topic_permission(user: str, exchange: str, vhost: str, write: str, read: str) -> None:
    """Set a user's topic permissions for an exchange.

    A REGEX may match any part of a key and contain {username}, {vhost} and {client_id}.
    """
    current().call("topic_permissions.set", user=user, vhost=vhost, exchange=exchange, write=write, read=read)
    click.echo(f"set the topic permissions of user '{user}' for exchange '{exchange}' in vhost '{vhost}'")


@topic_permissions.command()
@click.argument("user")
@in_vhost_option
@click.option("--exchange", help="Only for this exchange. Default: all exchanges of the vhost.")
@remote_options
def clear(user: str, vhost: str, exchange: str | None) -> None:
    """Clear a user's topic permissions in a vhost."""
    current().call("topic_permissions.clear", user=user, vhost=vhost, exchange=exchange)
    click.echo(f"cleared the topic permissions of user '{user}' in vhost '{vhost}'")
