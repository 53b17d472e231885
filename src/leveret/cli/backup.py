"""`leveret backup` and `leveret restore`."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from leveret.cli.failed import ERROR, INCOMPLETE, NO_BROKER, REFUSED, Failed
from leveret.cli.options import FilePath
from leveret.cli.output import StatusLine, moment, show_json, size
from leveret.cli.remote import current, data_directory, remote_options, selected_url

if TYPE_CHECKING:
    from leveret.node.backup.directory import BackupDirectory
    from leveret.node.backup.stored import StoredBackup
    from leveret.node.backup.writing import BrokerCall, MadeBackup

_SECOND: Final = 1000


@click.command()
@click.argument("directory", metavar="DIR", type=FilePath(path_type=Path))
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of backups to keep in DIR, with this one.",
)
@click.option(
    "--without-remote-segments",
    "leave_out_remote",
    is_flag=True,
    help="Leave out sealed segments at a URL (streams.directory), which you protect there.",
)
@remote_options
def backup(directory: Path, keep: int, leave_out_remote: bool) -> None:
    """Back up a running broker to the directory DIR, which is created if it is missing.

    The backup has everything that was confirmed before the command began. The broker keeps serving clients. Sealed segments
    are hard links if DIR is on the same file system, and those that DIR already has are not copied again. Run the command
    as the user of the broker, or as root: it then continues as that user.

    Exit codes: 0 if the backup is complete, 1 if it failed, or if the broker itself lacks segments or uploads. Earlier
    backups then stay.
    """
    if selected_url() is not None:
        raise click.UsageError(
            "`leveret backup` copies files on the machine of the broker; run it there, without --url and LEVERET_URL"
        )
    broker, data = current(), data_directory()
    if not data.is_dir():
        raise Failed(
            f"the data directory {data} does not exist; select that of the broker with --data-dir or --config", NO_BROKER
        )
    began = time.monotonic()
    with StatusLine(not broker.as_json) as line:
        made = _back_up(directory.absolute(), data, keep, broker.call, line.show, leave_out_remote)
    seconds = time.monotonic() - began
    if broker.as_json:
        _show_json(made, seconds)
    else:
        _show(made, seconds)
    if made.manifest.problems:
        raise SystemExit(INCOMPLETE)


def _back_up(
    directory: Path, data: Path, keep: int, call: BrokerCall, report: Callable[[str], None], leave_out_remote: bool
) -> MadeBackup:
    """Make a backup, and remove old ones. Raises `Failed`."""
    from leveret.node.backup.directory import BackupDirectory, BackupFailed
    from leveret.node.backup.writing import BackupWriter

    backups = BackupDirectory(directory)
    try:
        _prepare(directory, os.stat(data))
        with backups.lock():
            backups.create()
            made = BackupWriter(backups, call, report, leave_out_remote=leave_out_remote).run()
            # The earlier ones may have what the broker lacks.
            if not made.manifest.problems:
                try:
                    backups.remove_old(keep)
                except (OSError, BackupFailed) as error:
                    raise BackupFailed(f"the backup {made.name} is complete, but older ones remain: {error}") from None
    except BackupFailed as error:
        raise Failed(str(error)) from None
    except OSError as error:
        raise Failed(f"cannot use {error.filename}: {error.strerror}") from None
    return made


def _show_json(made: MadeBackup, seconds: float) -> None:
    show_json(
        {
            "name": made.name,
            "seconds": round(seconds, 3),
            "copied_bytes": made.copied_bytes,
            "segments": {
                "linked": made.linked,
                "copied": made.copied,
                "unchanged": made.unchanged,
                "left_out": _left_out(made),
            },
            "problems": made.manifest.problems,
        }
    )


def _show(made: MadeBackup, seconds: float) -> None:
    segments = sum(len(log.segments) for log in made.manifest.logs)
    left_out = _left_out(made)
    said = f"backup {made.name} is complete: copied {size(made.copied_bytes)} in {seconds:.1f} s"
    if segments:
        said += f"; segments: {segments}, of which {made.linked} linked, {made.copied} copied, {made.unchanged} unchanged"
    if left_out:
        said += f"; segments left out: {left_out}"
    click.echo(said)
    for problem in made.manifest.problems:
        click.echo(f"MISSING   {problem}")


def _left_out(made: MadeBackup) -> int:
    return sum(log.left_out for log in made.manifest.logs)


def _prepare(directory: Path, data: os.stat_result) -> None:
    """Create the directory of backups, and continue as the user of the broker.

    That user owns both directories, so root must not follow what they contain: a symbolic link could make it read or
    write any other file.

    Args:
        directory: The directory.
        data: The status of the data directory.
    """
    from leveret.storage import disk

    is_root = os.geteuid() == 0
    if not directory.exists():
        disk.make_directories(directory)
        if is_root:
            os.chown(directory, data.st_uid, data.st_gid, follow_symlinks=False)
        disk.sync_to_root(directory.parent)
    if is_root and data.st_uid != 0:
        try:
            os.initgroups(pwd.getpwuid(data.st_uid).pw_name, data.st_gid)
        except KeyError:
            os.setgroups([])
        os.setgid(data.st_gid)
        os.setuid(data.st_uid)


@click.command()
@click.argument("directory", metavar="DIR", type=FilePath(path_type=Path))
@click.option(
    "--data-dir",
    "data_dir",
    type=FilePath(path_type=Path),
    help="The new data directory: empty or missing.",
)
@click.option("--check", "checks_only", is_flag=True, help="Check the backup, and restore nothing.")
@click.option("--backup", "name", metavar="NAME", help="The backup, such as 20261127T091224Z.  [default: the latest]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def restore(directory: Path, data_dir: Path | None, checks_only: bool, name: str | None, as_json: bool) -> None:
    """Restore a backup from the directory DIR to a new data directory, or check it.

    Checks the manifest, the size and checksum of each file, each row and definition in the databases, and that all files
    that these name exist. If anything is damaged, the command names the first damaged file, and restores nothing.

    Exit codes of --check: 0 if the backup is intact and complete, 1 if anything is damaged, or was missing at the broker,
    4 if the backup cannot be checked.
    """
    if checks_only and data_dir is not None:
        raise click.UsageError("--check restores nothing; leave out --data-dir")
    if not checks_only and data_dir is None:
        raise click.UsageError("expected the new data directory, --data-dir, or --check")
    from leveret.node.backup.directory import BackupDamaged, BackupDirectory, BackupFailed
    from leveret.node.backup.restoring import Restorer
    from leveret.node.backup.stored import StoredBackup

    backups = BackupDirectory(directory.absolute())
    try:
        with backups.lock(shared=True), StatusLine(not as_json) as line:
            stored = StoredBackup(backups, _chosen(backups, name), line.show)
            if data_dir is None:
                stored.check()
            else:
                Restorer(stored, data_dir.absolute()).run()
    except BackupDamaged as error:
        raise Failed(str(error)) from None
    except BackupFailed as error:
        raise Failed(str(error), REFUSED if checks_only else ERROR) from None
    manifest = stored.manifest
    notes = [*_missing(stored), *(_notes(stored, data_dir.absolute()) if data_dir is not None else ())]
    if as_json:
        show_json({"name": stored.name, "started": manifest.started, "bytes": stored.bytes, "notes": notes})
    else:
        what = f"backup {stored.name} of {moment(manifest.started * _SECOND)}"
        if data_dir is None:
            click.echo(f"{what} is intact: {size(stored.bytes)}")
        else:
            click.echo(f"restored {what} to {data_dir}: {size(stored.bytes)}")
        for note in notes:
            click.echo(f"note      {note}")
    if checks_only and manifest.problems:
        raise SystemExit(INCOMPLETE)


def _chosen(backups: BackupDirectory, name: str | None) -> str:
    """Return the name of the backup to restore. Raises `BackupFailed` if it is incomplete, or there is none."""
    from leveret.node.backup.directory import BackupFailed

    names = backups.names() if backups.exists() else []
    interrupted = backups.interrupted()
    if name is None and names:
        return names[-1]
    if name in names:
        return name
    if name is not None and backups.is_interrupted(name):
        raise BackupFailed(f"the backup {name} in {backups.path} was interrupted, and cannot be restored")
    if name is not None and names:
        raise BackupFailed(f"{backups.path} has no backup '{name}'; expected one of {', '.join(names)}")
    if interrupted:
        raise BackupFailed(
            f"{backups.path} has no complete backup: {interrupted[-1]} was interrupted, and cannot be restored; run"
            " `leveret backup` again"
        )
    raise BackupFailed(f"{backups.path} has no backups of Leveret; expected the directory of `leveret backup`")


def _missing(stored: StoredBackup) -> list[str]:
    """Return what a backup does not have."""
    notes = [f"missing in the backup: {problem}" for problem in stored.manifest.problems]
    notes += [
        f"not in the backup: {log.left_out} segments in {log.streams}, which --without-remote-segments left out"
        for log in stored.manifest.logs
        if log.left_out
    ]
    return notes


def _notes(stored: StoredBackup, target: Path) -> list[str]:
    """Return what the operator should know of a restored backup."""
    notes = []
    logs = stored.manifest.logs
    shards = sum(log.path != "shared" for log in logs)
    if shards > 1:
        notes.append(f"the broker had {shards} shards: 'cluster.shards' must be at least {shards}")
    for log in logs:
        for setting, where, place in (
            ("streams.directory", log.streams if log.segments else "", "streams"),
            ("uploads.directory", log.uploads, "staged"),
        ):
            if where:
                notes.append(
                    f"'{setting}' was set: what was in {where} is in {target / log.path / place}; move it there, or start"
                    " without the setting"
                )
    return notes
