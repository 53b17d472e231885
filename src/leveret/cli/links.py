"""`leveret links`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from leveret.cli.output import Columns
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option

Function = TypeVar("Function", bound=Callable[..., Any])

COLUMNS: Columns = (
    ("vhost", "vhost"), ("user", "user"), ("container", "container"), ("name", "name"), ("role", "role"),
    ("address", "address"), ("state", "state"), ("unsettled", "unsettled"), ("durable", "durable"), ("expiry", "expiry"),
    ("timeout", "timeout"),
)


def one_options(function: Function) -> Function:
    """What identifies a link beside its name."""
    for option in (
        click.option("--role", help="What the broker is: sender, receiver, shared-durable or shared-volatile."),
        click.option("--user", help="Whose link it is."),
        click.option("--container", help="The container-id of its client."),
    ):
        function = option(function)
    return in_vhost_option(function)


@click.group(invoke_without_command=True)
@vhost_option
@remote_options
@click.pass_context
def links(context: click.Context, /, vhost: str | None, **_: Any) -> None:
    """List links of AMQP 1.0, attached and suspended; the subcommands end what they keep."""
    if context.invoked_subcommand is None:
        _list(vhost)


def _list(vhost: str | None) -> None:
    current().show_list("links.list", COLUMNS, ("vhost", "user", "container", "name", "role"), vhost=vhost)


@links.command("list")
@vhost_option
@remote_options
def list_links(vhost: str | None, **_: Any) -> None:
    """List links with what is unsettled and when they expire."""
    _list(vhost)


@links.command()
@click.argument("name")
@one_options
@remote_options
def release(name: str, vhost: str, container: str | None, user: str | None, role: str | None, **_: Any) -> None:
    """Give what a suspended link holds unsettled back to its queue."""
    result = current().call("links.release", name=name, vhost=vhost, container=container, user=user, role=role)
    click.echo(f"{result['messages']} messages of link '{name}' are back in their queue")


@links.command()
@click.argument("name")
@one_options
@remote_options
def delete(name: str, vhost: str, container: str | None, user: str | None, role: str | None, **_: Any) -> None:
    """Forget a link, with its subscription; one that is attached is detached."""
    current().call("links.delete", name=name, vhost=vhost, container=container, user=user, role=role)
    click.echo(f"link '{name}' is deleted")
