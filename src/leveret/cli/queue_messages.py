"""`leveret messages`: look at the messages of a queue in their places, move, copy, delete, resend and replay them."""

from __future__ import annotations

import base64
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from leveret.cli.failed import INCOMPLETE, Failed
from leveret.cli.options import FilePath, together
from leveret.cli.output import Columns, Item, Reply, StatusLine, moment, seconds, show_json, show_table, size
from leveret.cli.remote import Remote, current, in_vhost_option, remote_options
from leveret.cli.tables import read_object

# The limits of one request, after which it returns a cursor: short enough for a timely progress line.
_LIMITS: Final[Item] = {"examine": 100_000, "examine_bytes": 256 << 20, "seconds": 1.0}
# Messages of one request that are shown.
_PAGE: Final = 1000
# Bytes of a payload in a table and in JSON.
_TABLE_BYTES: Final = 60
_JSON_BYTES: Final = 64 << 10
_MATCHES: Final = {
    "=": "equals",
    "!=": "not_equals",
    "<": "less",
    "<=": "less_or_equal",
    ">": "greater",
    ">=": "greater_or_equal",
    "*=": "contains",
    "~=": "regex",
}
# Operators that compare a value that is a number as such.
_ORDERS: Final = ("<", "<=", ">", ">=")
_COUNTS: Final = ("messages", "unroutable", "refused", "missing", "examined", "skipped")
_WHY: Final = {
    "unroutable": "no queue would get them",
    "refused": "a queue that would get them is full",
    "missing": "they are not ready any more",
}

READY: Columns = (
    ("id", "id"),
    ("exchange", "exchange"),
    ("routing_key", "routing key"),
    ("deliveries", "deliveries"),
    ("payload_bytes", "size", size),
    ("payload", "payload"),
)
UNACKED: Columns = (
    *READY[:-1],
    ("consumer", "consumer"),
    ("connection", "connection"),
    ("channel", "channel"),
    ("unacked_age", "unacked for", seconds),
    READY[-1],
)
DELAYED: Columns = (*READY[:-1], ("ready_at", "ready at", moment), READY[-1])
# By the state of the messages.
COLUMNS: Final = {"ready": READY, "unacked": UNACKED, "delayed": DELAYED}
# Groups of dead letters.
GROUPS: Columns = (
    ("reason", "reason"),
    ("queue", "queue"),
    ("exchange", "exchange"),
    ("messages", "messages"),
    ("bytes", "size", size),
)


def _read_conditions(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> list[Item]:
    return [_read_condition(text) for text in texts]


def _read_condition(text: str) -> Item:
    parts = re.fullmatch(r"([^=!<>*~].*?)(?:(!=|<=|>=|\*=|~=|=|<|>)(.*))?", text, re.DOTALL)
    if parts is None:
        raise click.BadParameter(f"{text!r}: expected FIELD=VALUE, FIELD<VALUE, FIELD*=TEXT, FIELD~=REGEX or FIELD")
    field, operator, value = parts.groups()
    if operator is None:
        return {"field": field, "match": "exists"}
    if operator in _ORDERS:
        with suppress(ValueError):
            value = float(value) if "." in value or "e" in value.lower() else int(value)
    return {"field": field, "match": _MATCHES[operator], "value": value}


where_options = together(
    click.option(
        "--where",
        multiple=True,
        callback=_read_conditions,
        metavar="CONDITION",
        help="FIELD=VALUE, also with !=, <, <=, > and >=, FIELD*=TEXT (contains), FIELD~=REGEX or FIELD (exists);"
        " repeatable, messages must match all conditions. FIELD is exchange, routing_key, a property, headers.NAME, body,"
        " body.PATH for JSON, or death.reason, death.queue or death.exchange of a dead letter.",
    ),
    click.option("--selector", help="A JMS message selector that messages must match, too."),
)
since_option = click.option(
    "--since",
    metavar="TIME",
    default="",
    help="Only messages since a time in ISO 8601 (UTC without a time zone), or since an interval ago, such as 15m, 1h or"
    " 7D. A stream begins at the chunk that contains the time; in other queues, the property `timestamp` decides.",
)
encoding_option = click.option(
    "--encoding",
    type=click.Choice(["auto", "base64"]),
    default="auto",
    show_default=True,
    help="auto shows payloads that are UTF-8 as text.",
)
_truncate_option = click.option(
    "--truncate",
    type=click.IntRange(0),
    metavar="BYTES",
    help=f"Bytes of a payload to show.  [default: {_TABLE_BYTES}, with --json {_JSON_BYTES}]",
)
state_option = click.option(
    "--state",
    type=click.Choice(list(COLUMNS)),
    default="ready",
    show_default=True,
    help="unacked: messages that consumers have; delayed: messages that become ready later.",
)
_count_option = click.option(
    "--count", type=click.IntRange(1), default=100, show_default=True, help="Maximum number of messages to show."
)
queue_id_option = click.option(
    "--queue-id", type=int, help="Refuse if the queue was declared again since `browse` has shown this id."
)
_choice_options = together(
    click.option("--id", "ids", type=int, multiple=True, help="Id of a message, as `browse` shows it; repeatable."),
    where_options,
    since_option,
    click.option("--all", "everything", is_flag=True, help="All ready messages."),
    queue_id_option,
)
_dry_run_option = click.option("--dry-run", is_flag=True, help="Count the messages that match, and change nothing.")
_selection_options = together(_choice_options, _dry_run_option)
_origin_exchange_option = click.option(
    "--to-origin-exchange",
    is_flag=True,
    help="The exchange by which each dead letter came to that queue, with its routing key.",
)
_target_options = together(
    click.option("--to-queue", metavar="NAME", help="The target queue."),
    click.option("--to-exchange", metavar="NAME", help="The exchange that routes the messages."),
    click.option("--routing-key", help="Their routing key for --to-exchange.  [default: that of each message]"),
    click.option("--to-origin", is_flag=True, help="The queue in which each dead letter died last."),
    _origin_exchange_option,
)


@click.group()
def messages() -> None:
    """Browse, search, move, copy, delete and resend messages of a queue, and replay dead letters."""


@messages.command()
@click.argument("queue")
@state_option
@click.option("--offset", type=click.IntRange(0), default=0, help="Messages to skip; of a stream, the first offset.")
@since_option
@_count_option
@_truncate_option
@encoding_option
@in_vhost_option
@remote_options
def browse(
    queue: str, state: str, offset: int, since: str, count: int, truncate: int | None, encoding: str, vhost: str
) -> None:
    """Show messages of QUEUE without taking them. They are neither requeued nor marked as redelivered."""
    _show(current(), count, truncate, vhost=vhost, queue=queue, state=state, offset=offset, since=since, encoding=encoding)


@messages.command()
@click.argument("queue")
@where_options
@state_option
@since_option
@_count_option
@_truncate_option
@encoding_option
@in_vhost_option
@remote_options
def search(queue: str, count: int, truncate: int | None, **options: Reply) -> None:
    """Search messages of QUEUE without taking them. Shows those that match the conditions and the selector."""
    if not options["where"] and not options["selector"]:
        raise click.UsageError("expected --where or --selector")
    _show(current(), count, truncate, queue=queue, **options)


@messages.command()
@click.argument("queue")
@_target_options
@_selection_options
@in_vhost_option
@remote_options
def move(queue: str, vhost: str, dry_run: bool, **options: Reply) -> None:
    """Move ready messages of QUEUE to a queue or an exchange. A message that no queue takes stays."""
    _relocate("move", "moved", dry_run, vhost=vhost, queue=queue, **_target(options), **_selection(options))


@messages.command()
@click.argument("queue")
@_target_options
@_selection_options
@in_vhost_option
@remote_options
def copy(queue: str, vhost: str, dry_run: bool, **options: Reply) -> None:
    """Copy ready messages of QUEUE to a queue or an exchange. QUEUE may be a stream."""
    _relocate("copy", "copied", dry_run, vhost=vhost, queue=queue, **_target(options), **_selection(options))


@messages.command()
@click.argument("queue")
@_target_options
@_choice_options
@in_vhost_option
@remote_options
def preview(queue: str, vhost: str, **options: Reply) -> None:
    """Count the messages that `move` would move. Also counts those of QUEUE that no queue would get. Moves none."""
    _preview(vhost=vhost, queue=queue, **_target(options), **_selection(options))


@messages.command("dead-letters")
@click.argument("queue")
@where_options
@since_option
@click.option("--header", metavar="NAME", help="A header, as of an exception; each of its values is a group of its own.")
@in_vhost_option
@remote_options
def dead_letters(queue: str, where: list[Item], selector: str | None, since: str, header: str | None, vhost: str) -> None:
    """Count dead letters by reason and origin. Groups them by the reason, queue and exchange of their last death."""
    _show_groups(current(), vhost=vhost, queue=queue, where=where, selector=selector, since=since, header=header)


@messages.command()
@click.argument("queue")
@_origin_exchange_option
@_selection_options
@in_vhost_option
@remote_options
def replay(queue: str, vhost: str, to_origin_exchange: bool, dry_run: bool, **options: Reply) -> None:
    """Move dead letters to the queues in which they died. A message that no queue takes stays in QUEUE."""
    target = {"to_origin_exchange": True} if to_origin_exchange else {"to_origin": True}
    request = {"vhost": vhost, "queue": queue, **target, **_selection(options)}
    if dry_run:
        _preview(**request)
    else:
        _relocate("move", "replayed", False, **request)


@messages.command()
@click.argument("queue")
@_selection_options
@in_vhost_option
@remote_options
def delete(queue: str, vhost: str, dry_run: bool, **options: Reply) -> None:
    """Delete ready messages of QUEUE without dead-lettering them."""
    _relocate("delete", "deleted", dry_run, vhost=vhost, queue=queue, **_selection(options))


@messages.command()
@click.argument("queue")
@click.argument("id", type=int)
@click.option("--exchange", help="The exchange.  [default: the queue in which the dead letter died last]")
@click.option("--routing-key", help="The routing key.")
@click.option("--payload", metavar="TEXT", help="The new payload.")
@click.option(
    "--payload-file",
    type=FilePath(path_type=Path, dir_okay=False, exists=True),
    help="A file with the new payload.",
)
@click.option("--properties", metavar="JSON", help="All new properties, as `browse --json` shows them.")
@queue_id_option
@in_vhost_option
@remote_options
def resend(
    queue: str,
    id: int,
    exchange: str | None,
    routing_key: str | None,
    payload: str | None,
    payload_file: Path | None,
    properties: str | None,
    queue_id: int | None,
    vhost: str,
) -> None:
    """Replace a message by a changed copy.

    Publishes a copy of message ID of QUEUE, and deletes the message. A part without an option stays as it is.
    """
    if payload is not None and payload_file is not None:
        raise click.UsageError("--payload excludes --payload-file")
    encoding = None
    if payload_file is not None:
        payload, encoding = base64.b64encode(payload_file.read_bytes()).decode(), "base64"
    broker = current()
    result = broker.call(
        "messages.resend",
        vhost=vhost,
        queue=queue,
        id=id,
        queue_id=queue_id,
        exchange=exchange,
        routing_key=routing_key,
        payload=payload,
        payload_encoding=encoding,
        properties=None if properties is None else read_object(properties, "--properties"),
    )
    _show_counts(broker, "resent", queue, result)


def _show(broker: Remote, count: int, truncate: int | None, **request: Reply) -> None:
    """Print messages that a request selects."""
    if truncate is None:
        truncate = _JSON_BYTES if broker.as_json else _TABLE_BYTES
    found: list[Item] = []
    examined = skipped = 0
    queue_id = cursor = None
    more = True
    with StatusLine(not broker.as_json) as line:
        while more:
            page = broker.call(
                "messages.browse",
                count=min(count - len(found), _PAGE),
                truncate=truncate,
                cursor=cursor,
                **request,
                **_LIMITS,
            )
            found += page["messages"]
            examined += page["examined"]
            skipped += page["skipped"]
            queue_id, cursor = page["queue_id"], page["cursor"]
            more = cursor is not None and len(found) < count
            line.show(f"found {len(found):,} of {examined:,} messages")
    if broker.as_json:
        show_json({"queue_id": queue_id, "messages": found, "examined": examined, "skipped": skipped})
        return
    for item in found:
        holder = item.get("holder") or {}
        item["consumer"] = holder.get("consumer_tag")
        item["connection"], item["channel"] = holder.get("connection"), holder.get("channel")
    show_table(found, COLUMNS[request["state"]])
    if cursor is not None:
        click.echo(f"{len(found):,} messages shown, there may be more: use --count", err=True)
    _note_skipped(skipped)


def _target(options: dict[str, Reply]) -> Item:
    """Return the target of the options. Raises `click.UsageError`."""
    origins = [options["to_origin"], options["to_origin_exchange"]]
    if sum([options["to_queue"] is not None, options["to_exchange"] is not None, *origins]) != 1:
        raise click.UsageError("expected one of --to-queue, --to-exchange, --to-origin and --to-origin-exchange")
    if options["routing_key"] is not None and options["to_exchange"] is None:
        raise click.UsageError("--routing-key requires --to-exchange")
    return {key: options[key] for key in ("to_queue", "to_exchange", "routing_key", "to_origin", "to_origin_exchange")}


def _selection(options: dict[str, Reply]) -> Item:
    """Return the selected messages of the options. Raises `click.UsageError`."""
    where, selector, since = options["where"], options["selector"], options["since"]
    if sum((bool(options["ids"]), bool(where or selector or since), options["everything"])) != 1:
        raise click.UsageError("expected --id, --all, or --where, --selector and --since")
    return {
        "ids": list(options["ids"]) or None,
        "where": where or None,
        "selector": selector,
        "since": since,
        "queue_id": options["queue_id"],
    }


def _relocate(action: str, done: str, dry_run: bool, **request: Reply) -> None:
    """Execute an operation on the selected messages until no message is left, and print its counts."""
    broker = current()
    queue = request["queue"]
    if dry_run:
        _count(broker, action, request)
        return
    total: Item = dict.fromkeys(_COUNTS, 0)
    try:
        _execute(broker, action, done, total, request)
    except (Failed, KeyboardInterrupt):
        if total["messages"]:
            click.echo(f"{done} {total['messages']:,} messages of queue '{queue}' before", err=True)
        raise
    _show_counts(broker, done, queue, total)


def _preview(**request: Reply) -> None:
    """Print what a move of the selected messages would do."""
    broker = current()
    total: Item = dict.fromkeys(_COUNTS, 0)
    _execute(broker, "preview", "would move", total, request)
    _show_counts(broker, "would move", request["queue"], total, "would stay")


def _execute(broker: Remote, action: str, done: str, total: Item, request: Item) -> None:
    """Execute an operation on the selected messages until no message is left, and add up its counts."""
    cursor = None
    limits = _LIMITS if request["ids"] is None else {}
    with StatusLine(not broker.as_json) as line:
        while True:
            result = broker.call(f"messages.{action}", cursor=cursor, **request, **limits)
            for key in _COUNTS:
                total[key] += result[key]
            cursor = result["cursor"]
            if cursor is None:
                break
            line.show(f"{done} {total['messages']:,} of {total['examined']:,} messages")


def _show_groups(broker: Remote, header: str | None, **request: Reply) -> None:
    """Print the groups of dead letters."""
    groups: dict[str, Item] = {}
    others = examined = 0
    cursor = None
    with StatusLine(not broker.as_json) as line:
        while True:
            page = broker.call("messages.dead_letters", cursor=cursor, header=header, **request, **_LIMITS)
            for group in page["groups"]:
                known = groups.setdefault(json.dumps(group["where"]), group)
                if known is not group:
                    known["messages"] += group["messages"]
                    known["bytes"] += group["bytes"]
            others += page["others"]
            examined += page["examined"]
            cursor = page["cursor"]
            if cursor is None:
                break
            line.show(f"{examined:,} messages in {len(groups):,} groups")
    found = sorted(groups.values(), key=lambda group: -group["messages"])
    if broker.as_json:
        show_json({"queue_id": page["queue_id"], "groups": found, "others": others, "examined": examined})
        return
    show_table(found, GROUPS if header is None else (*GROUPS[:3], ("header", header), *GROUPS[3:]))
    if others:
        click.echo(f"{others:,} messages of more groups are not shown: use --where", err=True)


def _count(broker: Remote, action: str, request: Item) -> None:
    """Print how many messages an operation would change."""
    if request["ids"] is not None:
        raise click.UsageError("--dry-run requires --where, --selector, --since or --all")
    found = examined = skipped = 0
    cursor = None
    with StatusLine(not broker.as_json) as line:
        while True:
            page = broker.call(
                "messages.count",
                vhost=request["vhost"],
                queue=request["queue"],
                where=request["where"],
                selector=request["selector"],
                since=request["since"],
                cursor=cursor,
                **_LIMITS,
            )
            found += page["messages"]
            examined += page["examined"]
            skipped += page["skipped"]
            cursor = page["cursor"]
            if cursor is None:
                break
            line.show(f"found {found:,} of {examined:,} messages")
    if broker.as_json:
        show_json({"dry_run": True, "messages": found, "examined": examined, "skipped": skipped})
    else:
        click.echo(f"would {action} {found:,} of {examined:,} messages of queue '{request['queue']}'")
        _note_skipped(skipped)


def _note_skipped(count: int) -> None:
    if count:
        click.echo(f"{count:,} messages were skipped: their JSON is too large to be compared with a condition", err=True)


def _show_counts(broker: Remote, done: str, queue: str, result: Item, outcome: str = "") -> None:
    """Print the counts of an operation. Raises `Failed` if messages were left."""
    if broker.as_json:
        show_json({key: result[key] for key in _COUNTS})
    else:
        click.echo(f"{done} {result['messages']:,} messages of queue '{queue}'")
        _note_skipped(result["skipped"])
    outcome = outcome or f"were not {done}"
    left = [f"{result[key]:,} messages {outcome}: {why}" for key, why in _WHY.items() if result[key]]
    if left:
        raise Failed("\n".join(left), INCOMPLETE)
