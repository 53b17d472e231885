"""`leveret streams iceberg`: the tables over streams."""

from __future__ import annotations

import time
from typing import Any

import click

from leveret.cli.failed import Failed
from leveret.cli.listing import listing
from leveret.cli.remote import Remote, current, remote_options, vhost_option
from leveret.cli.stream_segments import PAUSE, moment

TABLES = (("vhost", "vhost"), ("name", "stream"), ("table", "table"), ("files", "files"), ("pending", "pending"),
          ("synced", "in step since", moment), ("problem", "problem"))


@listing("List the Iceberg tables over streams; `sync` has them follow now.", vhost_option)
def iceberg(vhost: str | None, **_: Any) -> None:
    """List the tables, and whether they agree with the segments."""
    _show(current(), vhost, None)


def _show(broker: Remote, vhost: str | None, name: str | None) -> None:
    broker.show_list("streams.tables", TABLES, ("vhost", "name"), vhost=vhost, name=name)


@iceberg.command()
@click.argument("name", required=False)
@vhost_option
@remote_options
def sync(name: str | None, vhost: str | None, **_: Any) -> None:
    """Have the tables of all streams, or of one, follow now, and wait for it. It also repairs what failed before."""
    broker = current()
    broker.call("streams.sync_tables", vhost=vhost, name=name)
    while True:
        found = broker.call("streams.tables", vhost=vhost, name=name)
        failed = [item for item in found if item["problem"] and item["pending"]]
        if failed:
            raise Failed(f"the table of stream '{failed[0]['name']}' does not follow: {failed[0]['problem']}")
        if not any(item["pending"] for item in found):
            break
        time.sleep(PAUSE)
    _show(broker, vhost, name)
