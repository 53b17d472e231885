"""`leveret bench`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from leveret.cli.client_command import quiet_option, url_option
from leveret.cli.load.plan import EXCHANGES, Plan
from leveret.cli.options import FilePath

COUNT = click.IntRange(1, 100_000)
DEFAULT_SECONDS = 10.0


@click.command()
@click.option(
    "--publishers", type=COUNT, default=1, show_default=True, help="Number of publishers, each with its own connection."
)
@click.option(
    "--consumers",
    type=click.IntRange(0, 100_000),
    default=1,
    show_default=True,
    help="Number of consumers, each with its own connection.",
)
@click.option(
    "--queues",
    type=COUNT,
    default=1,
    show_default=True,
    help="Number of queues to spread publishers and consumers over.",
)
@click.option(
    "--exchange",
    type=click.Choice(EXCHANGES),
    default="default",
    show_default=True,
    help="Type of the exchange to publish to.",
)
@click.option("--size", type=click.IntRange(0, 1 << 30), default=256, show_default=True, help="Bytes per body.")
@click.option("--persistent", is_flag=True, help="Publish persistent messages to durable queues.")
@click.option(
    "--window",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Maximum number of unconfirmed messages per publisher.",
)
@click.option("--no-confirms", is_flag=True, help="Publish without confirms.")
@click.option(
    "--prefetch",
    type=click.IntRange(0, 65535),
    default=500,
    show_default=True,
    help="Maximum number of unacked messages per consumer; 0 is unlimited.",
)
@click.option("--ack-every", type=COUNT, default=50, show_default=True, help="Number of messages per acknowledgement.")
@click.option("--no-ack", is_flag=True, help="Consume without acknowledgements.")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Maximum number of messages per second, over all publishers.",
)
@click.option("--seconds", type=click.FloatRange(min=0), help="Duration; 0 runs until Ctrl-C.  [default: 10]")
@click.option("--messages", type=click.IntRange(min=1), help="Stop after this many messages instead of --seconds.")
@click.option("--processes", type=click.IntRange(1, 64), default=1, show_default=True, help="Number of client processes.")
@click.option(
    "--json",
    "json_path",
    type=FilePath(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Write the results as JSON; - is standard output.",
)
@url_option
@quiet_option
def bench(
    *,
    urls: tuple[str, ...],
    no_confirms: bool,
    seconds: float | None,
    messages: int | None,
    processes: int,
    json_path: Path | None,
    quiet: bool,
    **plan: Any,
) -> None:
    """Benchmark an AMQP 0-9-1 broker. The benchmark declares its own queues, and deletes them at the end."""
    from leveret.cli.load.benching import bench as run_bench

    if not plan["no_ack"] and 0 < plan["prefetch"] < plan["ack_every"] and plan["consumers"]:
        raise click.UsageError("--ack-every is above --prefetch: the broker would wait for acknowledgements forever")
    if seconds is None and messages is None:
        seconds = DEFAULT_SECONDS
    name = f"leveret-bench.{os.getpid()}.{os.urandom(3).hex()}"
    run_bench(
        Plan(urls=urls, name=name, confirms=not no_confirms, seconds=seconds or None, messages=messages, **plan),
        processes,
        json_path,
        quiet,
    )
