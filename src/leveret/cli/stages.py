"""`leveret stages`."""

from __future__ import annotations

from typing import Any

import click

from leveret.cli.listing import listing
from leveret.cli.output import Columns
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option

COLUMNS: Columns = (
    ("vhost", "vhost"), ("stage", "stage"), ("app", "app"), ("user", "user"), ("state", "state"),
    ("messages", "messages"), ("octets", "octets"), ("idle", "idle"),
)
APP_COLUMNS: Columns = (
    ("vhost", "vhost"), ("app", "app"), ("user", "user"), ("batch", "batch"), ("promoting", "promoting"),
    ("moved", "moved"), ("waits_for", "waits for"),
)


@listing("List stages, in which sinks publish what they promote batch by batch; the subcommands give them up.",
         vhost_option)
def stages(vhost: str | None, **_: Any) -> None:
    """List stages with what they hold, and for how many seconds nothing has happened to them."""
    current().show_list("stages.list", COLUMNS, ("vhost", "app", "stage"), vhost=vhost)


@stages.command()
@vhost_option
@remote_options
def apps(vhost: str | None, **_: Any) -> None:
    """List sinks with the last batch of each, and how far a promotion under way has come."""
    current().show_list("stages.apps", APP_COLUMNS, ("vhost", "app"), vhost=vhost)


@stages.command()
@click.argument("stage", nargs=-1, required=True)
@in_vhost_option
@remote_options
def discard(stage: tuple[str, ...], vhost: str, **_: Any) -> None:
    """Give stages up, with the messages in them."""
    result = current().call("stages.discard", stages=list(stage), vhost=vhost)
    click.echo(f"{result['discarded']} stages are discarded")


@stages.command()
@click.argument("app")
@in_vhost_option
@remote_options
def forget(app: str, vhost: str, **_: Any) -> None:
    """Forget the last batch of a sink. A batch that it promotes again is published again."""
    current().call("stages.forget", name=app, vhost=vhost)
    click.echo(f"the last batch of app '{app}' is forgotten")
