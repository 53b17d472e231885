"""`leveret roles`."""

from __future__ import annotations

import click

from leveret.cli.listing import listing
from leveret.cli.remote import current, remote_options
from leveret.security.roles import ALL, ROLES

COLUMNS = (("user", "user"), ("role", "role"), ("vhosts", "vhosts"), ("names", "names"))


@listing(
    "List, grant and revoke roles: what a user may do in the HTTP API and the console, by vhost and name.",
    click.option("--user", help="Only this user."),
)
def roles(user: str | None) -> None:
    """List roles."""
    current().show_list("roles.list", COLUMNS, user=user)


@roles.command()
@click.argument("user")
@click.argument("role", type=click.Choice(ROLES))
@click.option("--vhosts", default=ALL, show_default=True, metavar="REGEX", help="Vhosts in which the user has the role.")
@click.option(
    "--names", default=ALL, show_default=True, metavar="REGEX", help="Queues and exchanges for which it has the role."
)
@remote_options
def grant(user: str, role: str, vhosts: str, names: str) -> None:
    """Grant a role to a user. In the HTTP API, the roles of a user replace its permissions."""
    current().call("roles.grant", user=user, role=role, vhosts=vhosts, names=names)
    click.echo(f"granted role '{role}' to user '{user}'")


@roles.command()
@click.argument("user")
@click.option("--role", type=click.Choice(ROLES), help="Only this role.")
@click.option("--vhosts", metavar="REGEX", help="Only roles with this expression.")
@click.option("--names", metavar="REGEX", help="Only roles with this expression.")
@remote_options
def revoke(user: str, role: str | None, vhosts: str | None, names: str | None) -> None:
    """Revoke roles of a user: all, or those with the given options."""
    for revoked in current().call("roles.revoke", user=user, role=role, vhosts=vhosts, names=names)["grants"]:
        click.echo(f"revoked role '{revoked['role']}' of user '{user}' ('{revoked['vhosts']}', '{revoked['names']}')")
