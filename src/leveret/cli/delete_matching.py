"""`leveret delete-matching`."""

from __future__ import annotations

import click

from leveret.cli.failed import INCOMPLETE, Failed
from leveret.cli.remote import current, in_vhost_option, remote_options

KINDS = ("queues", "exchanges", "policies", "operator-policies", "users", "vhosts")


@click.command("delete-matching")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("pattern")
@in_vhost_option
@click.option("--if-unused", is_flag=True, help="Only queues without consumers, and exchanges without bindings.")
@click.option("--if-empty", is_flag=True, help="Only queues without messages.")
@click.option("--dry-run", is_flag=True, help="Print the names, and delete nothing.")
@remote_options
def delete_matching(kind: str, pattern: str, vhost: str, if_unused: bool, if_empty: bool, dry_run: bool) -> None:
    """Delete all objects of a KIND whose names match the RE2 expression PATTERN."""
    broker = current()
    more = True
    failed = False
    while more and not failed:
        result = broker.call(
            "objects.delete",
            kind=kind.replace("-", "_"),
            pattern=pattern,
            vhost=vhost,
            if_unused=if_unused,
            if_empty=if_empty,
            dry_run=dry_run,
        )
        for name in result["names"]:
            click.echo(f"{'would delete' if dry_run else 'deleted'} '{name}'")
        for item in result["refused"]:
            click.echo(f"cannot delete '{item['name']}': {item['reason']}", err=True)
        failed = bool(result["refused"])
        more = result["more"] and not dry_run
        if result["more"] and dry_run:
            click.echo("and more")
    if failed:
        raise Failed("some objects were not deleted", INCOMPLETE)
