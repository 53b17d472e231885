"""`leveret bindings`."""

from __future__ import annotations

import click

from leveret.cli.listing import listing
from leveret.cli.options import together
from leveret.cli.remote import (
    argument_option,
    current,
    in_vhost_option,
    read_arguments,
    remote_options,
    vhost_option,
)

COLUMNS = (
    ("vhost", "vhost"),
    ("source", "source"),
    ("kind", "type"),
    ("destination", "destination"),
    ("routing_key", "routing key"),
    ("arguments", "arguments"),
)


_binding = together(
    click.argument("source"),
    click.argument("destination"),
    in_vhost_option,
    click.option("--routing-key", default="", help="Routing key or pattern."),
    click.option("--to-exchange", is_flag=True, help="The destination is an exchange, not a queue."),
    argument_option,
)


@listing("List, add and delete bindings.", vhost_option)
def bindings(vhost: str | None) -> None:
    """List bindings, except those of the default exchange."""
    current().show_list("bindings.list", COLUMNS, ("vhost", "source", "destination", "routing_key"), vhost=vhost)


@bindings.command()
@_binding
@remote_options
def add(source: str, destination: str, vhost: str, routing_key: str, to_exchange: bool, arguments: tuple[str, ...]) -> None:
    """Bind the queue DESTINATION to the exchange SOURCE."""
    _call("bindings.add", source, destination, vhost, routing_key, to_exchange, arguments)
    click.echo(f"bound '{destination}' to exchange '{source}'")


@bindings.command()
@_binding
@remote_options
def delete(
    source: str, destination: str, vhost: str, routing_key: str, to_exchange: bool, arguments: tuple[str, ...]
) -> None:
    """Delete a binding of DESTINATION to SOURCE. The routing key and the arguments must match."""
    _call("bindings.delete", source, destination, vhost, routing_key, to_exchange, arguments)
    click.echo(f"deleted the binding of '{destination}' to exchange '{source}'")


def _call(
    name: str, source: str, destination: str, vhost: str, routing_key: str, to_exchange: bool, arguments: tuple[str, ...]
) -> None:
    current().call(
        name,
        source=source,
        destination=destination,
        vhost=vhost,
        routing_key=routing_key,
        kind="exchange" if to_exchange else "queue",
        arguments=read_arguments(arguments),
    )
