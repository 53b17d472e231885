"""Files that other users of the machine could read or change: named in the log at the start."""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterator
from pathlib import Path

from leveret.config import Config

log = logging.getLogger("leveret.serve")

# Files of the data directory are the broker's alone. What the configuration names may be for a group, too.
_OWN = 0o077
_NAMED = 0o027


def warn_of_loose_files(config: Config, on_disk: bool) -> None:
    """Log a warning for each file with messages or secrets whose mode lets others in."""
    if on_disk:
        directory = config.server.data_path
        loose = sorted(str(path.relative_to(directory)) for path in (*directory.iterdir(), *_staged(directory))
                       if _mode(path) & _OWN)
        if loose:
            log.warning("files in the data directory %s can be read or changed by other users: %s; expected mode 0600, to"
                        " correct it: chmod go= %s", directory, ", ".join(loose[:20]),
                        " ".join(str(directory / name) for name in loose[:20]))
    for key, path in _secrets(config):
        if _mode(path) & _NAMED:
            log.warning("%s: other users can read or change %s, which has mode %04o; expected 0640 or less", key, path,
                        _mode(path))


def _staged(directory: Path) -> Iterator[Path]:
    place = directory / "staged"
    if place.is_dir():
        yield from place.iterdir()


def _mode(path: Path) -> int:
    """The mode of a file or socket, 0 for what is not there or is a directory."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return 0 if stat.S_ISDIR(found.st_mode) else stat.S_IMODE(found.st_mode)


def _secrets(config: Config) -> Iterator[tuple[str, Path]]:
    """The files of the configuration that hold secrets, by the names of their settings."""
    named = {"tls.key": config.tls.key, "tls.key_password_file": config.tls.key_password_file,
             "streams.storage_options_file": config.streams.storage_options_file,
             "streams.iceberg_properties_file": config.streams.iceberg_properties_file}
    named |= {f"users.{name}.password_file": user.password_file for name, user in config.users.items()}
    for key, path in named.items():
        if path is not None:
            yield key, Path(path)
