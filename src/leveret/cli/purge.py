"""`leveret purge`."""

from __future__ import annotations

import sys

import click

from leveret.cli.client_command import open_connection, run, timeout_option, url_option
from leveret.cli.failed import INCOMPLETE


@click.command()
@click.argument("queue")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@url_option
@timeout_option
def purge(queue: str, yes: bool, urls: tuple[str, ...], timeout: float | None) -> None:
    """Remove all ready messages from a queue; unacked messages stay. Asks for confirmation on a terminal."""
    ask = not yes and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()

    async def ready() -> int:
        async with (
            open_connection(urls, "purge", timeout) as connection,
            connection.open_channel(confirms=False) as channel,
        ):
            counted.append((await channel.declare_queue(queue, passive=True)).message_count)
        return 0

    async def drop() -> int:
        async with (
            open_connection(urls, "purge", timeout) as connection,
            connection.open_channel(confirms=False) as channel,
        ):
            counted.append(await channel.purge_queue(queue))
        return 0

    counted: list[int] = []
    if ask:
        run(ready)
        # The prompt blocks the event loop, so an open connection would miss heartbeats.
        if not click.confirm(f"Purge {counted.pop():,} messages from queue '{queue}'?", err=True):
            raise SystemExit(INCOMPLETE)
    run(drop)
    click.echo(f"purged {counted[0]} messages from queue '{queue}'")
