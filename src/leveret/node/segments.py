"""The store of sealed segments, from the configuration."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from leveret._build import installation
from leveret.broker.log import Log
from leveret.broker.segments import SegmentSettings, SegmentStore
from leveret.config import Config, ConfigError, StreamsConfig
from leveret.segments.catalog import default_properties, is_remote, read_properties
from leveret.storage import disk

# Directories in the data directory.
DIRECTORY = "streams"
UNFINISHED = "unfinished"
UNSHARED = (
    "other nodes must find the segments of streams in PostgreSQL; set 'streams.directory' to a URL, such as"
    " s3://bucket/streams, or to a directory that all nodes share, together with 'streams.shared' = true"
)
# Schemes of URLs that cannot hold the segments of nodes, with the reason.
_UNFIT_SCHEMES = {
    "memory": "which is in the memory of one process",
    "local": "which is on one machine",
    "http": "which cannot be written",
    "https": "which cannot be written",
}
# The end of errors about a catalog that is only on one machine.
_LOCAL_CATALOG = (
    "which other nodes do not find; name a catalog on a server, such as one of type rest, hive or glue, or of type sql in"
    " PostgreSQL"
)
EXTRA = f"the extra `segments` is not installed ({installation('segments')})"


def make_store(config: Config, log: Log) -> SegmentStore | str:
    """Return the segment store, or the reason why there is none. Raises `ConfigError` if the settings are invalid."""
    streams = config.streams
    rows = log.rows_address()
    if rows is None:
        return f"'storage.engine' is '{config.storage.engine}'"
    if find_spec("pyarrow") is None:
        return EXTRA
    directory = streams.directory
    if streams.shared and directory is None:
        raise ConfigError(
            "'streams.shared' is true without 'streams.directory'; set it to the directory that all nodes share"
        )
    is_shared = streams.shared or (directory is not None and is_remote(directory))
    if not (rows.is_local or is_shared):
        return UNSHARED
    scheme = (directory or "").partition("://")[0]
    if not rows.is_local and scheme in _UNFIT_SCHEMES:
        raise ConfigError(
            f"'streams.directory' is a URL with the scheme '{scheme}', {_UNFIT_SCHEMES[scheme]}; expected one that all"
            " nodes can read and write, such as s3://bucket/streams, or a directory together with 'streams.shared' = true"
        )
    if directory is None:
        directory = str(config.server.data_path / DIRECTORY)
    if "://" in directory and find_spec("fsspec") is None:
        raise ConfigError(f"'streams.directory' is a URL, but {EXTRA}")
    options = streams.storage_options_file
    if options is not None and not Path(options).is_file():
        raise ConfigError(f"'streams.storage_options_file': the file {options} does not exist")
    catalog = _catalog(config, directory, is_local=rows.is_local)
    mode = int(config.storage.segments_mode, 8)
    if streams.directory is None and mode & 0o040:
        # The group needs access to the segment directory. Only the broker's user may access the other files.
        disk.make_directories(config.server.data_path)
        disk.widen(config.server.data_path, 0o010)
    # Imported here because only a broker with sealed streams needs it.
    from leveret.segments.process import SealerProcess

    return SealerProcess(directory, rows, log.spool, config.server.data_path / UNFINISHED, options, catalog, mode)


def _catalog(config: Config, directory: str, *, is_local: bool) -> dict[str, str] | None:
    """Return the properties of the Iceberg catalog, or None if streams have no tables.

    Args:
        config: The configuration.
        directory: The directory of the segments.
        is_local: Whether the catalog may be on this machine.

    Raises:
        ConfigError: The catalog cannot be used.
    """
    streams = config.streams
    if not streams.iceberg:
        return None
    if find_spec("pyiceberg") is None:
        raise ConfigError(
            f"'streams.iceberg' is true, but the extra `iceberg` is not installed ({installation('iceberg')})"
        )
    if streams.iceberg_properties_file is None:
        if not is_local:
            raise ConfigError(f"'streams.iceberg' is true without 'streams.iceberg_properties_file', {_LOCAL_CATALOG}")
        return default_properties(directory, config.server.data_path)
    try:
        properties = read_properties(Path(streams.iceberg_properties_file))
    except ValueError as error:
        raise ConfigError(f"'streams.iceberg_properties_file': {error}") from None
    if not is_local and properties.get("uri", "").startswith("sqlite:"):
        raise ConfigError(f"'streams.iceberg_properties_file' names a catalog in SQLite, {_LOCAL_CATALOG}")
    return properties


def segment_settings(streams: StreamsConfig) -> SegmentSettings:
    """Return the sealing settings, with times in milliseconds."""
    merge_below = streams.segment_size // 4 if streams.merge_below is None else streams.merge_below
    return SegmentSettings(
        streams.sealing,
        streams.segment_size,
        round(streams.segment_age * 1000),
        round(streams.grace * 1000),
        merge_below,
        round(streams.iceberg_delay * 1000) if streams.iceberg else -1,
    )
