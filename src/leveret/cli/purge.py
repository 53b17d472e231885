"""`leveret purge`."""

from __future__ import annotations

import sys

import click

from leveret.cli.client_command import open_connection, run, timeout_option, url_option
from leveret.cli.failed import NOT_ALL


@click.command()
@click.argument("queue")
@click.option("--yes", is_flag=True, help="Do not ask.")
@url_option
@timeout_option
def purge(queue: str, yes: bool, urls: tuple[str, ...], timeout: float | None) -> None:
    """Drop the ready messages of a queue; unacked messages stay. On a terminal, ask first."""
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
        # No connection is open while the user thinks, because it would have to send heartbeats.
        if not click.confirm(f"Drop {counted.pop():,} messages of queue '{queue}'?", err=True):
            raise SystemExit(NOT_ALL)
    run(drop)
    click.echo(f"dropped {counted[0]} messages of queue '{queue}'")
