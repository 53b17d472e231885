"""`leveret backup` and `leveret restore`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from leveret.cli.failed import INCOMPLETE, Failed
from leveret.cli.output import StatusLine, moment, show_json, size
from leveret.cli.remote import current, data_directory, remote_options, selected_url

if TYPE_CHECKING:
    from leveret.node.backup.directory import BackupDirectory
    from leveret.node.backup.restoring import Restorer

_SECOND: Final = 1000


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of backups to keep in DIR, with this one.",
)
@remote_options
def backup(directory: Path, keep: int) -> None:
    """Back up a running broker to the directory DIR, which is created if it is missing.

    The backup has everything that was confirmed before the command began. The broker keeps serving clients. Sealed segments
    are hard links if DIR is on the same file system, and those that DIR has already are not copied again. Run it as the
    user of the broker, or as root.

    Exit codes: 0 if the backup is complete, 1 if it failed, or if files of segments or uploads are missing at the broker.
    """
    if selected_url() is not None:
        raise click.UsageError(
            "`leveret backup` copies files on the machine of the broker; run it there, without --url and LEVERET_URL"
        )
    from leveret.node.backup.directory import BackupDirectory, BackupFailed
    from leveret.node.backup.writing import BackupWriter
    from leveret.storage import disk

    broker = current()
    data = data_directory()
    directory = directory.absolute()
    began = time.monotonic()
    backups = BackupDirectory(directory)
    try:
        owner = os.stat(data)
        if not directory.exists():
            disk.make_directories(directory)
            if os.geteuid() == 0:
                os.chown(directory, owner.st_uid, owner.st_gid)
        with StatusLine(not broker.as_json) as line, backups.lock():
            backups.create()
            writer = BackupWriter(backups, broker.call, line.show, (owner.st_uid, owner.st_gid))
            manifest = writer.run()
            try:
                backups.remove_old(keep)
            except (OSError, BackupFailed) as error:
                raise BackupFailed(f"the backup {manifest.name} is complete, but older ones remain: {error}") from None
    except BackupFailed as error:
        raise Failed(str(error)) from None
    except OSError as error:
        raise Failed(f"cannot use {error.filename}: {error.strerror}") from None
    segments = sum(len(log.segments) for log in manifest.logs)
    if broker.as_json:
        show_json(
            {
                "name": manifest.name,
                "seconds": round(time.monotonic() - began, 3),
                "copied_bytes": writer.copied_bytes,
                "segments": {"linked": writer.linked, "copied": writer.copied, "unchanged": writer.unchanged},
                "problems": manifest.problems,
            }
        )
    else:
        click.echo(
            f"backup {manifest.name} is complete: copied {size(writer.copied_bytes)} in {time.monotonic() - began:.1f} s;"
            f" segments: {segments}, of which {writer.linked} linked, {writer.copied} copied, {writer.unchanged} unchanged"
        )
        for problem in manifest.problems:
            click.echo(f"MISSING   {problem}")
    if manifest.problems:
        raise SystemExit(INCOMPLETE)


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--data-dir",
    "data_dir",
    required=True,
    type=click.Path(path_type=Path),
    help="The new data directory: empty or missing.",
)
@click.option("--backup", "name", metavar="NAME", help="The backup, such as 20261127T091224Z.  [default: the latest]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def restore(directory: Path, data_dir: Path, name: str | None, as_json: bool) -> None:
    """Restore a backup from the directory DIR to a new data directory.

    Checks the manifest, the size and checksum of each file, and each row and definition in the databases. If anything is
    damaged, it names the file, and restores nothing.
    """
    from leveret.node.backup.directory import BackupDirectory, BackupFailed
    from leveret.node.backup.restoring import Restorer

    backups = BackupDirectory(directory.absolute())
    try:
        with backups.lock(shared=True), StatusLine(not as_json) as line:
            restorer = Restorer(backups, _chosen(backups, name), data_dir.absolute(), line.show)
            restorer.run()
    except BackupFailed as error:
        raise Failed(str(error)) from None
    manifest = restorer.manifest
    notes = _notes(restorer)
    if as_json:
        show_json({"name": manifest.name, "started": manifest.started, "bytes": restorer.bytes, "notes": notes})
        return
    click.echo(
        f"restored backup {manifest.name} of {moment(manifest.started * _SECOND)} to {data_dir}: {size(restorer.bytes)}"
    )
    for note in notes:
        click.echo(f"note      {note}")


def _chosen(backups: BackupDirectory, name: str | None) -> str:
    """Return the name of the backup to restore. Raises `Failed` if it is incomplete, or there is none."""
    names = backups.names() if backups.exists() else []
    interrupted = backups.interrupted()
    if name is None and names:
        return names[-1]
    if name in names:
        return name
    if name is not None and backups.is_interrupted(name):
        raise Failed(f"the backup {name} in {backups.path} was interrupted, and cannot be restored")
    if name is not None and names:
        raise Failed(f"{backups.path} has no backup '{name}'; expected one of {', '.join(names)}")
    if interrupted:
        raise Failed(
            f"{backups.path} has no complete backup: {interrupted[-1]} was interrupted, and cannot be restored; run"
            " `leveret backup` again"
        )
    raise Failed(f"{backups.path} has no backups of Leveret; expected the directory of `leveret backup`")


def _notes(restorer: Restorer) -> list[str]:
    """Return what the operator should know of a restored backup."""
    manifest = restorer.manifest
    notes = [f"missing in the backup: {problem}" for problem in manifest.problems]
    shards = sum(log.path != "shared" for log in manifest.logs)
    if shards > 1:
        notes.append(f"the broker had {shards} shards: 'cluster.shards' must be at least {shards}")
    for log in manifest.logs:
        for setting, directory, place in (
            ("streams.directory", log.streams, "streams"),
            ("uploads.directory", log.uploads, "staged"),
        ):
            if directory:
                notes.append(
                    f"'{setting}' was set: the files of {directory} are in {restorer.target / log.path / place}; move them"
                    " there, or start without the setting"
                )
    return notes
