"""`leveret consume`."""

from __future__ import annotations

from pathlib import Path

import click

from leveret.cli.client_command import SECONDS, quiet_option, url_option
from leveret.cli.options import together

# What becomes of messages, the same for `consume` and `get`: parameter `settle`.
settle_options = together(
    click.option("--ack", "settle", flag_value="ack",
                 help="The broker may forget messages that are written.  [default]"),
    click.option("--reject", "settle", flag_value="reject",
                 help="They are dropped, or dead-lettered, when they are written."),
    click.option("--requeue", "settle", flag_value="requeue", help="All of them go back to the queue at the end."),
    click.option("--no-ack", "settle", flag_value="no-ack",
                 help="The broker forgets messages as it sends them; what is not written is lost."),
)
# How messages are written, the same for `consume` and `get`: parameters `form` and `output_dir`.
output_options = together(
    click.option("--format", "form", type=click.Choice(["lines", "json", "raw"]),
                 help="A body a line, a JSON object a line, or bodies as they are.  [default: lines]"),
    click.option("--output-dir", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
                 help="Write each body to a file of its own there."),
)


def check_output(form: str | None, output_dir: Path | None) -> str:
    """The format that is meant."""
    if output_dir is not None and form not in (None, "raw"):
        raise click.UsageError("--output-dir is for bodies as they are (--format raw)")
    return form or "lines"


@click.command()
@click.argument("queue", required=False)
@click.option("--exchange", metavar="NAME", help="Consume from a temporary queue that is bound to this exchange.")
@click.option("--binding-key", "binding_keys", multiple=True, metavar="KEY",
              help="With these binding keys.  [default: #]")
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--timeout", "idle", type=SECONDS, metavar="SECONDS", help="End when no message has come for so long.")
@click.option("--prefetch", type=click.IntRange(0, 65535), metavar="NUMBER",
              help="How many messages may be here that are not settled; 0 is no limit.  [default: 100]")
@settle_options
@output_options
@url_option
@quiet_option
def consume(queue: str | None, exchange: str | None, binding_keys: tuple[str, ...], count: int | None, idle: float | None,
            prefetch: int | None, settle: str | None, form: str | None, output_dir: Path | None, urls: tuple[str, ...],
            quiet: bool) -> None:
    """Print messages as they come, until Ctrl-C, --count or --timeout.

    A message is acknowledged when it is written. The exit code is 1 when no message came, or fewer than --count.
    """
    from leveret.cli.messages.consuming import Order
    from leveret.cli.messages.consuming import consume as consume_all

    if (queue is None) == (exchange is None):
        raise click.UsageError("what from? Give a queue, or --exchange")
    if binding_keys and exchange is None:
        raise click.UsageError("--binding-key is for --exchange")
    consume_all(Order(urls=urls, queue=queue, exchange=exchange or "", binding_keys=binding_keys or ("#",), count=count,
                      idle=idle, prefetch=prefetch, settle=settle or "ack", form=check_output(form, output_dir),
                      output_dir=output_dir, quiet=quiet))
