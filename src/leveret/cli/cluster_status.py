"""The state of a cluster as lines of text."""

from __future__ import annotations

from leveret.cli.output import Item, size, text

# Seconds from which a wait for a standby is more than that of an ordinary commit.
_MIN_WAIT = 1.0


def cluster_lines(cluster: Item) -> list[tuple[str, str]]:
    """Return the name and the value of each line about a cluster."""
    lines: list[tuple[str, str]] = []
    if cluster["version"]:
        lines.append(("database", f"PostgreSQL {cluster['version']} at {text(cluster['database'])}"))
    if cluster["problem"]:
        lines.append(("problem", text(cluster["problem"])))
    if cluster["version"]:  # otherwise, the database has not told its state yet
        lines.append(("replication", text(cluster["synchronous"]) or "one disk (no synchronous standby)"))
        lines += [("standby", _standby(standby)) for standby in cluster["standbys"]]
        lines.append(("waits for a standby", _wait(cluster["waiting"], cluster["waiting_seconds"])))
    counts = [f"{count} {state}" for state, count in cluster["nodes"].items() if count]
    lines.append(("nodes", ", ".join(counts)))
    unreached = [
        f"{text(node)} does not reach {', '.join(map(text, others))}" for node, others in cluster["unreached"].items()
    ]
    lines.append(("links", "; ".join(unreached) or "all nodes reach each other"))
    missing = ", ".join(map(str, cluster["unowned"]))
    lines.append(("shards", f"{cluster['shards']}; without an owner: {missing or 'none that needs one'}"))
    lines.append(("take-overs", str(cluster["takeovers"])))
    last: Item | None = cluster["last_takeover"]
    if last is not None:
        to = f" to node {text(last['node'])}" if last["node"] else ""
        lines.append(("last take-over", f"shard {last['shard']}{to} {age(last['age'])} ago, {outage(last['seconds'])}"))
    return lines


def _standby(standby: Item) -> str:
    lag = "lag unknown" if standby["lag"] is None else f"lag {size(standby['lag'])}"
    states = ", ".join(text(standby[name]) for name in ("state", "sync") if standby[name])
    return f"{text(standby['name']) or '(hidden: grant pg_monitor)'}: {states or 'state hidden'}, {lag}"


def _wait(waiting: int, seconds: float) -> str:
    if seconds < _MIN_WAIT:
        return "no"
    return f"{waiting} transactions, for {seconds:.1f} s"


def outage(seconds: float | None) -> str:
    """Format the time from the last sign of life of an owner until its shard served again."""
    return "not served yet" if seconds is None else f"served again after {seconds:.2f} s"


def age(seconds: float | None) -> str:
    """Format a time that has passed; None is empty."""
    if seconds is None:
        return ""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
