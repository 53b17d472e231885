"""`leveret publish`."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import click

from leveret.cli.client_command import quiet_option, timeout_option, url_option
from leveret.cli.options import FilePath
from leveret.cli.output import Item
from leveret.cli.tables import read_table

FORMAT = click.Choice(["lines", "json", "raw"])


@click.command()
@click.argument("words", nargs=-1, metavar="[QUEUE] [BODY]...")
@click.option("--exchange", metavar="NAME", help="Publish to this exchange instead of a queue.")
@click.option("--routing-key", metavar="KEY", help="Routing key, instead of a queue name.")
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="PATH",
    type=FilePath(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    help="Read messages from a file; - is standard input.",
)
@click.option(
    "--format",
    "form",
    type=FORMAT,
    default="lines",
    show_default=True,
    help="One message per line, one JSON object per line, or the whole input as one message.",
)
@click.option(
    "--persistent/--transient",
    default=None,
    help="Whether durable queues keep the messages across restarts.  [default: persistent]",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Header; repeatable. VALUE is JSON, or text if it is not valid JSON.",
)
@click.option("--content-type", metavar="TEXT", help="MIME type of the bodies, such as text/plain.")
@click.option("--content-encoding", metavar="TEXT", help="Encoding of the bodies, such as gzip.")
@click.option(
    "--priority",
    type=click.IntRange(0, 255),
    metavar="NUMBER",
    help="Priority from 0 to 255; higher priorities are delivered first.",
)
@click.option("--expiration", type=click.IntRange(min=0), metavar="MS", help="Milliseconds until the messages expire.")
@click.option("--correlation-id", metavar="TEXT", help="Correlation id, which replies repeat.")
@click.option("--reply-to", metavar="QUEUE", help="Queue for replies.")
@click.option("--message-id", metavar="TEXT", help="Message id.")
@click.option("--timestamp", metavar="TIME", help="Timestamp, in ISO 8601 or seconds since 1970.")
@click.option("--type", "type_", metavar="TEXT", help="Application-specific message type.")
@click.option("--user-id", metavar="NAME", help="User id; the broker accepts only the logged-in user.")
@click.option("--app-id", metavar="TEXT", help="Id of the publishing application.")
@click.option(
    "--mandatory/--no-mandatory",
    default=None,
    help="Fail if a message cannot be routed to a queue.  [default: only for the default exchange]",
)
@click.option(
    "--window", type=click.IntRange(min=1), default=200, show_default=True, help="Maximum number of unconfirmed messages."
)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="NUMBER", help="Maximum number of messages per second."
)
@click.option("--count", type=click.IntRange(min=1), default=1, help="Publish each message this many times.  [default: 1]")
@url_option
@timeout_option
@quiet_option
def publish(
    words: tuple[str, ...],
    exchange: str | None,
    routing_key: str | None,
    files: tuple[Path, ...],
    form: str,
    persistent: bool | None,
    headers: tuple[str, ...],
    timestamp: str | None,
    type_: str | None,
    mandatory: bool | None,
    window: int,
    rate: float | None,
    count: int,
    urls: tuple[str, ...],
    timeout: float | None,
    quiet: bool,
    **texts: str | None,
) -> None:
    """Publish messages, and exit when the broker has confirmed them all.

    \b
    leveret publish QUEUE BODY...              each BODY to a queue
    leveret publish --exchange NAME BODY...    to an exchange, with --routing-key
    ... | leveret publish QUEUE                each line of standard input to a queue
    """
    from leveret.cli.messages.publishing import PublishOptions
    from leveret.cli.messages.publishing import publish as publish_all

    bodies = words
    if exchange is None and routing_key is None:
        if words and not (form == "json" and words[0].startswith("{")):
            exchange, routing_key, bodies = "", words[0], words[1:]
        elif form != "json":
            raise click.UsageError("expected a queue, or --exchange and --routing-key")
    if not bodies and not files:
        files = (Path("-"),)
    if any(str(path) == "-" for path in files) and sys.stdin is None:
        raise click.UsageError("standard input is closed; expected a BODY or --file")
    typed = any(str(path) == "-" for path in files) and sys.stdin.isatty()
    if typed and not quiet:
        click.echo("Type one message per line; Ctrl-D ends the input.", err=True)
    properties: Item = {name: value for name, value in texts.items() if value is not None}
    if type_ is not None:
        properties["type"] = type_
    if timestamp is not None:
        properties["timestamp"] = _read_time(timestamp)
    publish_all(
        PublishOptions(
            urls=urls,
            timeout=timeout,
            form=form,
            bodies=bodies,
            files=files,
            exchange=exchange,
            routing_key=routing_key,
            properties=properties,
            headers=read_table(headers, "--header"),
            persistent=persistent,
            mandatory=mandatory,
            window=window,
            count=count,
            rate=rate,
            quiet=quiet,
            typed=typed,
        )
    )


def _read_time(value: str) -> datetime | int:
    from leveret.cli.messages.record import read_time

    try:
        return read_time(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--timestamp") from None
