"""`leveret check`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from leveret.cli.failed import INCOMPLETE, REFUSED, Failed
from leveret.cli.options import FilePath
from leveret.cli.output import label, show_json, size
from leveret.config.values import Setting

# Labels for the parts of a data directory.
_PARTS = {"log": "log", "segments": "segments", "staged": "uploads"}


@click.command()
@click.argument("directory", metavar="DIR", type=FilePath(path_type=Path))
@click.option(
    "--config",
    "config_path",
    type=FilePath(path_type=Path),
    help="The broker's configuration file, if it sets another location for segments.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(directory: Path, config_path: Path | None, as_json: bool) -> None:
    """Verify the data directory DIR of a stopped broker: the log, sealed segments and uploads.

    Exit codes: 0 if everything is intact, 1 if anything is damaged or missing, 4 if the directory cannot be checked.
    """
    from leveret.broker.errors import StorageFailed
    from leveret.node.checking import DirectoryCheck

    location, options = _segments_location(config_path)
    checks = [DirectoryCheck(path, location, options) for path in _directories(directory.absolute())]
    try:
        for checked in checks:
            checked.run()
    except StorageFailed as error:
        raise Failed(str(error), REFUSED) from None
    damaged = [text for checked in checks for text in checked.damaged]
    notes = [note for checked in checks for note in checked.notes]
    totals = _totals(checked.counts for checked in checks)
    if as_json:
        show_json({"sound": not damaged, "damaged": damaged, "notes": notes, **totals})
    else:
        for part, counts in totals.items():
            click.echo(f"{_PARTS[part]:<10}" + ", ".join(_figure(name, value) for name, value in counts.items()))
        for note in notes:
            click.echo(f"note      {note}")
        for text in damaged:
            click.echo(f"DAMAGED   {text}")
        click.echo(f"damaged or missing parts: {len(damaged)}" if damaged else "everything is intact")
    if damaged:
        raise SystemExit(INCOMPLETE)


def _directories(directory: Path) -> list[Path]:
    """Return the directories with logs: more than one if several processes have used the data directory."""
    if not (directory / "shards").is_dir():
        return [directory]
    from leveret.cluster.layout import log_directories

    return log_directories(directory)


def _totals(checked: Iterable[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    """Return the sums of the counts of directories."""
    totals: dict[str, dict[str, int]] = {}
    for counts in checked:
        for part, figures in counts.items():
            total = totals.setdefault(part, {})
            for name, value in figures.items():
                total[name] = total.get(name, 0) + value
    return totals


def _figure(name: str, value: int) -> str:
    if name == "octets":
        return size(value)
    return f"{value} {'files' if name == 'contents' else label(name)}"


def _segments_location(config_path: Path | None) -> tuple[str | None, Mapping[str, Setting] | None]:
    """Return the configured directory or URL of segments, and its file system options."""
    if config_path is None:
        return None, None
    from leveret.config import ConfigError, load_config
    from leveret.segments.storage_options import read_options

    try:
        streams = load_config(config_path).streams
        options = None if streams.storage_options_file is None else read_options(streams.storage_options_file)
    except (ConfigError, OSError, ValueError) as error:
        raise Failed(str(error)) from None
    return streams.directory, options
