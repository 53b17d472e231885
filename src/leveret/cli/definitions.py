"""`leveret definitions`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from leveret._build import __version__
from leveret.broker.node_name import node_name
from leveret.cli.failed import ERROR, Failed
from leveret.cli.options import FilePath
from leveret.cli.output import show_json, show_table, text
from leveret.cli.remote import Remote, current, remote_options
from leveret.config import Config
from leveret.management.definitions.conversation import Conversation, Row, T, conduct
from leveret.management.definitions.document import Document, InvalidDocument, Origin, read_document
from leveret.management.definitions.exporting import NoSuchVhost, export
from leveret.management.definitions.importing import Options, import_document
from leveret.management.definitions.report import Difference, Report

_COLUMNS = (("change", "change"), ("object", "object"), ("before", "before"), ("after", "after"), ("reason", "reason"))

_file = click.argument("file", type=FilePath(path_type=Path, allow_dash=True))
_vhost = click.option("--vhost", help="Only this vhost.")


@click.group()
def definitions() -> None:
    """Export, import and compare definitions: users, vhosts, permissions, policies, exchanges, queues, bindings.

    Files have RabbitMQ's format. FILE can be `-` for standard input or output.
    """


@definitions.command("export")
@_file
@_vhost
@click.option(
    "--for",
    "target",
    type=click.Choice(["leveret", "rabbitmq"]),
    default="leveret",
    help="The broker that imports the file. RabbitMQ refuses password hashes of argon2id: names the users without one.",
)
@remote_options
def export_definitions(file: Path, vhost: str | None, target: str) -> None:
    """Write the definitions of the broker, or of a vhost, to FILE."""
    origin = Origin(Config().management.rabbitmq_version, __version__, node_name())
    exported = run_conversation(current(), export(origin, vhost, for_rabbitmq=target == "rabbitmq"))
    content = json.dumps(exported.document, indent=2, ensure_ascii=False) + "\n"
    if str(file) == "-":
        click.echo(content, nl=False)
    else:
        try:
            _write(file, content)
        except OSError as error:
            raise Failed(f"cannot write {file}: {error.strerror}") from None
    if exported.without_passwords:
        names = ", ".join(text(name) for name in exported.without_passwords)
        click.echo(f"Warning: RabbitMQ does not know argon2id; these users need a new password there: {names}", err=True)


def _write(file: Path, content: str) -> None:
    """Write a file. A new one is for its owner only, because it has password hashes."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as output:
        output.write(content)


@definitions.command("import")
@_file
@_vhost
@click.option("--dry-run", is_flag=True, help="Print the differences without changing anything.")
@remote_options
def import_definitions(file: Path, vhost: str | None, dry_run: bool) -> None:
    """Add and change what FILE defines. Nothing is deleted. A refused object does not prevent the others."""
    broker = current()
    report = _import(broker, file, vhost, dry_run)
    show_report(broker, report)
    if report.refused:
        raise Failed(f"{len(report.refused)} of {report.total} definitions refused")


@definitions.command()
@_file
@_vhost
@click.option("--exit-code", is_flag=True, help="Exit with 1 if there are differences.")
@remote_options
def diff(file: Path, vhost: str | None, exit_code: bool) -> None:
    """Print what importing FILE would add and change."""
    broker = current()
    report = _import(broker, file, vhost, True)
    show_report(broker, report)
    if exit_code and not report.is_equal():
        raise SystemExit(ERROR)


def _import(broker: Remote, file: Path, vhost: str | None, dry_run: bool) -> Report:
    options = Options(vhost=vhost, dry_run=dry_run, progress=progress_of(broker))
    return run_conversation(broker, import_document(_read(file, vhost), options))


def _read(file: Path, vhost: str | None) -> Document:
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise Failed(f"cannot read {file}: {error.strerror}") from None
    try:
        return read_document(content, vhost)
    except InvalidDocument as error:
        raise Failed(f"{file}: {error}") from None


def run_conversation(broker: Remote, conversation: Conversation[T]) -> T:
    """Conduct a conversation with a broker. Raises `Failed`."""

    def call(name: str, arguments: Row) -> object:
        return broker.call(name, **arguments)

    try:
        return conduct(conversation, call)
    except NoSuchVhost as error:
        raise Failed(str(error)) from None


class _Progress:
    """The number of processed objects, on the terminal."""

    def __init__(self) -> None:
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        if done < total:
            self._shown = True
            click.echo(f"\r{done} of {total} definitions", nl=False, err=True)
        elif self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)


def progress_of(broker: Remote) -> Callable[[int, int], None] | None:
    """Return the progress of an import on the terminal; None if it is not shown."""
    return _Progress() if sys.stderr.isatty() and not broker.as_json else None


def show_report(broker: Remote, report: Report, *, names_all: bool = True) -> None:
    """Print the report of an import, as a table, or as JSON with --json.

    Args:
        broker: The broker.
        report: The report.
        names_all: Whether that of a dry run names all objects, instead of those that are skipped or refused.
    """
    if broker.as_json:
        show_json(msgspec.to_builtins(report))
        return
    rows = [
        _row(change, item)
        for change, items in (
            ("add", report.added),
            ("change", report.changed),
            ("skip", report.skipped),
            ("refuse", report.refused),
        )
        for item in items
    ]
    shown = rows if report.dry_run and names_all else [row for row in rows if row["reason"]]
    if shown:
        show_table(shown, _COLUMNS)
    click.echo(report.counts() + (" (dry run)" if report.dry_run else ""))


def _row(change: str, item: Difference) -> Row:
    after = item.after if item.before is not None else None
    return {"change": change, "object": item.label, "before": item.before, "after": after, "reason": item.reason}
