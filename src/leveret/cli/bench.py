"""`leveret bench`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from leveret.cli.client_command import quiet_option, url_option

# At least 1, and as many as a broker may be asked for.
MANY = click.IntRange(1, 100_000)
EXCHANGES = ("default", "direct", "fanout", "topic", "headers", "x-consistent-hash")
DEFAULT_SECONDS = 10.0


@click.command()
@click.option("--publishers", type=MANY, default=1, show_default=True, help="Each has a connection of its own.")
@click.option("--consumers", type=click.IntRange(0, 100_000), default=1, show_default=True, help="They have, too.")
@click.option("--queues", type=MANY, default=1, show_default=True, help="Publishers and consumers spread over them.")
@click.option("--exchange", type=click.Choice(EXCHANGES), default="default", show_default=True,
              help="The type of the exchange between them.")
@click.option("--size", type=click.IntRange(0, 1 << 30), default=256, show_default=True, help="Octets of a body.")
@click.option("--persistent", is_flag=True, help="Messages that queues keep across a restart.")
@click.option("--window", type=click.IntRange(min=1), default=200, show_default=True,
              help="How many messages of a publisher may be unconfirmed.")
@click.option("--no-confirms", is_flag=True, help="Do not ask for confirms.")
@click.option("--prefetch", type=click.IntRange(0, 65535), default=500, show_default=True,
              help="How many messages a consumer may hold; 0 is no limit.")
@click.option("--ack-every", type=MANY, default=50, show_default=True, help="One acknowledgement for so many messages.")
@click.option("--no-ack", is_flag=True, help="Consume without acknowledgements.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second of all publishers together.")
@click.option("--seconds", type=click.FloatRange(min=0), help="How long; 0 is until Ctrl-C.  [default: 10]")
@click.option("--messages", type=click.IntRange(min=1), help="How many messages, instead of how long.")
@click.option("--processes", type=click.IntRange(1, 64), default=1, show_default=True,
              help="Make the load with so many processes.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), metavar="FILE",
              help="Write the results as JSON; - is standard output.")
@url_option
@quiet_option
def bench(*, urls: tuple[str, ...], no_confirms: bool, seconds: float | None, messages: int | None, processes: int,
          json_path: Path | None, quiet: bool, **plan: Any) -> None:
    """Put load on any AMQP 0-9-1 broker, and measure it. The queues are deleted at the end."""
    from leveret.cli.load.benching import bench as run_bench
    from leveret.cli.load.plan import Plan

    if not plan["no_ack"] and 0 < plan["prefetch"] < plan["ack_every"] and plan["consumers"]:
        raise click.UsageError("with an --ack-every above --prefetch the broker would wait for acknowledgements for ever")
    if seconds is None and messages is None:
        seconds = DEFAULT_SECONDS
    name = f"leveret-bench.{os.getpid()}.{os.urandom(3).hex()}"
    run_bench(Plan(urls=urls, name=name, confirms=not no_confirms, seconds=seconds or None, messages=messages, **plan),
              processes, json_path, quiet)
