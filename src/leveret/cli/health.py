"""`leveret health`."""

from __future__ import annotations

import socket

import click

from leveret.broker.log import OK
from leveret.cli.addresses import endpoint_of
from leveret.cli.failed import Failed
from leveret.cli.output import Item, show_json
from leveret.cli.remote import current, remote_options


@click.command()
@click.option("--alarms", is_flag=True, help="Also fail while an alarm blocks publishers.")
@click.option("--indexed", is_flag=True, help="Also fail while messages are being indexed after a start.")
@click.option(
    "--listener",
    "listeners",
    multiple=True,
    metavar="PORT|PROTOCOL",
    help="Also fail unless this port, or one for amqp or amqps, accepts connections; repeatable.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=5.0,
    show_default=True,
    help="Seconds for the broker to answer.",
)
@remote_options
def health(alarms: bool, indexed: bool, listeners: tuple[str, ...], timeout: float) -> None:
    """Check a broker, for probes of containers and load balancers.

    Fails if the broker does not answer or its log does not accept commits. The exit code is 0 for a healthy broker, 1 for
    an unhealthy one, and 3 if none answers.
    """
    broker = current(timeout)
    found: Item = broker.call("health")
    problems = _problems(found, alarms, indexed, listeners, timeout)
    if broker.as_json:
        show_json({"status": "failed" if problems else "ok", "problems": problems, **found})
    elif not problems:
        click.echo("ok")
    if problems:
        raise Failed("; ".join(problems))


def _problems(found: Item, alarms: bool, indexed: bool, listeners: tuple[str, ...], timeout: float) -> list[str]:
    problems = []
    if found["state"] != OK:
        problems.append(f"the log is {found['state']}: {found['reason']}")
    if alarms and found["alarm"]:
        problems.append(f"publishers are blocked: {found['alarm']}")
    if indexed and found["unindexed_queues"]:
        problems.append(
            f"the messages of {found['unindexed_queues']} queues are being indexed: {100 * found['indexed']:.0f} % are read"
        )
    for wanted in listeners:
        urls = [url for url in found["listeners"] if wanted in (url.partition("://")[0], url.rpartition(":")[2])]
        if not urls:
            problems.append(
                f"no listener for '{wanted}'; the broker listens on {', '.join(found['listeners']) or 'nothing'}"
            )
        problems += [f"{url} does not accept connections: {reason}" for url in urls if (reason := _try(url, timeout))]
    return problems


def _try(url: str, timeout: float) -> str:
    """Return why a listener does not accept connections, or ""."""
    try:
        socket.create_connection(endpoint_of(url), timeout).close()
    except OSError as error:
        return str(error)
    return ""
