"""`leveret exchanges`."""

from __future__ import annotations

import click

from leveret.broker.exchanges.registry import TYPES
from leveret.cli.listing import listing
from leveret.cli.output import text
from leveret.cli.remote import (
    argument_option,
    current,
    in_vhost_option,
    read_arguments,
    remote_options,
    vhost_option,
    warn_of_misspelt,
)


def _name(name: str) -> str:
    return text(name) or "(default)"


COLUMNS = (
    ("vhost", "vhost"),
    ("name", "name", _name),
    ("type", "type"),
    ("bindings", "bindings"),
    ("deduplication_keys", "keys"),
    ("dropped_duplicates", "duplicates"),
    ("durable", "durable"),
    ("auto_delete", "auto-delete"),
    ("internal", "internal"),
    ("arguments", "arguments"),
)


@listing("List, add and delete exchanges.", vhost_option)
def exchanges(vhost: str | None) -> None:
    """List exchanges."""
    current().show_list("exchanges.list", COLUMNS, ("vhost", "name"), vhost=vhost)


@exchanges.command()
@click.argument("name")
@in_vhost_option
@click.option("--type", "type_name", default="direct", show_default=True, help=f"Exchange type: {', '.join(TYPES)}.")
@click.option("--durable/--transient", default=True, help="Whether the exchange stays after a restart.  [default: durable]")
@click.option("--auto-delete", is_flag=True, help="Delete the exchange when its last binding is removed.")
@click.option("--internal", is_flag=True, help="Reject publishes from clients; accept messages only from other exchanges.")
@argument_option
@remote_options
def add(
    name: str, vhost: str, type_name: str, durable: bool, auto_delete: bool, internal: bool, arguments: tuple[str, ...]
) -> None:
    """Declare an exchange."""
    from leveret.broker.arguments import EXCHANGE_ARGUMENTS

    table = read_arguments(arguments)
    current().call(
        "exchanges.add",
        name=name,
        vhost=vhost,
        type=type_name,
        durable=durable,
        auto_delete=auto_delete,
        internal=internal,
        arguments=table,
    )
    click.echo(f"declared exchange '{name}'")
    warn_of_misspelt(EXCHANGE_ARGUMENTS, table)


@exchanges.command()
@click.argument("name")
@in_vhost_option
@click.option("--if-unused", is_flag=True, help="Delete the exchange only if it has no bindings.")
@remote_options
def delete(name: str, vhost: str, if_unused: bool) -> None:
    """Delete an exchange and its bindings."""
    current().call("exchanges.delete", name=name, vhost=vhost, if_unused=if_unused)
    click.echo(f"deleted exchange '{name}'")
