"""Warnings about files that other users of the machine can read or change."""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterator
from pathlib import Path

from leveret.config import Config

logger = logging.getLogger("leveret.serve")

# Forbidden mode bits. Only the broker's user may access the data directory. A group may read configured files.
_FORBIDDEN_IN_DATA_DIR = 0o077
_FORBIDDEN_IN_CONFIG = 0o027


def warn_about_permissions(config: Config, on_disk: bool) -> None:
    """Log a warning for each file with messages or secrets that other users can access."""
    if on_disk:
        directory = config.server.data_path
        exposed = sorted(
            str(path.relative_to(directory))
            for path in (*directory.iterdir(), *_uploads(directory))
            if _mode(path) & _FORBIDDEN_IN_DATA_DIR
        )
        if exposed:
            logger.warning(
                "other users can read or change files in data directory %s: %s; expected mode 0600, set by: chmod go= %s",
                directory,
                ", ".join(exposed[:20]),
                " ".join(str(directory / name) for name in exposed[:20]),
            )
    for key, path in _secrets(config):
        if _mode(path) & _FORBIDDEN_IN_CONFIG:
            logger.warning(
                "'%s': other users can read or change %s, which has mode %04o; expected 0640 or less",
                key,
                path,
                _mode(path),
            )


def _uploads(directory: Path) -> Iterator[Path]:
    uploads = directory / "staged"
    if uploads.is_dir():
        yield from uploads.iterdir()


def _mode(path: Path) -> int:
    """Return the mode of a file or socket; 0 if it does not exist or is a directory."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return 0 if stat.S_ISDIR(found.st_mode) else stat.S_IMODE(found.st_mode)


def _secrets(config: Config) -> Iterator[tuple[str, Path]]:
    """Return the names and values of settings for files with secrets."""
    named = {
        "tls.key": config.tls.key,
        "tls.key_password_file": config.tls.key_password_file,
        "management.tls_key": config.management.tls_key,
        "streams.storage_options_file": config.streams.storage_options_file,
        "streams.iceberg_properties_file": config.streams.iceberg_properties_file,
    }
    named |= {f"users.{name}.password_file": user.password_file for name, user in config.users.items()}
    for key, path in named.items():
        if path is not None:
            yield key, Path(path)
