"""`leveret streams`."""

from __future__ import annotations

import click

from leveret.cli import stream_erasing, stream_segments, stream_tables
from leveret.cli.listing import listing
from leveret.cli.output import seconds, show_json, show_table, size
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
    ("name", "name"),
    ("messages", "messages"),
    ("octets", "size", size),
    ("first_offset", "first offset"),
    ("next_offset", "next offset"),
    ("since", "oldest"),
    ("segments", "segments"),
    ("segment_octets", "on disk", size),
    ("unsealed", "unsealed"),
    ("readers", "readers"),
    ("consumers", "named consumers"),
    ("lag", "lag"),
    ("arguments", "arguments"),
)
SUPERS = (
    ("vhost", "vhost"),
    ("name", "name"),
    ("partitions", "partitions"),
    ("messages", "messages"),
    ("octets", "size", size),
    ("readers", "readers"),
    ("consumers", "named consumers"),
)
CONSUMERS = (
    ("stream", "stream"),
    ("consumer", "consumer"),
    ("next_offset", "next offset"),
    ("lag", "lag"),
    ("lag_bytes", "lag size", size),
    ("lag_seconds", "lag time", seconds),
    ("reading", "reading"),
)


@listing("List, inspect and change streams.", vhost_option)
def streams(vhost: str | None) -> None:
    """List streams with their statistics."""
    broker = current()
    found = broker.call("streams.list", vhost=vhost)
    found.sort(key=lambda item: (item["vhost"], item["name"]))
    if broker.as_json:
        show_json(found)
    else:
        show_table(found, COLUMNS)
        for reason in sorted({item["unsealed_because"] for item in found if item["unsealed_because"]}):
            click.echo(f"streams are not sealed: {reason}", err=True)


@streams.command()
@click.argument("name")
@in_vhost_option
@remote_options
def show(name: str, vhost: str) -> None:
    """Show all details of a stream."""
    current().show_one("streams.show", name=name, vhost=vhost)


@streams.command()
@click.argument("name")
@in_vhost_option
@remote_options
def consumers(name: str, vhost: str) -> None:
    """List named consumers with their lag. NAME is a stream, or a super stream for all its partitions."""
    current().show_list("streams.consumers", CONSUMERS, name=name, vhost=vhost)


@streams.command()
@click.argument("name")
@click.argument("consumer")
@click.argument("offset", type=click.IntRange(min=0))
@in_vhost_option
@remote_options
def rewind(name: str, consumer: str, offset: int, vhost: str) -> None:
    """Set the stored offset of a named consumer. The consumer must not be reading."""
    current().call("streams.set_offset", name=name, vhost=vhost, consumer=consumer, offset=offset)
    click.echo(f"consumer '{consumer}' of stream '{name}' resumes from offset {offset}")


@streams.command()
@click.argument("name")
@click.argument("consumer")
@in_vhost_option
@remote_options
def forget(name: str, consumer: str, vhost: str) -> None:
    """Delete the stored offset of a named consumer."""
    current().call("streams.set_offset", name=name, vhost=vhost, consumer=consumer)
    click.echo(f"deleted the stored offset of consumer '{consumer}' of stream '{name}'")


@streams.command("supers")
@vhost_option
@remote_options
def supers(vhost: str | None) -> None:
    """List super streams with the totals of their partitions."""
    current().show_list("streams.list_supers", SUPERS, ("vhost", "name"), vhost=vhost)


@streams.command("add-super")
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1, 10_000), required=True, help="Number of partitions.")
@in_vhost_option
@argument_option
@remote_options
def add_super(name: str, partitions: int, vhost: str, arguments: tuple[str, ...]) -> None:
    """Declare a super stream. It consists of an exchange and its partitions, which are streams."""
    result = current().call(
        "streams.add_super", name=name, vhost=vhost, partitions=partitions, arguments=read_arguments(arguments)
    )
    click.echo(f"declared super stream '{name}' with partitions {', '.join(result['partitions'])}")


@streams.command("delete-super")
@click.argument("name")
@in_vhost_option
@remote_options
def delete_super(name: str, vhost: str) -> None:
    """Delete a super stream and all its partitions."""
    result = current().call("streams.delete_super", name=name, vhost=vhost)
    click.echo(f"deleted super stream '{name}' with {result['messages']} messages")


for command in (stream_segments.segments, stream_segments.seal, stream_erasing.erase, stream_tables.iceberg):
    streams.add_command(command)
