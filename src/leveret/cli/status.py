"""`leveret status`."""

from __future__ import annotations

import datetime

import click

from leveret.cli.cluster_status import cluster_lines
from leveret.cli.output import Item, label, show_json, size, text
from leveret.cli.remote import current, remote_options

# Words in the names of fields with sizes.
_SIZES = ("memory", "queue_memory", "memory_limit", "free", "size", "bytes", "octets")


@click.command()
@remote_options
def status() -> None:
    """Show the state of the broker: listeners, totals, memory and alarms."""
    broker = current()
    found = broker.call("status")
    if broker.as_json:
        show_json(found)
        return
    shards: list[Item] = found.pop("shards", [])
    cluster: Item | None = found.pop("cluster", None)
    for name, value in _flat(found):
        if value:
            click.echo(f"{label(name):<22} {value}")
    if cluster is not None:
        for name, value in cluster_lines(cluster):
            click.echo(f"{name:<22} {value}")
    for shard in shards:
        numbers = f"{len(shard['vhosts'])} vhosts, {shard['connections']} connections, {size(shard['memory'])}"
        name = f"shard {shard['number']}"
        owner = f"node {shard['node']}, epoch {shard['epoch']}, {shard['takeovers']} take-overs, " if shard["node"] else ""
        click.echo(f"{name:<22} {shard['state']}, {owner}pid {shard['pid']}, {numbers}")


def _flat(table: Item, prefix: str = "") -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            lines += _flat(value, f"{prefix}{name} ")
        elif name == "longest_turn":
            lines.append((prefix + name, f"{value * 1000:.1f} ms"))
        elif name == "indexed":
            lines.append((prefix + name, f"{value:.0%}"))
        elif name == "uptime":
            lines.append((prefix + name, str(datetime.timedelta(seconds=int(value)))))
        elif isinstance(value, list):
            lines += [(prefix + name, text(item)) for item in value]
        elif isinstance(value, int) and not isinstance(value, bool) and any(word in name for word in _SIZES):
            lines.append((prefix + name, size(value)))
        else:
            lines.append((prefix + name, text(value)))
    return lines
