"""`leveret get`."""

from __future__ import annotations

from pathlib import Path

import click

from leveret.cli.client_command import quiet_option, timeout_option, url_option
from leveret.cli.consume import check_output, output_options, settle_options


@click.command()
@click.argument("queue")
@click.option("--count", type=click.IntRange(min=1), default=1, help="Number of messages.  [default: 1]")
@settle_options
@output_options
@url_option
@timeout_option
@quiet_option
def get(
    queue: str,
    count: int,
    settle: str | None,
    form: str | None,
    output_dir: Path | None,
    urls: tuple[str, ...],
    timeout: float | None,
    quiet: bool,
) -> None:
    """Get messages from a queue and print them. The exit code is 1 if the queue has fewer than --count messages."""
    from leveret.cli.messages.consuming import ConsumeOptions
    from leveret.cli.messages.consuming import get as get_all

    get_all(
        ConsumeOptions(
            urls=urls,
            queue=queue,
            count=count,
            timeout=timeout,
            settle=settle or "ack",
            form=check_output(form, output_dir),
            output_dir=output_dir,
            quiet=quiet,
        )
    )
