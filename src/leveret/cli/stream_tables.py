"""`leveret streams iceberg`."""

from __future__ import annotations

import time

import click

from leveret.cli.failed import Failed
from leveret.cli.listing import listing
from leveret.cli.output import moment
from leveret.cli.remote import Remote, current, remote_options, vhost_option
from leveret.cli.stream_segments import POLL_INTERVAL

TABLES = (
    ("vhost", "vhost"),
    ("name", "stream"),
    ("table", "table"),
    ("files", "files"),
    ("pending", "pending"),
    ("synced", "up to date since", moment),
    ("problem", "problem"),
)


@listing("List and update the Iceberg tables of streams.", vhost_option)
def iceberg(vhost: str | None) -> None:
    """List the tables, and whether they are up to date."""
    _show(current(), vhost, None)


def _show(broker: Remote, vhost: str | None, name: str | None) -> None:
    broker.show_list("streams.tables", TABLES, ("vhost", "name"), vhost=vhost, name=name)


@iceberg.command()
@click.argument("name", required=False)
@vhost_option
@remote_options
def sync(name: str | None, vhost: str | None) -> None:
    """Update tables now and wait for completion. Without NAME, updates all tables. Also retries failed updates."""
    broker = current()
    broker.call("streams.sync_tables", vhost=vhost, name=name)
    while True:
        found = broker.call("streams.tables", vhost=vhost, name=name)
        failed = [item for item in found if item["problem"] and item["pending"]]
        if failed:
            raise Failed(f"cannot update the table of stream '{failed[0]['name']}': {failed[0]['problem']}")
        if not any(item["pending"] for item in found):
            break
        time.sleep(POLL_INTERVAL)
    _show(broker, vhost, name)
