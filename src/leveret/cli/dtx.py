"""`leveret dtx`."""

from __future__ import annotations

import click

from leveret.cli.listing import listing
from leveret.cli.output import Columns, Reply, seconds, size
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option

COLUMNS: Columns = (
    ("vhost", "vhost"),
    ("branch", "branch"),
    ("user", "user"),
    ("state", "state"),
    ("channels", "channels"),
    ("publishes", "publishes"),
    ("octets", "size", size),
    ("settlements", "settlements"),
    ("age", "age", seconds),
    ("timeout", "timeout", seconds),
)

remember_option = click.option(
    "--remember", is_flag=True, help="Keep the outcome for the coordinator, until `leveret dtx forget`."
)


@listing("List and resolve distributed transaction branches.", vhost_option)
def dtx(vhost: str | None) -> None:
    """List branches. A prepared branch waits for commit or rollback, even across restarts."""
    current().show_list("dtx.list", COLUMNS, ("vhost", "branch"), vhost=vhost)


@dtx.command()
@click.argument("branch")
@in_vhost_option
@remote_options
def prepare(branch: str, vhost: str) -> None:
    """Prepare a branch. It then survives restarts, and its commit cannot fail."""
    _decide("prepare", branch, "prepared", vhost=vhost)


@dtx.command()
@click.argument("branch")
@click.option("--one-phase", is_flag=True, help="Commit a branch that is not prepared.")
@remember_option
@in_vhost_option
@remote_options
def commit(branch: str, one_phase: bool, remember: bool, vhost: str) -> None:
    """Commit a branch. The broker publishes its messages and applies its acknowledgements."""
    _decide("commit", branch, "committed", vhost=vhost, one_phase=one_phase, remember=remember)


@dtx.command()
@click.argument("branch")
@remember_option
@in_vhost_option
@remote_options
def rollback(branch: str, remember: bool, vhost: str) -> None:
    """Roll back a branch. The broker discards its messages and requeues those it acknowledged."""
    _decide("rollback", branch, "rolled back", vhost=vhost, remember=remember)


@dtx.command()
@click.argument("branch")
@in_vhost_option
@remote_options
def forget(branch: str, vhost: str) -> None:
    """Forget a branch that timed out or was completed with --remember."""
    current().call("dtx.forget", name=branch, vhost=vhost)
    click.echo(f"forgot branch '{branch}'")


def _decide(call: str, branch: str, wanted: str, **arguments: Reply) -> None:
    outcome = current().call(f"dtx.{call}", name=branch, **arguments)["outcome"]
    if outcome == "timed out":
        raise click.ClickException(f"branch '{branch}' timed out and was rolled back")
    if outcome != wanted:
        raise click.ClickException(f"branch '{branch}' is not {wanted}: it was rolled back, or can only be rolled back")
    click.echo(f"{wanted} branch '{branch}'")
