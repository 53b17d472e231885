"""`leveret migrate`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click
import msgspec
from click.core import ParameterSource

from leveret._text import decode_text
from leveret.cli.client_command import quiet_option, run, say
from leveret.cli.definitions import progress_of, run_conversation, show_report
from leveret.cli.failed import INCOMPLETE, Failed
from leveret.cli.http_options import CA, URL
from leveret.cli.migration.plan import Finding, findings, only_vhost, reason_to_stay
from leveret.cli.migration.source import Key, Row, Source, amqp_uri, check_without_vhost, key_of, label_of, with_ca
from leveret.cli.options import FilePath
from leveret.cli.output import Item, counted, show_json, show_table
from leveret.cli.remote import Remote, current, remote_options, selected_url
from leveret.cli.shovel import add_origin_option
from leveret.config.foreign import foreign_format, is_rabbitmq_conf
from leveret.management.definitions.document import Document, InvalidDocument, read_document, value_of
from leveret.management.definitions.importing import Options, import_document
from leveret.management.definitions.report import Report

if TYPE_CHECKING:
    from leveret.cli.migration.moving import MovedQueue, QueueMoves
    from leveret.cli.migration.shovels import DynamicShovels

_FINDINGS = (("object", "object"), ("effect", "what happens"))
_QUEUES = (
    ("vhost", "vhost"),
    ("name", "queue"),
    ("type", "type"),
    ("messages_ready", "ready"),
    ("messages_unacknowledged", "unacked"),
    ("consumers", "consumers"),
)
_MOVED = (
    ("vhost", "vhost"),
    ("name", "queue"),
    ("moved", "moved"),
    ("left", "left"),
    ("missing", "missing"),
    ("problem", "problem"),
)
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
# Seconds after which RabbitMQ's API has the current numbers of unacked messages, and between two looks at them.
_STATISTICS_TIMEOUT = 15.0
_STATISTICS_INTERVAL = 1.0


def _keep_target(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[URL] = value


@click.command()
@click.option("--from", "source_url", metavar="URL", help="Management API of the broker to migrate from.")
@click.option(
    "--conf",
    "conf_path",
    type=FilePath(path_type=Path),
    metavar="FILE",
    help="Convert a rabbitmq.conf, and print Leveret's configuration. Without other options.",
)
@click.option(
    "--to",
    metavar="URL",
    callback=_keep_target,
    expose_value=False,
    help="HTTP API of the broker to migrate to, instead of --data-dir; the same as --url.",
)
@click.option("--vhost", help="Only this vhost.")
@click.option("--definitions", "imports", is_flag=True, help="Import the definitions.")
@click.option("--shovels", "moves_shovels", is_flag=True, help="Move the dynamic shovels.")
@click.option("--messages", "moves_messages", is_flag=True, help="Move the messages.")
@click.option("--follow", is_flag=True, help="With --messages: continue when the queues are empty, until interrupted.")
@click.option("--with-consumers", is_flag=True, help="Also move messages of queues that have consumers at the source.")
@add_origin_option
@click.option("--accept-unsupported", is_flag=True, help="Migrate the other objects if some are refused.")
@click.option("--from-amqp", metavar="URL", help="AMQP address of the source without a vhost.  [default: from its API]")
@click.option("--to-amqp", metavar="URL", help="The same of the destination.  [default: with the user of --from]")
@quiet_option
@remote_options
def migrate(
    source_url: str | None,
    conf_path: Path | None,
    vhost: str | None,
    imports: bool,
    moves_shovels: bool,
    moves_messages: bool,
    follow: bool,
    with_consumers: bool,
    add_origin_headers: bool,
    accept_unsupported: bool,
    from_amqp: str | None,
    to_amqp: str | None,
    quiet: bool,
) -> None:
    """Migrate from RabbitMQ: definitions, dynamic shovels, and the messages of queues; or its rabbitmq.conf.

    Without --definitions, --shovels and --messages, prints what would happen, what is not supported, and the queues, and
    changes nothing. --shovels deletes the shovels at the source that the destination runs, and --messages the messages that
    it has confirmed; nothing else is deleted. The command may be killed at any point and run again.
    """
    if conf_path is not None:
        _convert(conf_path)
        return
    if source_url is None:
        raise click.UsageError("expected --from URL or --conf FILE")
    if (follow or with_consumers or add_origin_headers) and not moves_messages:
        raise click.UsageError("--follow, --with-consumers and --add-origin-headers need --messages")
    for option, uri in (("--from-amqp", from_amqp), ("--to-amqp", to_amqp)):
        if uri is not None:
            check_without_vhost(option, uri)
    # These import the client.
    from leveret.cli.migration.moving import QueueMoves
    from leveret.cli.migration.shovels import DynamicShovels

    target = current()
    source = Source(source_url, click.get_current_context().meta.get(CA))
    document = only_vhost(_read(source), vhost)
    if vhost is not None and not document.of("vhosts"):
        raise Failed(f"--vhost: the source has no vhost '{vhost}'")
    queues = [row for row in source.queues() if vhost in (None, row["vhost"])]
    shovels = DynamicShovels(document, source.host)
    wanted = shovels.others()
    found = [*findings(document, source.plugins(), queues), *shovels.findings()]
    report = _import(target, wanted, dry_run=True)
    result: Item = {"findings": msgspec.to_builtins(found), "definitions": msgspec.to_builtins(report)}
    if not target.as_json and not quiet:
        _show_plan(target, found, report)
    if report.refused and imports and not accept_unsupported:
        raise Failed(f"{report.refusals()}; change them at the source, or import the others with --accept-unsupported")
    code = 0
    if imports:
        code = _apply(target, wanted, report, result)
    if moves_shovels:
        code = _move_shovels(target, source, shovels, result) or code
    if moves_messages:
        movable = [row for row in queues if not reason_to_stay(row)]
        existing = _existing(target, movable, accept_unsupported)
        from_uri = source.amqp_uri() if from_amqp is None else from_amqp
        to_uri = _target_uri(target, source) if to_amqp is None else to_amqp
        if from_uri == to_uri:
            raise Failed("the source and the destination are the same broker")
        moves = partial(
            QueueMoves,
            existing,
            from_uri,
            to_uri,
            follows=follow,
            with_consumers=with_consumers,
            adds_origin=add_origin_headers,
        )
        moved = _move(moves, quiet, result, target.as_json)
        if not follow and moved <= INCOMPLETE:
            named = {key_of(row) for row in result["queues"] if row["problem"]}
            moved = _check_left(source, movable, [key for key in existing if key not in named]) or moved
        code = moved or code
    if not imports and not moves_shovels and not moves_messages:
        result["queues"] = queues
        code = INCOMPLETE if report.refused else 0
        if not target.as_json:
            show_table(queues, _QUEUES)
            click.echo("nothing was changed; import with --definitions, and move messages with --messages")
    if target.as_json:
        show_json(result)
    if code:
        raise SystemExit(code)


def _convert(path: Path) -> None:
    """Print the configuration that corresponds to a rabbitmq.conf, and a summary on standard error."""
    from leveret.cli.migration.conf import convert

    context = click.get_current_context()
    names = [parameter.name for parameter in context.command.params if parameter.name is not None]
    if [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE] != ["conf_path"]:
        raise click.UsageError("--conf takes no other options")
    try:
        text = decode_text(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Failed(f"cannot read {path}: {error.strerror if isinstance(error, OSError) else error}") from None
    if not is_rabbitmq_conf(text) and (problem := foreign_format(text, str(path))):
        raise Failed(f"{path}: {problem}")
    done = convert(text)
    click.echo(done.toml(path.name), nl=False)
    left = len(done.left)
    say(f"converted {done.total - left} of {counted(done.total, 'setting')}" + ("; not converted:" if left else ""))
    for line, reason in done.left:
        say(f"  line {line.number}: {line.key or line.value}: {reason}")


def _read(source: Source) -> Document:
    try:
        return read_document(source.definitions(), None)
    except InvalidDocument as error:
        raise Failed(f"--from: {error}") from None


def _import(target: Remote, document: Document, *, dry_run: bool) -> Report:
    # Over HTTP, the user of the import may be the default user, which other users would replace at once.
    keeps_default = selected_url() is not None
    options = Options(dry_run=dry_run, keep_default=keeps_default, keep_passwords=True, progress=progress_of(target))
    return run_conversation(target, import_document(document, options))


def _apply(target: Remote, document: Document, planned: Report, result: Item) -> int:
    """Import definitions, add the report to the result, and return the exit code."""
    report = _import(target, document, dry_run=False)
    result["definitions"] = msgspec.to_builtins(report)
    if not target.as_json:
        click.echo(f"imported definitions: {len(report.added)} added, {len(report.changed)} changed")
    accepted = {item.label for item in planned.refused}
    unexpected = [item for item in report.refused if item.label not in accepted]
    for item in unexpected:
        say(f"{item.label}: {item.reason}")
    return INCOMPLETE if unexpected else 0


def _move_shovels(target: Remote, source: Source, shovels: DynamicShovels, result: Item) -> int:
    """Set the dynamic shovels of the source at the destination, delete them at the source, and return the exit code."""
    wanted = shovels.migrated()
    report = _import(target, wanted, dry_run=False)
    refused = {tuple(item.identity.values()): item for item in report.refused}
    for item in refused.values():
        say(f"{item.label}: {item.reason}")
    moved = []
    for parameter in wanted.of("parameters"):
        vhost, component, name = (str(value_of(parameter, key)) for key in ("vhost", "component", "name"))
        if (vhost, component, name) not in refused:
            source.delete_parameter(component, vhost, name)
            moved.append({"vhost": vhost, "name": name})
    result["shovels"] = moved
    if not target.as_json:
        click.echo(f"moved {counted(len(moved), 'shovel')}")
    return INCOMPLETE if refused else 0


def _check_left(source: Source, movable: list[Row], moved: list[Key]) -> int:
    """Name the queues that have unacked messages, which were not moved, and return the exit code.

    Args:
        source: The source.
        movable: The queues whose messages were to be moved.
        moved: Those whose ready messages were moved. The others are named already.
    """
    wanted, present = {key_of(row) for row in movable}, set(moved)
    deadline = time.monotonic() + _STATISTICS_TIMEOUT
    while True:
        rows = [row for row in source.queues() if key_of(row) in wanted]
        unacked = [row for row in rows if row["messages_unacknowledged"] and key_of(row) in present]
        if not unacked or time.monotonic() > deadline:
            break
        time.sleep(_STATISTICS_INTERVAL)
    for row in unacked:
        left = counted(row["messages_unacknowledged"], "unacked message")
        say(f"{label_of(row)}: {left} left at the source; stop the consumers, and run the command again")
    return INCOMPLETE if unacked or wanted - present else 0


def _show_plan(target: Remote, found: list[Finding], report: Report) -> None:
    if found:
        show_table([msgspec.to_builtins(finding) for finding in found], _FINDINGS)
    show_report(target, report, names_all=False)


def _existing(target: Remote, queues: list[Row], accepts_missing: bool) -> list[Key]:
    """Return the queues that the destination has. Raises `Failed` if it lacks one, unless that is accepted."""
    known = {key_of(row) for row in target.call("queues.list")}
    missing = [row for row in queues if key_of(row) not in known]
    if missing and not accepts_missing:
        raise Failed(
            f"the destination does not have {label_of(missing[0])}"
            + (f", and {len(missing) - 1} more" if len(missing) > 1 else "")
            + "; import the definitions first, with --definitions, or move the others with --accept-unsupported"
        )
    for row in missing:
        say(f"{label_of(row)}: not moved, because the destination does not have it")
    return [key_of(row) for row in queues if key_of(row) in known]


def _target_uri(target: Remote, source: Source) -> str:
    """Return the AMQP URI of the destination without a vhost, with the user of the source, whom the import has added."""
    url = selected_url()
    # Credentials that came over TLS are not sent without it.
    schemes = ("amqps://", "amqp://") if url is not None and url.startswith("https:") else ("amqp://", "amqps://")
    urls: list[str] = target.call("status")["listeners"]
    listeners = [listener for scheme in schemes for listener in urls if listener.startswith(scheme)]
    if not listeners:
        raise Failed("the destination has no AMQP listener; give its address with --to-amqp")
    parts = urlsplit(listeners[0])
    host = parts.hostname or "" if url is None else urlsplit(url).hostname or ""
    assert parts.port is not None
    uri = amqp_uri(parts.scheme, _WILDCARDS.get(host, host), parts.port, source.user, source.password)
    return with_ca(uri, click.get_current_context().meta.get(CA))


def _move(moves: Callable[..., QueueMoves], quiet: bool, result: Item, as_json: bool) -> int:
    """Move the messages of queues, add what became of them to the result, and return the exit code.

    Args:
        moves: Returns the moves that call `report`.
        quiet: Whether to report nothing.
        result: The result of the command.
        as_json: Whether it is printed as JSON.
    """
    from leveret.cli.messages.progress import Progress

    async def move() -> int:
        with Progress("moved", not is_quiet, lambda: moving.state()) as progress:
            moving = moves(report=(lambda text: None) if is_quiet else progress.say)
            try:
                await moving.run()
            finally:
                result["queues"] = _results(moving)
        return INCOMPLETE if any(queue.has_failed for queue in moving.queues.values()) else 0

    is_quiet = quiet or as_json
    code = 0
    try:
        run(move)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else INCOMPLETE
    finally:
        if not as_json:
            _show_moved(result.get("queues", []))
    return code


def _results(moving: QueueMoves) -> list[Row]:
    """Return the queues of which messages were moved, or are left."""
    found: list[MovedQueue] = [queue for queue in moving.queues.values() if queue.moved or queue.left or queue.problem]
    return [msgspec.to_builtins(queue) for queue in found]


def _show_moved(rows: list[Row]) -> None:
    if rows:
        show_table(rows, _MOVED)
    moved, left = sum(row["moved"] for row in rows), sum(row["left"] for row in rows)
    click.echo(f"moved {counted(moved, 'message')}; {left} left at the source")
