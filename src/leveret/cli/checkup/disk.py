"""Checks of the data directory, and of the files with secrets."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from leveret.cli.checkup.finding import ERROR, OK, WARNING, Finding
from leveret.cli.output import size
from leveret.config import Config
from leveret.storage.registry import SQLITE

MOUNTS: Final = Path("/proc/self/mounts")
_NETWORK: Final = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "fuse.sshfs"}
_VOLATILE: Final = {"tmpfs", "ramfs"}
# The measurement of syncs: how many at most, and for how long.
_SYNCS: Final = 50
_SYNC_TIME: Final = 0.5
# Seconds above which a sync is slow: it delays every confirm.
SLOW_SYNC: Final = 0.05


def check_directory(config: Config, slow_sync: float = SLOW_SYNC, mounts: Path = MOUNTS) -> Iterator[Finding]:
    """Check the permissions, the file system, the free space and the speed of the data directory."""
    directory = config.server.data_path
    elsewhere = "choose another one with 'server.data_dir'"
    # Unlike Path.exists, this is False below a directory that the user may not search.
    existing = next(path for path in (directory, *directory.parents) if os.path.exists(path))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        found = f"{existing} is not a directory that this user may write"
        yield Finding("data directory", ERROR, found, "a directory of the broker's user", f"chown it, or {elsewhere}")
        return
    if existing != directory:
        yield Finding("data directory", OK, f"{directory} does not exist; the broker creates it")
    elif directory.stat().st_mode & 0o027:
        found = f"{directory} has mode {directory.stat().st_mode & 0o777:o}"
        yield Finding("data directory", ERROR, found, "700: it contains messages and logins", f"chmod 700 {directory}")
    else:
        yield Finding("data directory", OK, f"{directory} is private and can be written")
    if config.storage.engine == SQLITE:
        yield _file_system(existing, mounts, elsewhere)
        yield _sync_speed(existing, slow_sync, elsewhere)
    free, limit = shutil.disk_usage(existing).free, config.limits.disk_free
    if free < limit:
        expected = f"more than 'limits.disk_free' ({size(limit)}), below which publishers are blocked"
        yield Finding("disk space", ERROR, f"{size(free)} free", expected, f"free space, or {elsewhere}")
    elif free < 4 * limit:
        expected = f"more than {size(4 * limit)}, four times 'limits.disk_free'"
        yield Finding("disk space", WARNING, f"{size(free)} free", expected, f"free space, or {elsewhere}")
    else:
        yield Finding("disk space", OK, f"{size(free)} free")


def _file_system(path: Path, mounts: Path, elsewhere: str) -> Finding:
    kind = file_system_of(path, mounts)
    if kind in _VOLATILE:
        return Finding("file system", ERROR, f"{path} is on {kind}", "a disk: memory is lost at a reboot", elsewhere)
    if kind in _NETWORK:
        expected = "a local disk: locks and syncs of network file systems are slow or unreliable"
        return Finding("file system", WARNING, f"{path} is on {kind}", expected, elsewhere)
    return Finding("file system", OK, kind or "unknown")


def file_system_of(path: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system that contains a path, or "" if it is unknown."""
    resolved = path.resolve()
    best, kind = "", ""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        _, point, type_ = line.split(" ")[:3]
        point = point.replace("\\040", " ")
        # A later mount hides an earlier one at the same point.
        if resolved.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, type_
    return kind


def _sync_speed(directory: Path, slow: float, elsewhere: str) -> Finding:
    took: list[float] = []
    with tempfile.TemporaryFile(dir=directory, prefix=".leveret-doctor-") as file:
        end = time.monotonic() + _SYNC_TIME
        while len(took) < _SYNCS and (not took or time.monotonic() < end):
            file.write(bytes(4096))
            file.flush()
            began = time.monotonic()
            os.fdatasync(file.fileno())
            took.append(time.monotonic() - began)
    median = statistics.median(took)
    found = f"a sync of the disk takes {1000 * median:.1f} ms"
    if median > slow:
        return Finding("disk speed", WARNING, found, f"at most {1000 * slow:.0f} ms: a confirm waits for it", elsewhere)
    return Finding("disk speed", OK, found)


def check_secrets(config: Config, path: Path | None) -> Iterator[Finding]:
    """Check that other users cannot read the files with passwords and keys."""
    secrets = {
        "tls.key": config.tls.key or config.tls.cert,
        "tls.key_password_file": config.tls.key_password_file,
        "management.tls_key": config.management.tls_key or config.management.tls_cert,
        "management.mail.password_file": config.management.mail.password_file,
        "storage.dsn_file": config.storage.dsn_file,
        "streams.storage_options_file": config.streams.storage_options_file,
        **{f"users.{name}.password_file": user.password_file for name, user in config.users.items()},
        **{
            f"management.webhooks.{name}.headers_file": hook.headers_file
            for name, hook in config.management.webhooks.items()
        },
    }
    if path is not None and (config.storage.dsn or any(user.password for user in config.users.values())):
        secrets["the configuration file"] = str(path)
    for setting, file in secrets.items():
        if file is not None:
            yield from _secret(setting, Path(file))


def _secret(setting: str, file: Path) -> Iterator[Finding]:
    try:
        mode = file.stat().st_mode & 0o777
        with file.open("rb"):
            pass
    except OSError as error:
        found = f"{file} of {setting} cannot be read: {error.strerror}"
        yield Finding(
            "secrets", ERROR, found, "a file that the broker's user may read", f"change {setting}, or chown {file}"
        )
        return
    if mode & 0o007:
        found = f"other users may access {file} of {setting} (mode {mode:o})"
        yield Finding("secrets", ERROR, found, "mode 600 or 640", f"chmod 600 {file}")
