"""Streams as Iceberg tables over their segments: no row is written anew.

The manifest of a stream in the log is what counts; `sync` makes a table agree with it, whatever happened to earlier calls.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from leveret.segments import files, schema
from leveret.segments.catalog import CATALOG
from leveret.segments.errors import masked

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

# The namespace of the vhost whose name is no name.
ROOT: Final = "default"
# Of the tables: what is kept of their own past.
PROPERTIES: Final = {
    "write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "10",
    "write.parquet.compression-codec": "zstd",
}
# Whose table it is.
OWNER: Final = "leveret.stream"
# At most so many files in one commit: a catalog of the network may have its limits.
_FILES_A_COMMIT: Final = 1000


class IcebergError(Exception):
    """A table cannot be brought up to date. The text says why, without credentials."""


class Synced:
    """What `sync` did: files added and removed; `snapshot` is the number of the snapshot, None while there is none."""

    __slots__ = ("added", "removed", "snapshot")

    def __init__(self, added: int, removed: int, snapshot: int | None) -> None:
        self.added = added
        self.removed = removed
        self.snapshot = snapshot


def identifier(vhost: str, stream: str) -> tuple[str, str]:
    """Namespace and name of a stream's table."""
    namespace = vhost.strip("/").replace("/", "_").replace(".", "_")
    return namespace or ROOT, stream.replace("/", "_").replace("\x1f", "_")


class IcebergTables:
    """The tables of one catalog. `properties` are pyiceberg's: type, uri, warehouse, credentials.

    IcebergError where pyiceberg is not installed, or the catalog cannot be opened.
    """

    def __init__(self, properties: Mapping[str, str], snapshots_kept: timedelta = timedelta(hours=1)) -> None:
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise IcebergError('Iceberg tables need the extra `iceberg` (pip install "leveret[iceberg]")') from error
        # It names every column of which a file has no bounds.
        logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
        self._snapshots_kept = snapshots_kept
        try:
            _make_private(properties.get("uri", ""))
            self._catalog: Catalog = load_catalog(CATALOG, **properties)
        except Exception as error:  # of whatever kind the catalog raises
            raise _failure("the catalog cannot be opened", error) from error

    def sync(self, name: tuple[str, str], urls: Sequence[str], owner: str) -> Synced:
        """Make the table consist of these files. It is made where there is none, unless there are no files either.

        `owner` tells the stream from others whose table would have the same name. IcebergError where the table is another
        stream's, and where something fails; what was committed stays, and the next call goes on.
        """
        try:
            return self._sync(name, [_whole_url(url) for url in urls], owner)
        except IcebergError:
            raise
        except Exception as error:
            raise _failure(f"table {'.'.join(name)}", error) from error

    def _sync(self, name: tuple[str, str], urls: list[str], owner: str) -> Synced:
        table = self._table(name, owner, bool(urls))
        if table is None:
            return Synced(0, 0, None)
        present = {task.file.file_path: task.file for task in table.scan().plan_files()}
        wanted = set(urls)
        gone = [file for path, file in present.items() if path not in wanted]
        new = [url for url in urls if url not in present]
        first = new[:_FILES_A_COMMIT]
        if gone or first:
            # Both or nothing: rows that were merged or rewritten are never there twice, and never missing.
            with table.transaction() as transaction:
                if gone:
                    with transaction.update_snapshot().overwrite() as snapshot:
                        for file in gone:
                            snapshot.delete_data_file(file)
                if first:
                    transaction.add_files(first, check_duplicate_files=False)
        for at in range(_FILES_A_COMMIT, len(new), _FILES_A_COMMIT):
            table.add_files(new[at : at + _FILES_A_COMMIT], check_duplicate_files=False)
        if gone or new:
            self._expire(table)
        current = table.current_snapshot()
        return Synced(len(new), len(gone), current.snapshot_id if current is not None else None)

    def _table(self, name: tuple[str, str], owner: str, make: bool) -> Table | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            table = self._catalog.load_table(name)
        except (NoSuchTableError, NoSuchNamespaceError):
            if not make:
                return None
            self._catalog.create_namespace_if_not_exists(name[:1])
            return self._catalog.create_table(name, schema=schema.FILE_SCHEMA, properties={**PROPERTIES, OWNER: owner})
        if table.properties.get(OWNER) != owner:
            raise IcebergError(f"table {'.'.join(name)}: it is that of {table.properties.get(OWNER) or 'somebody else'},"
                               f" not of {owner}; streams with a table need names that differ in more than punctuation")
        known = {field.name for field in table.schema().fields}
        if not known.issuperset(schema.FILE_COLUMNS):
            with table.update_schema() as update:
                update.union_by_name(schema.FILE_SCHEMA)
        return table

    def drop(self, name: tuple[str, str], owner: str) -> bool:
        """Forget the table of a stream that is deleted; its files are the broker's. False where it has none."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            if self._catalog.load_table(name).properties.get(OWNER) != owner:
                return False
            self._catalog.drop_table(name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return False
        except Exception as error:
            raise _failure(f"table {'.'.join(name)}", error) from error
        return True

    def _expire(self, table: Table) -> None:
        """Forget old snapshots, with the metadata that no other snapshot needs."""
        before = datetime.now(UTC) - self._snapshots_kept
        limit = int(before.timestamp() * 1000)
        current = table.current_snapshot()
        old = [snapshot for snapshot in table.snapshots()
               if snapshot.timestamp_ms < limit and (current is None or snapshot.snapshot_id != current.snapshot_id)]
        if not old:
            return
        unneeded = _metadata_of(table, old)
        table.maintenance.expire_snapshots().by_ids([snapshot.snapshot_id for snapshot in old]).commit()
        unneeded -= _metadata_of(table, table.snapshots())
        for path in unneeded:
            with contextlib.suppress(Exception):  # litter, and nothing worse
                table.io.delete(path)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._catalog.close()


def _metadata_of(table: Table, snapshots: Sequence[Any]) -> set[str]:
    """The manifests of snapshots, and the lists of them."""
    found: set[str] = set()
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        found.update(manifest.manifest_path for manifest in snapshot.manifests(table.io))
    return found


def _whole_url(url: str) -> str:
    """A URL, as other readers of the table need it."""
    return url if files.local_path(url) is None or url.startswith("file://") else f"file://{os.path.abspath(url)}"


def _make_private(uri: str) -> None:
    """The database of the catalog is for the broker's user only."""
    path = uri.removeprefix("sqlite:///") if uri.startswith("sqlite:///") else ""
    if path:
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _failure(what: str, error: Exception) -> IcebergError:
    return IcebergError(f"{what}: {masked(str(error) or type(error).__name__)[:500]}")
