"""`leveret audit`."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import click

from leveret.cli.output import Columns, show_json, show_table
from leveret.cli.remote import current, remote_options

COLUMNS: Columns = (
    ("time", "time", lambda time: datetime.fromtimestamp(time / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")),
    ("user", "user"),
    ("source", "source"),
    ("action", "action"),
    ("vhost", "vhost"),
    ("name", "object"),
    ("before", "before", lambda value: json.dumps(value, ensure_ascii=False)),
    ("after", "after", lambda value: json.dumps(value, ensure_ascii=False)),
)


@click.command()
@click.option("--user", help="Only changes by this user.")
@click.option("--action", help="Only operations whose names contain this text, such as queues.delete.")
@click.option("--kind", help="Only objects of this kind, such as queue or user.")
@click.option("--vhost", help="Only objects of this vhost.")
@click.option("--object", "name", help="Only objects whose names contain this text.")
@click.option("--since", help="Only changes since this time, in ISO 8601; UTC without a time zone.")
@click.option("--until", help="Only changes before this time.")
@click.option("--page", type=click.IntRange(1), default=1, show_default=True, help="The page, newest changes first.")
@click.option("--page-size", type=click.IntRange(1, 500), default=100, show_default=True, help="Changes per page.")
@remote_options
def audit(
    user: str | None,
    action: str | None,
    kind: str | None,
    vhost: str | None,
    name: str | None,
    since: str | None,
    until: str | None,
    page: int,
    page_size: int,
) -> None:
    """List administrative changes: who, when, from where, before and after."""
    broker = current()
    found = broker.call(
        "audit.search",
        user=user,
        action=action,
        kind=kind,
        vhost=vhost,
        object=name,
        since=since,
        until=until,
        page=page,
        page_size=page_size,
    )
    if broker.as_json:
        show_json(found["items"])
        return
    show_table(found["items"], COLUMNS)
    if found["page_count"] > 1:
        click.echo(f"page {page} of {found['page_count']}, {found['total_count']} changes", err=True)
