"""`leveret serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from leveret.cli.config_options import config_file, split_settings, store_settings
from leveret.cli.failed import Failed
from leveret.cli.options import FilePath

if TYPE_CHECKING:
    from leveret.cli.serving import Serving
    from leveret.config import Config


@click.command()
@click.option("--host", help="Address to listen on.  [default: localhost]")
@click.option("--port", type=int, help="Port to listen on; 0 picks a free one.  [default: 5672]")
@click.option("--data-dir", type=FilePath(path_type=Path), help="Data directory.  [default: ~/.local/share/leveret]")
@click.option("--store", metavar="URL", help="PostgreSQL database for messages, instead of the data directory.")
@click.option("--config", "config_path", type=FilePath(path_type=Path), help="Configuration file (TOML).")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Minimum severity to log.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any other setting; repeatable.")
@click.option(
    "--ready-file",
    type=FilePath(path_type=Path),
    help="When the broker is ready, write its host, port, pid and control socket to this file as JSON.",
)
@click.option(
    "--accept-missing",
    is_flag=True,
    help="Start even if files are missing from the data directory; their contents are lost.",
)
@click.option(
    "--drop-damaged",
    is_flag=True,
    help="Start even if parts of the store are damaged; the broker drops them and logs what they contained.",
)
def serve(
    host: str | None,
    port: int | None,
    data_dir: Path | None,
    store: str | None,
    config_path: Path | None,
    log_level: str | None,
    settings: tuple[str, ...],
    ready_file: Path | None,
    accept_missing: bool,
    drop_damaged: bool,
) -> None:
    """Run a broker until SIGTERM or SIGINT. SIGHUP reloads certificates, users, vhosts and limits."""
    from leveret.broker.errors import StorageFailed
    from leveret.config import ConfigError, trace_config
    from leveret.node.choices import CHOICES
    from leveret.node.errors import StartFailed
    from leveret.security.tls import TlsError
    from leveret.storage.salvage import Salvage

    given = {"host": host, "port": port, "data_dir": data_dir, "log_level": log_level}
    flags = split_settings(settings) + [
        (f"server.{key}", str(value), f"--{key.replace('_', '-')}") for key, value in given.items() if value is not None
    ]
    flags += store_settings(store)
    path = config_file(config_path)
    try:
        config, sources = trace_config(path, flags=flags, choices=CHOICES)
        make_serving = _serving_class(config)
        code = make_serving(config, path, flags, ready_file, Salvage(accept_missing, drop_damaged), sources).run()
    except (ConfigError, TlsError, StorageFailed, StartFailed) as error:
        raise Failed(str(error)) from None
    if code:
        raise SystemExit(code)


def _serving_class(config: Config) -> type[Serving]:
    """Return the class of this process. Imports what it needs only. Raises `StorageFailed` without the extra it needs."""
    if config.cluster.shards > 1 and config.storage.engine == "postgresql":
        try:
            from leveret.cli.node import NodeServing
        except ImportError as error:
            from leveret.storage.registry import without_extra

            raise without_extra(error) from None
        return NodeServing
    if config.cluster.shards > 1:
        from leveret.cli.front import FrontServing

        return FrontServing
    from leveret.cli.serving import Serving

    return Serving
