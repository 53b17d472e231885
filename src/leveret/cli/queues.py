"""`leveret queues`."""

from __future__ import annotations

import click

from leveret.cli.failed import INCOMPLETE, Failed
from leveret.cli.listing import listing
from leveret.cli.output import seconds, size
from leveret.cli.remote import (
    argument_option,
    current,
    in_vhost_option,
    read_arguments,
    remote_options,
    vhost_option,
    warn_of_misspelt,
)

COLUMNS = (
    ("vhost", "vhost"),
    ("name", "name"),
    ("ready", "ready"),
    ("delayed", "delayed"),
    ("unacked", "unacked"),
    ("leased", "leased"),
    ("oldest_ready_age", "oldest ready", seconds),
    ("consumers", "consumers"),
    ("ready_bytes", "size", size),
    ("deduplication_keys", "keys"),
    ("dropped_duplicates", "duplicates"),
    ("paused", "paused"),
    ("durable", "durable"),
    ("auto_delete", "auto-delete"),
    ("exclusive", "exclusive"),
    ("arguments", "arguments"),
)


@listing("List, add, delete and purge queues.", vhost_option)
def queues(vhost: str | None) -> None:
    """List queues with their statistics."""
    current().show_list("queues.list", COLUMNS, ("vhost", "name"), vhost=vhost)


@queues.command()
@click.argument("name")
@in_vhost_option
@click.option("--durable/--transient", default=True, help="Whether the queue stays after a restart.  [default: durable]")
@click.option("--auto-delete", is_flag=True, help="Delete the queue when its last consumer unsubscribes.")
@argument_option
@remote_options
def add(name: str, vhost: str, durable: bool, auto_delete: bool, arguments: tuple[str, ...]) -> None:
    """Declare a queue."""
    from leveret.broker.queues.registry import QUEUE_ARGUMENTS

    table = read_arguments(arguments)
    current().call(
        "queues.add",
        name=name,
        vhost=vhost,
        durable=durable,
        auto_delete=auto_delete,
        arguments=table,
    )
    click.echo(f"declared queue '{name}'")
    warn_of_misspelt(QUEUE_ARGUMENTS, table)


@queues.command()
@click.argument("name")
@in_vhost_option
@click.option("--if-unused", is_flag=True, help="Delete the queue only if it has no consumers.")
@click.option("--if-empty", is_flag=True, help="Delete the queue only if it is empty.")
@remote_options
def delete(name: str, vhost: str, if_unused: bool, if_empty: bool) -> None:
    """Delete a queue and its messages."""
    result = current().call("queues.delete", name=name, vhost=vhost, if_unused=if_unused, if_empty=if_empty)
    click.echo(f"deleted queue '{name}' with {result['messages']} ready messages")


@queues.command()
@click.argument("name")
@in_vhost_option
@remote_options
def purge(name: str, vhost: str) -> None:
    """Remove all ready messages from a queue. Unacked messages stay."""
    result = current().call("queues.purge", name=name, vhost=vhost)
    click.echo(f"purged {result['messages']} messages from queue '{name}'")


@queues.command()
@click.argument("name")
@in_vhost_option
@remote_options
def pause(name: str, vhost: str) -> None:
    """Stop deliveries from a queue. It accepts messages, and stays paused after a restart, until it is resumed."""
    current().call("queues.pause", name=name, vhost=vhost)
    click.echo(f"paused queue '{name}'")


@queues.command()
@click.argument("name")
@in_vhost_option
@remote_options
def resume(name: str, vhost: str) -> None:
    """Deliver from a paused queue again."""
    current().call("queues.resume", name=name, vhost=vhost)
    click.echo(f"resumed queue '{name}'")


_DONE = {"purge": "purged", "pause": "paused", "resume": "resumed"}


@queues.command("change-matching")
@click.argument("action", type=click.Choice(tuple(_DONE)))
@click.argument("pattern")
@in_vhost_option
@click.option("--dry-run", is_flag=True, help="Print the names, and change nothing.")
@remote_options
def change_matching(action: str, pattern: str, vhost: str, dry_run: bool) -> None:
    """Purge, pause or resume queues by pattern. PATTERN is an RE2 expression for their names."""
    broker = current()
    done = f"would {action}" if dry_run else _DONE[action]
    after: int | None = 0
    failed = False
    while after is not None:
        arguments = {"action": action, "pattern": pattern, "vhost": vhost, "dry_run": dry_run, "after": after}
        result = broker.call("queues.change_matching", **arguments)
        for item in result["queues"]:
            click.echo(f"{done} '{item['name']}' with {item['messages']} ready messages")
        for item in result["refused"]:
            click.echo(f"cannot {action} '{item['name']}': {item['reason']}", err=True)
        failed = failed or bool(result["refused"])
        after = result["after"]
    if failed:
        raise Failed("some queues were not changed", INCOMPLETE)
