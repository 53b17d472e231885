"""`leveret vhosts`."""

from __future__ import annotations

from typing import TypedDict, Unpack

import click

from leveret.cli.listing import listing
from leveret.cli.options import together
from leveret.cli.output import Item, limit
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
    ("default_queue_type", "default queue type"),
    ("protected_from_deletion", "protected"),
    ("tracing", "tracing"),
    ("tags", "tags", ", ".join),
    ("description", "description"),
)


class Settings(TypedDict):
    """Options of `add` and `change`. None leaves a setting unchanged."""

    strict: bool | None
    max_queues: int | None
    max_connections: int | None
    qos_global: str | None
    consumer_timeout: float | None
    description: str | None
    tags: tuple[str, ...]
    default_queue_type: str | None
    protected_from_deletion: bool | None


_settings = together(
    click.option(
        "--strict/--no-strict", default=None, help="Follow the AMQP specification even if RabbitMQ deviates from it."
    ),
    click.option(
        "--max-queues",
        type=click.IntRange(-1),
        help="Maximum number of queues; 0 applies limits.queues_per_vhost, -1 allows none.",
    ),
    click.option(
        "--max-connections", type=click.IntRange(-1), help="Maximum number of connections; 0 is unlimited, -1 allows none."
    ),
    click.option("--qos-global", type=click.Choice(["rabbitmq", "spec"]), help="Meaning of the global flag in basic.qos."),
    click.option(
        "--consumer-timeout",
        type=click.FloatRange(0),
        help="Seconds in which consumers must settle a delivery; 0 is unlimited.",
    ),
    click.option("--description", help="Description for operators."),
    click.option("--tag", "tags", multiple=True, help="Label for operators; repeatable. New tags replace all old ones."),
    click.option(
        "--default-queue-type",
        metavar="TYPE",
        help="Type of queues that are declared without x-queue-type: classic, quorum, stream or last-value.",
    ),
    click.option(
        "--protected-from-deletion/--no-protected-from-deletion",
        default=None,
        help="Refuse to delete the vhost until the protection is removed.",
    ),
)


def _fields(settings: Settings) -> Item:
    """Return the fields of the request."""
    return {**settings, "tags": list(settings["tags"]) or None}


@listing("List, add, change and delete vhosts. Vhosts from the configuration file can only be changed there.")
def vhosts() -> None:
    """List vhosts."""
    current().show_list("vhosts.list", COLUMNS)


@vhosts.command()
@click.argument("name")
@click.option(
    "--shard",
    type=click.IntRange(0),
    help="Number of the shard to place it in; by default the least busy one.",
)
@_settings
@remote_options
def add(name: str, shard: int | None, **settings: Unpack[Settings]) -> None:
    """Add a vhost. Users need permissions to access it."""
    current().call("vhosts.add", name=name, shard=shard, **_fields(settings))
    click.echo(f"added vhost '{name}'; set permissions: leveret permissions set USER --vhost '{name}' ...")


@vhosts.command()
@click.argument("name")
@_settings
@remote_options
def change(name: str, **settings: Unpack[Settings]) -> None:
    """Change a vhost. Options that are not given leave their settings unchanged."""
    current().call("vhosts.change", name=name, **_fields(settings))
    click.echo(f"changed vhost '{name}'")


@vhosts.command()
@click.argument("state", type=click.Choice(["on", "off"]))
@click.argument("name")
@remote_options
def trace(state: str, name: str) -> None:
    """Switch the firehose of a vhost. It copies all messages to the exchange amq.rabbitmq.trace."""
    current().call("vhosts.trace", name=name, on=state == "on")
    click.echo(f"tracing of vhost '{name}' is {state}")


@vhosts.command()
@click.argument("name")
@remote_options
def delete(name: str) -> None:
    """Delete a vhost and everything in it, and close its connections."""
    current().call("vhosts.delete", name=name)
    click.echo(f"deleted vhost '{name}'")
