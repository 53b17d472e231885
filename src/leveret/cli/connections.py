"""`leveret connections`, `leveret channels`, `leveret transactions` and `leveret consumers`."""

from __future__ import annotations

import click

from leveret.cli.failed import Failed
from leveret.cli.listing import listing
from leveret.cli.output import Columns, seconds, size
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option

CONNECTIONS: Columns = (
    ("number", "number"),
    ("name", "name"),
    ("user", "user"),
    ("vhost", "vhost"),
    ("protocol", "protocol"),
    ("mechanism", "mechanism"),
    ("tls", "TLS"),
    ("websocket_path", "WebSocket"),
    ("state", "state"),
    ("channels", "channels"),
    ("octets_in", "received", size),
    ("octets_out", "sent", size),
)
CHANNELS: Columns = (
    ("connection", "connection"),
    ("number", "channel"),
    ("user", "user"),
    ("vhost", "vhost"),
    ("consumers", "consumers"),
    ("unacked", "unacked"),
    ("unconfirmed", "unconfirmed"),
    ("prefetch", "prefetch"),
    ("mode", "mode"),
    ("state", "state"),
)
TRANSACTIONS: Columns = (
    ("vhost", "vhost"),
    ("user", "user"),
    ("connection", "connection"),
    ("channel", "channel"),
    ("kind", "kind"),
    ("id", "id"),
    ("state", "state"),
    ("publishes", "publishes"),
    ("settlements", "settlements"),
    ("size", "size", size),
    ("age", "age", seconds),
)
CONSUMERS: Columns = (
    ("vhost", "vhost"),
    ("queue", "queue"),
    ("tag", "tag"),
    ("connection", "connection"),
    ("channel", "channel"),
    ("unacked", "unacked"),
    ("oldest_unacked_age", "oldest", seconds),
    ("no_ack", "no-ack"),
    ("exclusive", "exclusive"),
    ("active", "active"),
    ("priority", "priority"),
)


def _list(call: str, columns: Columns, vhost: str | None) -> None:
    current().show_list(call, columns, vhost=vhost)


@listing("List and close connections.", vhost_option)
def connections(vhost: str | None) -> None:
    """List connections."""
    _list("connections.list", CONNECTIONS, vhost)


@connections.command()
@click.argument("number", type=int, required=False)
@click.option("--user", help="Close all connections of this user.")
@click.option("--reason", help="Reason to send to the client.")
@remote_options
def close(number: int | None, user: str | None, reason: str | None) -> None:
    """Close connection NUMBER, or all connections of a user. The client receives reply code 320, connection-forced."""
    if (number is None) == (user is None):
        raise click.UsageError("expected either the number of a connection or --user")
    broker = current()
    if user is None:
        broker.call("connections.close", number=number, reason=reason)
        click.echo(f"closed connection {number}")
        return
    closed = broker.call("connections.close_user", user=user, reason=reason)["connections"]
    if not closed:
        raise Failed(f"user '{user}' has no connections")
    click.echo(f"closed {closed} connections of user '{user}'")


@click.command()
@vhost_option
@remote_options
def channels(vhost: str | None) -> None:
    """List channels."""
    _list("channels.list", CHANNELS, vhost)


@click.command()
@vhost_option
@remote_options
def transactions(vhost: str | None) -> None:
    """List open transactions that have publishes or settlements, and all those of AMQP 1.0."""
    _list("transactions.list", TRANSACTIONS, vhost)


@listing("List and cancel consumers.", vhost_option)
def consumers(vhost: str | None) -> None:
    """List consumers."""
    _list("consumers.list", CONSUMERS, vhost)


@consumers.command()
@click.argument("queue")
@click.argument("tag")
@in_vhost_option
@click.option("--connection", type=int, help="Only of this connection, by its number.")
@click.option("--channel", type=int, help="Only of this channel.")
@remote_options
def cancel(queue: str, tag: str, vhost: str, connection: int | None, channel: int | None) -> None:
    """Cancel the consumers of QUEUE with the tag TAG. Their unacked messages stay with their clients."""
    cancelled = current().call(
        "consumers.cancel", vhost=vhost, queue=queue, tag=tag, connection=connection, channel=channel
    )["consumers"]
    click.echo(f"cancelled {cancelled} consumers of queue '{queue}'")
