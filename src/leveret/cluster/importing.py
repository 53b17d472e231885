"""The import of a data directory into a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from leveret.broker import metadata
from leveret.broker.errors import StorageFailed
from leveret.cluster.layout import SHARED, check_shards, has_shared, shard_path
from leveret.cluster.nodes import PLACEMENT
from leveret.management.operations.vhosts import DEFAULT_VHOST
from leveret.node.part import DIVIDED, SHARED_KINDS
from leveret.storage.checksums import decode_text
from leveret.storage.cluster import ClusterSettings
from leveret.storage.postgres_import import Import
from leveret.storage.presence import LogFiles
from leveret.storage.reading import LOG
from leveret.storage.sqlite_source import SqliteSource
from leveret.storage.upload_files import DIRECTORY as UPLOADS

# Maximum number of streams that an error names.
_SHOWN = 5


def import_directory(data: Path, settings: ClusterSettings, report: Callable[[str], None]) -> None:
    """Copy the logs of a stopped broker into an empty database, with its users and global parameters.

    Args:
        data: The data directory, which stays as it is.
        settings: The place of the database, and the number of its shards.
        report: Called with the progress, as text.

    Raises:
        StorageFailed: A broker uses the data directory, parts of it cannot be moved, the database is not empty, or the copy
            fails.
    """
    if not data.is_dir():
        raise StorageFailed(f"{data} is not a directory; expected the data directory of a stopped broker")
    divided = has_shared(data)
    check_shards(data, settings.shards)
    if divided and settings.shards == 1:
        raise StorageFailed(
            f"{data} is the data directory of a broker of several processes, and 'cluster.shards' is 1; expected at least 2"
        )
    with ExitStack() as stack:
        sources = {0: stack.enter_context(SqliteSource(data))}
        for number in range(1, settings.shards):
            path = shard_path(data, number)
            if LogFiles(path, LOG).database.exists():
                sources[number] = stack.enter_context(SqliteSource(path))
        records: list[tuple[str, str, bytes]] = []
        if divided:
            shared = stack.enter_context(SqliteSource(data / SHARED))
            records = [
                (kind, decode_text(key), value) for kind, key, value in shared.definitions if kind in SHARED_KINDS
            ] + _placements(sources)
        elif DIVIDED[1] in sources[0].names(DIVIDED[0]):
            raise StorageFailed(
                f"the users and global parameters are not in {data}, but in its directory '{SHARED}', which is missing;"
                " restore it from a backup"
            )
        _refuse_segments(sources)
        importing = stack.enter_context(closing(Import(settings, str(data), report)))
        importing.run(sources, settings.shards if divided else None, records)
        for source in sources.values():
            if source.names(metadata.STAGED):
                (identity,) = (
                    metadata.unpack(value)["identity"]
                    for kind, key, value in source.definitions
                    if (kind, decode_text(key)) == (metadata.COUNTER, "identity")
                )
                report(
                    f"uploads of AMQP 0-9 remain in {source.directory / UPLOADS}; copy its files into the directory"
                    f" '{identity}' of 'uploads.directory', or without this setting the directory itself into the data"
                    " directory of the broker that starts on the database first"
                )


def _placements(sources: dict[int, SqliteSource]) -> list[tuple[str, str, bytes]]:
    """Return the records with the shard of each vhost."""
    places = {DEFAULT_VHOST: 0}
    for number, source in sources.items():
        for key in source.names(metadata.VHOST):
            places[metadata.split_key(key)[0]] = number
    return [(PLACEMENT, vhost, b"%d" % number) for vhost, number in places.items()]


def _refuse_segments(sources: dict[int, SqliteSource]) -> None:
    """Raise `StorageFailed` if streams have sealed segments: their files are not in the log."""
    streams: list[str] = []
    for source in sources.values():
        sealed = {metadata.split_key(key)[0] for key in source.names(metadata.STREAM_SEGMENT)}
        for kind, key, value in source.definitions if sealed else ():
            if kind == metadata.QUEUE and str(metadata.unpack(value)["id"]) in sealed:
                vhost, name = metadata.split_key(decode_text(key))
                streams.append(f"'{name}' in vhost '{vhost}'")
    if streams:
        names = ", ".join(streams[:_SHOWN])
        more = f" and {len(streams) - _SHOWN} more" if len(streams) > _SHOWN else ""
        raise StorageFailed(
            f"streams have sealed segments, whose files cannot be moved into PostgreSQL: {names}{more}; copy these streams"
            " with a consumer and delete them first"
        )
