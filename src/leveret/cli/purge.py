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
    """Drop the messages that are ready; those that consumers hold stay. Asks first on a terminal."""
    asks = not yes and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()

    async def ready() -> int:
        async with open_connection(urls, "purge", timeout) as connection, connection.channel(confirms=False) as channel:
            counted.append((await channel.declare_queue(queue, passive=True)).message_count)
        return 0

    async def drop() -> int:
        async with open_connection(urls, "purge", timeout) as connection, connection.channel(confirms=False) as channel:
            counted.append(await channel.purge_queue(queue))
        return 0

    counted: list[int] = []
    if asks:
        run(ready)
        # Nobody answers at once: there is no connection meanwhile, whose heartbeats would have to go on.
        if not click.confirm(f"Drop {counted.pop():,} messages of queue '{queue}'?", err=True):
            raise SystemExit(NOT_ALL)
    run(drop)
    click.echo(f"{counted[0]} messages of queue '{queue}' are dropped")
