"""`leveret sink-transactions`."""

from __future__ import annotations

import click

from leveret.cli.listing import listing
from leveret.cli.output import Columns, seconds, size
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option

COLUMNS: Columns = (
    ("vhost", "vhost"),
    ("stage", "transaction"),
    ("app", "app"),
    ("user", "user"),
    ("state", "state"),
    ("messages", "messages"),
    ("octets", "size", size),
    ("idle", "idle", seconds),
)
APP_COLUMNS: Columns = (
    ("vhost", "vhost"),
    ("app", "app"),
    ("user", "user"),
    ("batch", "batch"),
    ("promoting", "committing"),
    ("moved", "moved"),
    ("waits_for", "waiting for"),
)


@listing("List and abort sink transactions, which are batches that sinks publish atomically.", vhost_option)
def sink_transactions(vhost: str | None) -> None:
    """List sink transactions. The idle time is in seconds."""
    current().show_list("stages.list", COLUMNS, ("vhost", "app", "stage"), vhost=vhost)


@sink_transactions.command()
@vhost_option
@remote_options
def apps(vhost: str | None) -> None:
    """List sinks with their last batch and commit progress."""
    current().show_list("stages.apps", APP_COLUMNS, ("vhost", "app"), vhost=vhost)


@sink_transactions.command()
@click.argument("transaction", nargs=-1, required=True)
@in_vhost_option
@remote_options
def abort(transaction: tuple[str, ...], vhost: str) -> None:
    """Abort sink transactions and drop their messages."""
    result = current().call("stages.discard", stages=list(transaction), vhost=vhost)
    click.echo(f"aborted {result['discarded']} sink transactions")


@sink_transactions.command()
@click.argument("app")
@in_vhost_option
@remote_options
def forget(app: str, vhost: str) -> None:
    """Forget the last batch of a sink. If the sink commits that batch again, the broker publishes it again."""
    current().call("stages.forget", name=app, vhost=vhost)
    click.echo(f"forgot the last batch of app '{app}'")
