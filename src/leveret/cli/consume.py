"""`leveret consume`."""

from __future__ import annotations

from pathlib import Path

import click

from leveret.cli.client_command import SECONDS, quiet_option, url_option
from leveret.cli.options import FilePath, together

# Settlement options of `consume` and `get`; parameter `settle`.
settle_options = together(
    click.option("--ack", "settle", flag_value="ack", help="Acknowledge messages after writing them.  [default]"),
    click.option(
        "--reject",
        "settle",
        flag_value="reject",
        help="Reject messages after writing them: the broker drops or dead-letters them.",
    ),
    click.option("--requeue", "settle", flag_value="requeue", help="Requeue all messages at the end."),
    click.option(
        "--no-ack",
        "settle",
        flag_value="no-ack",
        help="Consume without acknowledgements: messages that are received but not written are lost.",
    ),
)
# Output options of `consume` and `get`; parameters `form` and `output_dir`.
output_options = together(
    click.option(
        "--format",
        "form",
        type=click.Choice(["lines", "json", "raw"]),
        help="One body per line, one JSON object per line, or bodies without separators.  [default: lines]",
    ),
    click.option(
        "--output-dir",
        type=FilePath(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Write each body to its own file in this directory.",
    ),
)


def check_output(form: str | None, output_dir: Path | None) -> str:
    """Return the output format. Raises `click.UsageError` if the options conflict."""
    if output_dir is not None and form not in (None, "raw"):
        raise click.UsageError("--output-dir requires --format raw")
    return form or "lines"


@click.command()
@click.argument("queue", required=False)
@click.option("--exchange", metavar="NAME", help="Consume from a temporary queue bound to this exchange.")
@click.option(
    "--binding-key",
    "binding_keys",
    multiple=True,
    metavar="KEY",
    help="Binding key for --exchange; repeatable.  [default: #]",
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option("--timeout", "idle", type=SECONDS, metavar="SECONDS", help="Stop after this long without a message.")
@click.option(
    "--prefetch",
    type=click.IntRange(0, 65535),
    metavar="NUMBER",
    help="Maximum number of unacked messages; 0 is unlimited.  [default: 100]",
)
@settle_options
@output_options
@url_option
@quiet_option
def consume(
    queue: str | None,
    exchange: str | None,
    binding_keys: tuple[str, ...],
    count: int | None,
    idle: float | None,
    prefetch: int | None,
    settle: str | None,
    form: str | None,
    output_dir: Path | None,
    urls: tuple[str, ...],
    quiet: bool,
) -> None:
    """Print messages as they arrive, until Ctrl-C, --count or --timeout.

    A message is acknowledged after it is written. The exit code is 1 if no message arrived, or fewer than --count did.
    """
    from leveret.cli.messages.consuming import ConsumeOptions
    from leveret.cli.messages.consuming import consume as consume_all

    if (queue is None) == (exchange is None):
        raise click.UsageError("expected either a queue or --exchange")
    if binding_keys and exchange is None:
        raise click.UsageError("--binding-key requires --exchange")
    consume_all(
        ConsumeOptions(
            urls=urls,
            queue=queue,
            exchange=exchange or "",
            binding_keys=binding_keys or ("#",),
            count=count,
            idle=idle,
            prefetch=prefetch,
            settle=settle or "ack",
            form=check_output(form, output_dir),
            output_dir=output_dir,
            quiet=quiet,
        )
    )
