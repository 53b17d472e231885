"""`leveret shovel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from leveret.cli.client_command import quiet_option, run, say
from leveret.cli.failed import INCOMPLETE
from leveret.cli.http_options import URL
from leveret.cli.listing import listing
from leveret.cli.output import Columns, counted
from leveret.cli.remote import argument_option, current, in_vhost_option, read_arguments, remote_options, vhost_option

if TYPE_CHECKING:
    from leveret.shovel.moves import Move

# --add-origin-headers, also of `leveret migrate`.
add_origin_option = click.option(
    "--add-origin-headers", is_flag=True, help="Keep the exchange and the routing key of each message in headers."
)
# The name of the connections of `leveret shovel queue`.
_MOVE = "leveret shovel queue"

COLUMNS: Columns = (
    ("vhost", "vhost"),
    ("name", "name"),
    ("type", "type"),
    ("state", "state"),
    ("user", "user"),
    ("src_uri", "source"),
    ("src_queue", "queue"),
    ("dest_uri", "destination"),
    ("dest_queue", "queue"),
    ("forwarded", "forwarded"),
    ("pending", "pending"),
    ("restarts", "restarts"),
    ("error", "error"),
)


@listing("List, show and restart shovels, and move queues.", vhost_option)
def shovel(vhost: str | None) -> None:
    """List shovels with their states."""
    current().show_list("shovels.list", COLUMNS, ("vhost", "name"), vhost=vhost)


@shovel.command()
@click.argument("name")
@in_vhost_option
@remote_options
def show(name: str, vhost: str) -> None:
    """Show a shovel with its state."""
    current().show_one("shovels.show", name=name, vhost=vhost)


@shovel.command()
@click.argument("name")
@in_vhost_option
@remote_options
def restart(name: str, vhost: str) -> None:
    """Close both connections of a shovel, and start it again."""
    current().call("shovels.restart", name=name, vhost=vhost)
    click.echo(f"restarted shovel '{name}'")


@shovel.command()
@click.argument("source")
@click.argument("destination")
@argument_option
@click.option(
    "--src-protocol",
    type=click.Choice(["amqp091", "amqp10"]),
    default="amqp091",
    show_default=True,
    help="Protocol of SOURCE: AMQP 0-9-1 or 1.0.",
)
@click.option("--follow", is_flag=True, help="Continue when the queue is empty, until the command is interrupted.")
@add_origin_option
@quiet_option
def queue(
    source: str,
    destination: str,
    arguments: tuple[str, ...],
    src_protocol: str,
    follow: bool,
    add_origin_headers: bool,
    quiet: bool,
) -> None:
    """Move all messages of a queue to another one.

    SOURCE and DESTINATION are queues of any two AMQP 0-9-1 brokers.

    Both are URLs with a vhost and a queue, such as amqp://user:password@old/%2F/orders. SOURCE may speak AMQP 1.0 instead.
    The destination is declared as a durable queue with each --argument, unless it exists.

    Messages keep their order, and leave the source when the destination has confirmed them. The command may be killed at
    any point and run again: nothing is lost, and messages that were in transit may arrive twice.
    """
    if URL in click.get_current_context().meta:
        raise click.UsageError("`leveret shovel queue` is an AMQP client; give SOURCE and DESTINATION, without --url")
    from leveret.cli.messages.progress import Progress
    from leveret.shovel.lengths import OBSERVERS, Lengths
    from leveret.shovel.moves import Move, read_address

    async def move() -> int:
        def state() -> tuple[int, float | None]:
            return moving.moved, moving.share

        old, new = read_address(source, src_protocol), read_address(destination)
        if old == new:
            raise click.UsageError("SOURCE and DESTINATION are the same queue")
        async with OBSERVERS[src_protocol](old.uri, _MOVE) as at_source, Lengths(new.uri, _MOVE) as at_destination:
            with Progress("moved", not quiet, state) as progress:
                moving = Move(
                    old,
                    new,
                    _MOVE,
                    observers=(at_source, at_destination),
                    arguments=read_arguments(arguments),
                    follows=follow,
                    adds_origin=add_origin_headers,
                    report=progress.say,
                )
                consumers = await at_source.consumers(old.queue)
                if consumers:
                    progress.say(
                        f"the source has {counted(consumers, 'consumer')}, so that the order may be lost: expected"
                        " none, because consumers take messages, too"
                    )
                try:
                    await moving.run()
                finally:
                    if not quiet:
                        progress.say(f"moved {counted(moving.moved, 'message')}")
        return _check_count(moving, quiet)

    run(move)


def _check_count(moved: Move, quiet: bool) -> int:
    """Compare the numbers of messages of both queues after a move, and return the exit code."""
    if moved.gained is None:
        if not quiet:
            say("the source is empty; the destination has consumers, so that its messages were not counted")
        return 0
    if moved.gained < moved.moved:
        gained = counted(moved.gained, "message")
        say(
            f"the destination has {gained} more, but {moved.moved} were moved: it has a maximum length or a time to live,"
            " or a client took messages"
        )
        return INCOMPLETE
    if not quiet:
        say(f"the source is empty, and the destination has {counted(moved.gained, 'message')} more")
    return 0
