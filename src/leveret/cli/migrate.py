"""`leveret migrate`."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click
import msgspec

from leveret.cli.client_command import quiet_option, run
from leveret.cli.definitions import progress_of, run_conversation, show_report
from leveret.cli.failed import INCOMPLETE, Failed
from leveret.cli.http_options import CA, URL
from leveret.cli.migration.plan import Finding, findings, movable, only_vhost, without_shovels
from leveret.cli.migration.source import Row, Source, amqp_uri
from leveret.cli.output import Item, show_json, show_table
from leveret.cli.remote import Remote, current, remote_options, selected_url
from leveret.management.definitions.document import Document, InvalidDocument, read_document
from leveret.management.definitions.importing import Options, import_document
from leveret.management.definitions.report import Report

if TYPE_CHECKING:
    from leveret.cli.migration.moving import MovedQueue, QueueMoves

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


def _keep_target(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[URL] = value


@click.command()
@click.option("--from", "source_url", required=True, metavar="URL", help="Management API of the broker to migrate from.")
@click.option(
    "--to",
    metavar="URL",
    callback=_keep_target,
    expose_value=False,
    help="HTTP API of the broker to migrate to, instead of --data-dir; the same as --url.",
)
@click.option("--vhost", help="Only this vhost.")
@click.option("--definitions", "imports", is_flag=True, help="Import the definitions.")
@click.option("--messages", "moves", is_flag=True, help="Move the messages.")
@click.option("--follow", is_flag=True, help="With --messages: continue when the queues are empty, until interrupted.")
@click.option("--with-consumers", is_flag=True, help="Also move messages of queues that have consumers at the source.")
@click.option("--accept-unsupported", is_flag=True, help="Import the other definitions if some are refused.")
@click.option("--from-amqp", metavar="URL", help="AMQP address of the source without a vhost.  [default: from its API]")
@click.option("--to-amqp", metavar="URL", help="The same of the destination.  [default: with the user of --from]")
@quiet_option
@remote_options
def migrate(
    source_url: str,
    vhost: str | None,
    imports: bool,
    moves: bool,
    follow: bool,
    with_consumers: bool,
    accept_unsupported: bool,
    from_amqp: str | None,
    to_amqp: str | None,
    quiet: bool,
) -> None:
    """Migrate from RabbitMQ: definitions, and the messages of queues.

    Without --definitions and --messages, prints what would happen, what is not supported, and the queues, and changes
    nothing. Neither of them deletes anything but the messages that the destination has confirmed. The command may be killed
    at any point and run again.
    """
    if (follow or with_consumers) and not moves:
        raise click.UsageError("--follow and --with-consumers need --messages")
    target = current()
    source = Source(source_url, click.get_current_context().meta.get(CA))
    document = only_vhost(_read(source), vhost)
    queues = [row for row in source.queues() if vhost in (None, row["vhost"])]
    found = list(findings(document, source.plugins(), queues))
    wanted = without_shovels(document)
    report = _import(target, wanted, dry_run=True)
    result: Item = {"findings": msgspec.to_builtins(found), "definitions": msgspec.to_builtins(report)}
    if not target.as_json and not quiet:
        _show_plan(target, found, report)
    if report.refused and imports and not accept_unsupported:
        raise Failed(f"{report.refusals()}; change them at the source, or import the others with --accept-unsupported")
    if imports:
        result["definitions"] = msgspec.to_builtins(_import(target, wanted, dry_run=False))
        if not target.as_json:
            click.echo(f"imported definitions: {len(report.added)} added, {len(report.changed)} changed")
    if not imports and not moves:
        if target.as_json:
            show_json({**result, "queues": queues})
        else:
            show_table(queues, _QUEUES)
            click.echo("nothing was changed; import with --definitions, and move messages with --messages")
        if report.refused:
            raise SystemExit(INCOMPLETE)
        return
    code = 0
    if moves:
        moved = _existing(target, [(row["vhost"], row["name"]) for row in queues if movable(row)])
        uris = from_amqp or source.amqp_uri(), to_amqp or _target_uri(target, source)
        code = _move(moved, uris, follow, with_consumers, quiet or target.as_json, result, target.as_json)
    if target.as_json:
        show_json(result)
    if code:
        raise SystemExit(code)


def _read(source: Source) -> Document:
    try:
        return read_document(source.definitions(), None)
    except InvalidDocument as error:
        raise Failed(f"--from: {error}") from None


def _import(target: Remote, document: Document, *, dry_run: bool) -> Report:
    options = Options(dry_run=dry_run, progress=progress_of(target))
    return run_conversation(target, import_document(document, options))


def _show_plan(target: Remote, found: list[Finding], report: Report) -> None:
    if found:
        show_table([msgspec.to_builtins(finding) for finding in found], _FINDINGS)
    show_report(target, report, names_all=False)


def _existing(target: Remote, queues: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the queues. Raises `Failed` if the destination does not have one of them."""
    known = {(row["vhost"], row["name"]) for row in target.call("queues.list")}
    missing = [name for name in queues if name not in known]
    if missing:
        vhost, name = missing[0]
        raise Failed(
            f"the destination does not have queue '{name}' in vhost '{vhost}'"
            + (f", and {len(missing) - 1} others" if len(missing) > 1 else "")
            + "; import the definitions first, with --definitions"
        )
    return queues


def _target_uri(target: Remote, source: Source) -> str:
    """Return the AMQP URI of the destination without a vhost, with the user of the source, whom the import has added."""
    urls: list[str] = target.call("status")["listeners"]
    listeners = [url for url in urls if url.startswith(("amqp://", "amqps://"))]
    if not listeners:
        raise Failed("the destination has no AMQP listener; give its address with --to-amqp")
    parts = urlsplit(listeners[0])
    url = selected_url()
    host = parts.hostname or "" if url is None else urlsplit(url).hostname or ""
    assert parts.port is not None
    return amqp_uri(parts.scheme, _WILDCARDS.get(host, host), parts.port, source.user, source.password)


def _move(
    queues: list[tuple[str, str]],
    uris: tuple[str, str],
    follow: bool,
    with_consumers: bool,
    quiet: bool,
    result: Item,
    as_json: bool,
) -> int:
    """Move the messages of queues, add what became of them to the result, and return the exit code."""
    from leveret.cli.messages.progress import Progress
    from leveret.cli.migration.moving import QueueMoves

    async def move() -> int:
        with Progress("moved", not quiet, lambda: moving.state()) as progress:
            moving = QueueMoves(
                queues,
                *uris,
                follows=follow,
                with_consumers=with_consumers,
                report=(lambda text: None) if quiet else progress.say,
            )
            try:
                await moving.run()
            finally:
                result["queues"] = _results(moving)
        return INCOMPLETE if any(queue.has_failed for queue in moving.queues.values()) else 0

    code = 0
    try:
        run(move)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else INCOMPLETE
    if not as_json:
        _show_moved(result["queues"])
    return code


def _results(moving: QueueMoves) -> list[Row]:
    """Return the queues of which messages were moved, or are left."""
    found: list[MovedQueue] = [queue for queue in moving.queues.values() if queue.moved or queue.left or queue.problem]
    return [msgspec.to_builtins(queue) for queue in found]


def _show_moved(rows: list[Row]) -> None:
    if rows:
        show_table(rows, _MOVED)
    moved, left = sum(row["moved"] for row in rows), sum(row["left"] for row in rows)
    click.echo(f"moved {moved} messages; {left} are left at the source")
