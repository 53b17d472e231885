"""`leveret bindings`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from leveret.cli.remote import (
    argument_option,
    current,
    in_vhost_option,
    read_arguments,
    remote_options,
    vhost_option,
)

COLUMNS = (
    ("vhost", "vhost"), ("source", "source"), ("kind", "to"), ("destination", "destination"),
    ("routing_key", "routing key"), ("arguments", "arguments"),
)


def _binding(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        argument_option,
        click.option("--to-exchange", is_flag=True, help="The destination is an exchange, not a queue."),
        click.option("--routing-key", default="", help="The routing key, or pattern."),
        in_vhost_option,
        click.argument("destination"),
        click.argument("source"),
    ):
        function = option(function)
    return function


@click.group(invoke_without_command=True)
@vhost_option
@remote_options
@click.pass_context
def bindings(context: click.Context, /, vhost: str | None, **_: Any) -> None:
    """List bindings; the subcommands change them."""
    if context.invoked_subcommand is None:
        _list(vhost)


def _list(vhost: str | None) -> None:
    current().show_list("bindings.list", COLUMNS, ("vhost", "source", "destination", "routing_key"), vhost=vhost)


@bindings.command("list")
@vhost_option
@remote_options
def list_bindings(vhost: str | None, **_: Any) -> None:
    """List bindings, without those of the default exchange."""
    _list(vhost)


@bindings.command()
@_binding
@remote_options
def add(source: str, destination: str, vhost: str, routing_key: str, to_exchange: bool, arguments: tuple[str, ...],
        **_: Any) -> None:
    """Bind DESTINATION, a queue, to SOURCE, an exchange."""
    _call("bindings.add", source, destination, vhost, routing_key, to_exchange, arguments)
    click.echo(f"'{destination}' is bound to exchange '{source}'")


@bindings.command()
@_binding
@remote_options
def delete(source: str, destination: str, vhost: str, routing_key: str, to_exchange: bool, arguments: tuple[str, ...],
           **_: Any) -> None:
    """Remove the binding of DESTINATION to SOURCE with this routing key and these arguments."""
    _call("bindings.delete", source, destination, vhost, routing_key, to_exchange, arguments)
    click.echo(f"'{destination}' is not bound to exchange '{source}' like this any more")


def _call(name: str, source: str, destination: str, vhost: str, routing_key: str, to_exchange: bool,
          arguments: tuple[str, ...]) -> None:
    current().call(name, source=source, destination=destination, vhost=vhost, routing_key=routing_key,
                   kind="exchange" if to_exchange else "queue", arguments=read_arguments(arguments))
