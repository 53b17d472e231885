"""`leveret vhosts`."""

from __future__ import annotations

import click

from leveret.cli.listing import listing
from leveret.cli.options import together
from leveret.cli.output import limit
from leveret.cli.remote import current, remote_options

COLUMNS = (
    ("name", "name"),
    ("source", "source"),
    ("queues", "queues"),
    ("exchanges", "exchanges"),
    ("ready", "ready"),
    ("unacked", "unacked"),
    ("connections", "connections"),
    ("strict", "strict"),
    ("max_queues", "max queues", limit),
    ("max_connections", "max connections", limit),
)


_settings = together(
    click.option("--strict/--no-strict", default=None, help="Follow the specification even if RabbitMQ deviates."),
    click.option("--max-queues", type=click.IntRange(0), help="0: limits.queues_per_vhost."),
    click.option("--max-connections", type=click.IntRange(0), help="0: no limit."),
    click.option("--qos-global", type=click.Choice(["rabbitmq", "spec"]), help="Meaning of global in basic.qos."),
    click.option("--consumer-timeout", type=click.FloatRange(0), help="Seconds for consumers to settle a delivery."),
)


@listing("List, add, change and delete vhosts. Those in the configuration file can only be changed there.")
def vhosts() -> None:
    """List vhosts."""
    current().show_list("vhosts.list", COLUMNS)


@vhosts.command()
@click.argument("name")
@_settings
@remote_options
def add(
    name: str,
    strict: bool | None,
    max_queues: int | None,
    max_connections: int | None,
    qos_global: str | None,
    consumer_timeout: float | None,
) -> None:
    """Add a vhost. Set permissions before users can access it."""
    current().call(
        "vhosts.add",
        name=name,
        strict=strict,
        max_queues=max_queues,
        max_connections=max_connections,
        qos_global=qos_global,
        consumer_timeout=consumer_timeout,
    )
    click.echo(f"added vhost '{name}'; set permissions: leveret permissions set USER --vhost '{name}' ...")


@vhosts.command()
@click.argument("name")
@_settings
@remote_options
def change(
    name: str,
    strict: bool | None,
    max_queues: int | None,
    max_connections: int | None,
    qos_global: str | None,
    consumer_timeout: float | None,
) -> None:
    """Change a vhost. Settings without an option do not change."""
    current().call(
        "vhosts.change",
        name=name,
        strict=strict,
        max_queues=max_queues,
        max_connections=max_connections,
        qos_global=qos_global,
        consumer_timeout=consumer_timeout,
    )
    click.echo(f"changed vhost '{name}'")


@vhosts.command()
@click.argument("name")
@remote_options
def delete(name: str) -> None:
    """Delete a vhost with everything in it, and close its connections."""
    current().call("vhosts.delete", name=name)
    click.echo(f"deleted vhost '{name}'")
