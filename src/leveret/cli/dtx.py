"""`leveret dtx`."""

from __future__ import annotations

from typing import Any

import click

from leveret.cli.listing import listing
from leveret.cli.output import Columns
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option

COLUMNS: Columns = (
    ("vhost", "vhost"), ("branch", "branch"), ("user", "user"), ("state", "state"), ("channels", "channels"),
    ("publishes", "publishes"), ("octets", "octets"), ("settlements", "settlements"), ("age", "age"),
    ("timeout", "timeout"),
)

remember_option = click.option("--remember", is_flag=True, help="Keep the outcome listed until it is forgotten, for a"
                               " coordinator that comes later.")


@listing("List branches of distributed transactions; the subcommands are for coordinators, or decide in their place.",
         vhost_option)
def dtx(vhost: str | None, **_: Any) -> None:
    """List branches with what they hold. Those that are prepared wait for a decision, also after a restart."""
    current().show_list("dtx.list", COLUMNS, ("vhost", "branch"), vhost=vhost)


@dtx.command()
@click.argument("branch")
@in_vhost_option
@remote_options
def prepare(branch: str, vhost: str, **_: Any) -> None:
    """Prepare a branch: from then on it survives everything, and can be committed whatever happens."""
    _decide("prepare", branch, "prepared", vhost=vhost)


@dtx.command()
@click.argument("branch")
@click.option("--one-phase", is_flag=True, help="Commit a branch that is not prepared.")
@remember_option
@in_vhost_option
@remote_options
def commit(branch: str, one_phase: bool, remember: bool, vhost: str, **_: Any) -> None:
    """Commit a branch: its messages are there, what it has acknowledged is gone."""
    _decide("commit", branch, "committed", vhost=vhost, one_phase=one_phase, remember=remember)


@dtx.command()
@click.argument("branch")
@remember_option
@in_vhost_option
@remote_options
def rollback(branch: str, remember: bool, vhost: str, **_: Any) -> None:
    """Roll a branch back: its messages were never there, what it has acknowledged goes back to the queues."""
    _decide("rollback", branch, "rolled back", vhost=vhost, remember=remember)


@dtx.command()
@click.argument("branch")
@in_vhost_option
@remote_options
def forget(branch: str, vhost: str, **_: Any) -> None:
    """Forget a branch whose outcome was remembered, or that has timed out."""
    current().call("dtx.forget", name=branch, vhost=vhost)
    click.echo(f"branch '{branch}' is forgotten")


def _decide(call: str, branch: str, wanted: str, **arguments: Any) -> None:
    outcome = current().call(f"dtx.{call}", name=branch, **arguments)["outcome"]
    if outcome == "timed out":
        raise click.ClickException(f"branch '{branch}' has timed out: it was rolled back")
    if outcome != wanted:
        raise click.ClickException(f"branch '{branch}' was not {wanted}: it is rolled back, or can only be rolled back")
    click.echo(f"branch '{branch}' is {wanted}")
