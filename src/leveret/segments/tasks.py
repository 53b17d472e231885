"""What the sealer process does beside writing and reading: rewriting of segments, and Iceberg tables. JSON in, JSON out."""

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
from leveret.segments.reader import open_whole
from leveret.segments.rewriting import rewrite
from leveret.segments.writer import SegmentWriter
from leveret.storage import disk

REWRITE: Final = "rewrite"
SYNC_TABLE: Final = "sync-table"
DROP_TABLE: Final = "drop-table"
# Files of older snapshots are gone by then, but for those under a read lease.
SNAPSHOTS_KEPT: Final = timedelta(hours=1)


class Place:
    """Where segments are.

    root     directory of the store, a path or a URL; options go to fsspec
    spool    local directory for files on their way elsewhere, None for that of temporary files
    catalog  properties of the Iceberg catalog, None where streams have no tables
    mode     of local segment files
    """

    def __init__(self, root: str, options: Options | None = None, spool: str | None = None,
                 catalog: Mapping[str, str] | None = None, mode: int = disk.PRIVATE_FILE) -> None:
        self.root = root
        self.options = options
        self.spool = spool
        self.catalog = catalog
        self.mode = mode
        self._on_disk = False
        self._tables: iceberg.IcebergTables | None = None

    def local_root(self) -> str | None:
        """The root where it is a directory of this machine, which is there then, and known to its parents on disk."""
        path = files.local_path(self.root)
        if path is not None and not self._on_disk:
            disk.make_directories(path, disk.directory_mode(self.mode))
            disk.sync_to_root(path)
            self._on_disk = True
        return path

    def tables(self) -> iceberg.IcebergTables:
        """The tables of the catalog; it is opened once. IcebergError where that fails."""
        if self.catalog is None:
            raise iceberg.IcebergError("streams have no Iceberg tables here: the setting streams.iceberg is off")
        if self._tables is None:
            self._tables = iceberg.IcebergTables(self.catalog, SNAPSHOTS_KEPT)
        return self._tables


class Rewrite(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`directory` of the new file, relative to the root; `dry_run`: only count."""

    segment: Segment
    directory: str
    stream: str
    rules: Rules
    dry_run: bool = False


class Rewritten(msgspec.Struct, kw_only=True):
    """`segment` has a path relative to the root; None where nothing was changed, or it was a dry run."""

    segment: Segment | None
    counts: Counts


class Table(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Of one stream; `paths` are relative to the root."""

    vhost: str
    stream: str
    owner: str
    paths: list[str] = []


def run(place: Place, name: str, arguments: bytes) -> tuple[bytes, str, str]:
    """The result of a task; or b"" with what went wrong, kind and text as of a store."""
    try:
        return TASKS[name](place, arguments), "", ""
    except SegmentMissing as error:
        return b"", MISSING, str(error)
    except SegmentDamaged as error:
        return b"", DAMAGED, str(error)
    except (SegmentError, iceberg.IcebergError, OSError, ValueError) as error:
        return b"", FAILED, str(error)


def _rewrite(place: Place, arguments: bytes) -> bytes:
    wanted = msgspec.json.decode(arguments, type=Rewrite)
    rules = compile_rules(wanted.rules)
    directory = files.join(place.root, wanted.directory)
    with open_whole(files.join(place.root, wanted.segment.path), place.options, wanted.segment) as source:
        writer = None if wanted.dry_run else SegmentWriter(directory, wanted.stream, place.options, place.spool,
                                                           place.local_root(), place.mode)
        made, counts = rewrite(source, rules, writer)
    if made is not None:
        made = msgspec.structs.replace(made, path=f"{wanted.directory}/{made.path}")
    return msgspec.json.encode(Rewritten(segment=made, counts=counts))


def _sync_table(place: Place, arguments: bytes) -> bytes:
    wanted = msgspec.json.decode(arguments, type=Table)
    name = iceberg.identifier(wanted.vhost, wanted.stream)
    done = place.tables().sync(name, [files.join(place.root, path) for path in wanted.paths], wanted.owner)
    return msgspec.json.encode({"table": ".".join(name), "added": done.added, "removed": done.removed,
                                "snapshot": done.snapshot})


def _drop_table(place: Place, arguments: bytes) -> bytes:
    wanted = msgspec.json.decode(arguments, type=Table)
    name = iceberg.identifier(wanted.vhost, wanted.stream)
    return msgspec.json.encode({"table": ".".join(name), "dropped": place.tables().drop(name, wanted.owner)})


TASKS: Final[dict[str, Callable[[Place, bytes], bytes]]] = {
    REWRITE: _rewrite, SYNC_TABLE: _sync_table, DROP_TABLE: _drop_table,
}
