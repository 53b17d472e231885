"""`leveret staged`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from leveret.cli.output import Columns, octets, show_json, show_table
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option

COLUMNS: Columns = (
    ("vhost", "vhost"), ("identifier", "identifier"), ("kind", "kind"), ("user", "user"), ("state", "state"),
    ("octets", "octets"), ("announced", "announced"), ("checkpoints", "checkpoints"), ("idle", "idle"),
    ("timeout", "timeout"),
)

Function = TypeVar("Function", bound=Callable[..., Any])


def _upload(function: Function) -> Function:
    """What says which one is meant."""
    for option in (
        click.option("--kind", type=click.Choice(["file", "message"]), help="Where the identifier is not enough."),
        click.option("--user", help="Where the identifier is not enough."),
        click.argument("identifier"),
    ):
        function = option(function)
    return function


@click.group(invoke_without_command=True)
@vhost_option
@remote_options
@click.pass_context
def staged(context: click.Context, /, vhost: str | None, **_: Any) -> None:
    """List staged contents of AMQP 0-9: uploads that wait for their senders, or to be published."""
    if context.invoked_subcommand is None:
        _list(vhost)


def _list(vhost: str | None) -> None:
    current().show_list("staged.list", COLUMNS, ("vhost", "identifier", "kind", "user"), vhost=vhost)


@staged.command("list")
@vhost_option
@remote_options
def list_staged(vhost: str | None, **_: Any) -> None:
    """List staged contents with how much of each is there, and how many seconds it will wait."""
    _list(vhost)


@staged.command()
@_upload
@in_vhost_option
@remote_options
def show(identifier: str, user: str | None, kind: str | None, vhost: str, **_: Any) -> None:
    """Show one, with its checkpoints."""
    broker = current()
    found = broker.call("staged.show", name=identifier, user=user, kind=kind, vhost=vhost)
    if broker.as_json:
        show_json(found)
    else:
        show_table([{"figure": key, "value": value} for key, value in found.items()],
                   (("figure", "figure"), ("value", "value")))


@staged.command()
@_upload
@in_vhost_option
@remote_options
def discard(identifier: str, user: str | None, kind: str | None, vhost: str, **_: Any) -> None:
    """Give one up, with its octets. Whoever is sending it is refused."""
    result = current().call("staged.discard", name=identifier, user=user, kind=kind, vhost=vhost)
    click.echo(f"staged content '{identifier}' is discarded, {octets(result['discarded'])}")
