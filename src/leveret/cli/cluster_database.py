"""The commands of `leveret cluster` that use the database instead of a running node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leveret.cli.config_options import config_file, split_settings, store_settings
from leveret.cli.failed import REFUSED, Failed
from leveret.cli.http_options import URL
from leveret.cli.options import FilePath, together

if TYPE_CHECKING:
    from leveret.storage.cluster import ClusterSettings

# The options of `leveret serve` that say where the database is.
_store_options = together(
    click.option("--store", metavar="URL", help="PostgreSQL database. Default: that of the configuration."),
    click.option("--config", "config_path", type=FilePath(path_type=Path), help="Configuration file (TOML)."),
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any other setting; repeatable."),
)


@contextmanager
def _database(store: str | None, config_path: Path | None, settings: tuple[str, ...]) -> Iterator[ClusterSettings]:
    """Return the place of the database, and report what goes wrong. Raises `Failed`, or `UsageError` with --url."""
    context = click.get_current_context()
    if URL in context.meta:
        raise click.UsageError(f"`{context.command_path}` has no remote form; it uses the database: run it without --url")
    from leveret.broker.errors import StorageFailed
    from leveret.config import ConfigError, load_config
    from leveret.node.choices import CHOICES
    from leveret.node.composition import cluster_settings
    from leveret.storage.registry import without_extra

    flags = split_settings(settings) + store_settings(store)
    try:
        found = cluster_settings(load_config(config_file(config_path), flags=flags, choices=CHOICES))
        if found is None:
            raise Failed("there is no database: name it with --store, or with 'storage.dsn_file' in the configuration")
        yield found
    except ConfigError as error:
        raise Failed(str(error)) from None
    except StorageFailed as error:
        raise Failed(str(error), REFUSED) from None
    except ImportError as error:
        raise Failed(str(without_extra(error)), REFUSED) from None


@click.command("import")
@click.argument("data_dir", metavar="DATA_DIR", type=FilePath(path_type=Path))
@_store_options
def import_data(data_dir: Path, store: str | None, config_path: Path | None, settings: tuple[str, ...]) -> None:
    """Copy a data directory into an empty PostgreSQL database.

    Copies the messages and definitions of a stopped broker. DATA_DIR stays as it is. Set
    `cluster.shards` if several processes have used it.
    """
    with _database(store, config_path, settings) as database:
        from leveret.cluster.importing import import_directory

        import_directory(data_dir.absolute(), database, click.echo)
    click.echo(f"imported {data_dir}; start the broker with another data directory")


@click.command()
@_store_options
def upgrade(store: str | None, config_path: Path | None, settings: tuple[str, ...]) -> None:
    """Raise the formats of the database. They become those of this version, once all live nodes know them."""
    with _database(store, config_path, settings) as database:
        from leveret.storage.postgres_formats import upgrade as raise_formats

        raise_formats(database, click.echo)


@click.command()
@_store_options
def restored(store: str | None, config_path: Path | None, settings: tuple[str, ...]) -> None:
    """Prepare a restored database for new nodes. Nodes from before the restore cannot write to it any more."""
    with _database(store, config_path, settings) as database:
        from leveret.storage.postgres_formats import mark_restored

        mark_restored(database)
    click.echo("the database has a new secret and new epochs; start the nodes")
