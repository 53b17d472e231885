"""Options of the commands that read the configuration as `leveret serve` does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from leveret.cli.options import FilePath, together

if TYPE_CHECKING:
    from leveret.config import Config

_DATA_DIR: Final = f"{__name__}.data_dir"


def _keep_data_dir(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta[_DATA_DIR] = value


config_options = together(
    click.option("--config", "config_path", type=FilePath(path_type=Path), help="Configuration file (TOML)."),
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a setting; repeatable."),
    click.option(
        "--data-dir",
        "data_dir",
        type=FilePath(),
        callback=_keep_data_dir,
        expose_value=False,
        help="The broker's data directory, as of `leveret serve`.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)


def split_settings(settings: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Return the settings of --set. Raises `click.BadParameter`."""
    return [_split(setting) for setting in settings]


def store_settings(store: str | None) -> list[tuple[str, str, str]]:
    """Return the settings of --store."""
    if store is None:
        return []
    return [("storage.engine", "postgresql", "--store"), ("storage.dsn", store, "--store")]


def _split(setting: str) -> tuple[str, str, str]:
    key, separator, value = setting.partition("=")
    if not separator:
        raise click.BadParameter(f"{setting!r}: expected KEY=VALUE", param_hint="--set")
    return key.strip(), value, "--set"


def config_file(given: Path | None) -> Path | None:
    """Return the configuration file: that of --config or LEVERET_CONFIG, or None."""
    path = given or os.environ.get("LEVERET_CONFIG")
    return Path(path) if path else None


def load_traced(given: Path | None, settings: tuple[str, ...]) -> tuple[Config, dict[str, str]]:
    """Return the configuration of the options, and the source of each setting that is not a default.

    Raises:
        ConfigError: A setting is invalid.
    """
    from leveret.config import trace_config
    from leveret.node.choices import CHOICES

    data_dir: str | None = click.get_current_context().meta[_DATA_DIR]
    flags = [] if data_dir is None else [("server.data_dir", data_dir, "--data-dir")]
    return trace_config(config_file(given), flags=flags + split_settings(settings), choices=CHOICES)
