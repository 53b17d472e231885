"""Tasks of the sealer process besides reading and writing: rewriting segments, Iceberg tables. JSON in, JSON out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

import msgspec

from leveret.broker.segments import DAMAGED, FAILED, MISSING
from leveret.segments import files, iceberg
from leveret.segments.erasure import Counts, Rules, compile_rules
from leveret.segments.errors import SegmentDamaged, SegmentError, SegmentMissing
from leveret.segments.files import Options
from leveret.segments.manifest import Segment
from leveret.segments.reader import open_verified
from leveret.segments.rewriting import rewrite
from leveret.segments.writer import SegmentWriter
from leveret.storage import disk

REWRITE: Final = "rewrite"
SYNC_TABLE: Final = "sync-table"
DROP_TABLE: Final = "drop-table"
# Retention removes files that only older snapshots use, unless they are pinned.
SNAPSHOTS_KEPT: Final = timedelta(hours=1)


class SegmentLocation:
    """The location of a segment store.

    Args:
        root: Directory of the store, a path or a URL.
        options: Options for fsspec.
        spool: Local directory for files that are uploaded when complete, None for that of temporary files.
        catalog: Properties of the Iceberg catalog, None if streams have no tables.
        mode: Mode of local segment files.
    """

    def __init__(
        self,
        root: str,
        options: Options | None = None,
        spool: str | None = None,
        catalog: Mapping[str, str] | None = None,
        mode: int = disk.PRIVATE_FILE,
    ) -> None:
        self.root = root
        self.options = options
        self.spool = spool
        self.catalog = catalog
        self.mode = mode
        self._on_disk = False
        self._tables: iceberg.IcebergTables | None = None

    def local_root(self) -> str | None:
        """Return the root if it is a local directory, created and synced with its parents; else None."""
        path = files.local_path(self.root)
        if path is not None and not self._on_disk:
            disk.make_directories(path, disk.directory_mode(self.mode))
            disk.sync_to_root(path)
            self._on_disk = True
        return path

    def tables(self) -> iceberg.IcebergTables:
        """Return the tables of the catalog, which is opened once. Raises IcebergError if that fails."""
        if self.catalog is None:
            raise iceberg.IcebergError("streams have no Iceberg tables: set streams.iceberg to enable them")
        if self._tables is None:
            self._tables = iceberg.IcebergTables(self.catalog, SNAPSHOTS_KEPT)
        return self._tables


class RewriteArguments(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Arguments of REWRITE. `directory` of the new file is relative to the root; `dry_run` only counts."""

    segment: Segment
    directory: str
    stream: str
    rules: Rules
    dry_run: bool = False


class RewriteResult(msgspec.Struct, kw_only=True):
    """Result of REWRITE. `segment` has a path relative to the root; None if nothing changed, or for a dry run."""

    segment: Segment | None
    counts: Counts


class TableArguments(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Arguments of SYNC_TABLE and DROP_TABLE. `paths` are relative to the root."""

    vhost: str
    stream: str
    owner: str
    paths: list[str] = []


def run(location: SegmentLocation, name: str, arguments: bytes) -> tuple[bytes, str, str]:
    """Run a task. Returns its result; or b"" and the kind and text of the error, as a segment store reports them."""
    try:
        return TASKS[name](location, arguments), "", ""
    except SegmentMissing as error:
        return b"", MISSING, str(error)
    except SegmentDamaged as error:
        return b"", DAMAGED, str(error)
    except (SegmentError, iceberg.IcebergError, OSError, ValueError) as error:
        return b"", FAILED, str(error)


def _rewrite(location: SegmentLocation, arguments: bytes) -> bytes:
    wanted = msgspec.json.decode(arguments, type=RewriteArguments)
    rules = compile_rules(wanted.rules)
    directory = files.join(location.root, wanted.directory)
    with open_verified(files.join(location.root, wanted.segment.path), location.options, wanted.segment) as source:
        writer = (
            None
            if wanted.dry_run
            else SegmentWriter(
                directory, wanted.stream, location.options, location.spool, location.local_root(), location.mode
            )
        )
        rewritten, counts = rewrite(source, rules, writer)
    if rewritten is not None:
        rewritten = msgspec.structs.replace(rewritten, path=f"{wanted.directory}/{rewritten.path}")
    return msgspec.json.encode(RewriteResult(segment=rewritten, counts=counts))


def _sync_table(location: SegmentLocation, arguments: bytes) -> bytes:
    wanted = msgspec.json.decode(arguments, type=TableArguments)
    name = iceberg.identifier(wanted.vhost, wanted.stream)
    done = location.tables().sync(name, [files.join(location.root, path) for path in wanted.paths], wanted.owner)
    return msgspec.json.encode(
        {"table": ".".join(name), "added": done.added, "removed": done.removed, "snapshot": done.snapshot}
    )


def _drop_table(location: SegmentLocation, arguments: bytes) -> bytes:
    wanted = msgspec.json.decode(arguments, type=TableArguments)
    name = iceberg.identifier(wanted.vhost, wanted.stream)
    return msgspec.json.encode({"table": ".".join(name), "dropped": location.tables().drop(name, wanted.owner)})


TASKS: Final[dict[str, Callable[[SegmentLocation, bytes], bytes]]] = {
    REWRITE: _rewrite,
    SYNC_TABLE: _sync_table,
    DROP_TABLE: _drop_table,
}
