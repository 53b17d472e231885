"""Streams as Iceberg tables over their segments; no row is copied.

The stream's manifest in the log is authoritative: `sync` makes the table agree with it, even if earlier calls failed.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from leveret._build import installation
from leveret.segments import files, schema
from leveret.segments.catalog import CATALOG
from leveret.segments.errors import masked

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

# The namespace for the vhost "/", which is not a valid name for a namespace.
ROOT: Final = "default"
# Properties of new tables: retention of the table history.
PROPERTIES: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "write.parquet.compression-codec": "zstd",
}
# Table property with the stream that the table belongs to.
OWNER: Final = "leveret.stream"
# Remote catalogs may limit the size of a commit.
_MAX_FILES_PER_COMMIT: Final = 1000


class IcebergError(Exception):
    """A table cannot be synchronized. The message has no credentials."""


class SyncResult:
    """Result of `sync`: files added and removed, and the id of the current snapshot (None if there is none)."""

    __slots__ = ("added", "removed", "snapshot")

    def __init__(self, added: int, removed: int, snapshot: int | None) -> None:
        self.added = added
        self.removed = removed
        self.snapshot = snapshot


def identifier(vhost: str, stream: str) -> tuple[str, str]:
    """Return the namespace and the name of a stream's table."""
    namespace = vhost.strip("/").replace("/", "_").replace(".", "_")
    return namespace or ROOT, stream.replace("/", "_").replace("\x1f", "_")


class IcebergTables:
    """The tables of one catalog.

    Args:
        properties: pyiceberg's properties: type, uri, warehouse, credentials.
        snapshots_kept: Age after which snapshots expire.

    Raises:
        IcebergError: pyiceberg is not installed, or the catalog cannot be opened.
    """

    def __init__(self, properties: Mapping[str, str], snapshots_kept: timedelta = timedelta(hours=1)) -> None:
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise IcebergError(f"Iceberg tables need the extra `iceberg` ({installation('iceberg')})") from error
        # pyiceberg warns about every column for which a file has no bounds.
        logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
        self._snapshots_kept = snapshots_kept
        try:
            _make_private(properties.get("uri", ""))
            self._catalog: Catalog = load_catalog(CATALOG, **properties)
        except Exception as error:  # catalogs raise exceptions of any kind
            raise _failure("the catalog cannot be opened", error) from error

    def sync(self, name: tuple[str, str], urls: Sequence[str], owner: str) -> SyncResult:
        """Make the table consist of these files, creating it if there are files.

        Args:
            name: Namespace and name of the table.
            urls: The segments of the stream.
            owner: Identifies the stream; another stream's table of the same name is left alone.

        Raises:
            IcebergError: The table belongs to another stream, or the catalog fails. Completed commits stay, and the next
                call resumes.
        """
        try:
            return self._sync(name, [_whole_url(url) for url in urls], owner)
        except IcebergError:
            raise
        except Exception as error:
            raise _failure(f"table {'.'.join(name)}", error) from error

    def _sync(self, name: tuple[str, str], urls: list[str], owner: str) -> SyncResult:
        table = self._table(name, owner, bool(urls))
        if table is None:
            return SyncResult(0, 0, None)
        present = {task.file.file_path: task.file for task in table.scan().plan_files()}
        wanted = set(urls)
        removed = [file for path, file in present.items() if path not in wanted]
        new = [url for url in urls if url not in present]
        first = new[:_MAX_FILES_PER_COMMIT]
        if removed or first:
            # In one transaction, so that rows of merged or rewritten files are neither duplicated nor missing.
            with table.transaction() as transaction:
                if removed:
                    with transaction.update_snapshot().overwrite() as snapshot:
                        for file in removed:
                            snapshot.delete_data_file(file)
                if first:
                    transaction.add_files(first, check_duplicate_files=False)
        for at in range(_MAX_FILES_PER_COMMIT, len(new), _MAX_FILES_PER_COMMIT):
            table.add_files(new[at : at + _MAX_FILES_PER_COMMIT], check_duplicate_files=False)
        if removed or new:
            self._expire(table)
        current = table.current_snapshot()
        return SyncResult(len(new), len(removed), current.snapshot_id if current is not None else None)

    def _table(self, name: tuple[str, str], owner: str, create: bool) -> Table | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            table = self._catalog.load_table(name)
        except (NoSuchTableError, NoSuchNamespaceError):
            if not create:
                return None
            self._catalog.create_namespace_if_not_exists(name[:1])
            return self._catalog.create_table(name, schema=schema.FILE_SCHEMA, properties={**PROPERTIES, OWNER: owner})
        if table.properties.get(OWNER) != owner:
            other = table.properties.get(OWNER) or "another application"
            raise IcebergError(
                f"table {'.'.join(name)} belongs to {other}, not to {owner}; names of streams with"
                " a table must differ in more than punctuation"
            )
        known = {field.name for field in table.schema().fields}
        if not known.issuperset(schema.FILE_COLUMNS):
            with table.update_schema() as update:
                update.union_by_name(schema.FILE_SCHEMA)
        return table

    def drop(self, name: tuple[str, str], owner: str) -> bool:
        """Drop the table of a deleted stream from the catalog, not its files. Returns False if it has no table."""
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
        """Expire old snapshots and delete metadata files that only they use."""
        before = datetime.now(UTC) - self._snapshots_kept
        limit = int(before.timestamp() * 1000)
        current = table.current_snapshot()
        old = [
            snapshot
            for snapshot in table.snapshots()
            if snapshot.timestamp_ms < limit and (current is None or snapshot.snapshot_id != current.snapshot_id)
        ]
        if not old:
            return
        unneeded = _metadata_of(table, old)
        table.maintenance.expire_snapshots().by_ids([snapshot.snapshot_id for snapshot in old]).commit()
        unneeded -= _metadata_of(table, table.snapshots())
        for path in unneeded:
            with contextlib.suppress(Exception):  # an orphaned metadata file is harmless
                table.io.delete(path)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._catalog.close()


def _metadata_of(table: Table, snapshots: Sequence[Snapshot]) -> set[str]:
    """Return the manifests and manifest lists of snapshots."""
    found: set[str] = set()
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        found.update(manifest.manifest_path for manifest in snapshot.manifests(table.io))
    return found


def _whole_url(url: str) -> str:
    """Return an absolute URL, which other readers of the table need."""
    return url if files.local_path(url) is None or url.startswith("file://") else f"file://{os.path.abspath(url)}"


def _make_private(uri: str) -> None:
    """Create the catalog's SQLite database so that only the broker's user can read it."""
    path = uri.removeprefix("sqlite:///") if uri.startswith("sqlite:///") else ""
    if path:
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _failure(what: str, error: Exception) -> IcebergError:
    return IcebergError(f"{what}: {masked(str(error) or type(error).__name__)[:500]}")
