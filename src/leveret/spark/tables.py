"""Registers the streams of a vhost as tables of the session catalog."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Final

from leveret.spark.connection import ControlClient, endpoint_of
from leveret.spark.data_source import INITIAL_CONNECT_TIMEOUT, AmqpDataSource, FilteringDataSource
from leveret.spark.errors import OptionError
from leveret.spark.options import BY_NAME, SOURCES, STREAM, Settings, option_texts, read_options
from leveret.spark.register import PUSHDOWN, register
from leveret.spark.source.target import Target, streams_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATTERN: Final = "streamPattern"
# Options that differ between tables.
_TABLE_OPTIONS: Final = (*(name for name in SOURCES if name != _PATTERN), "partitions", "exchange", "routingKey")
# The data sources of tables by their names.
_SOURCES: Final[dict[str, type[AmqpDataSource]]] = {}
_PARTITION: Final = re.compile(r"(.+)-[0-9]+")


def create_tables(spark: SparkSession, /, *, database: str = "leveret", **options: object) -> dict[str, str]:
    """Register streams and super streams as tables of the session catalog, which read and append messages.

    A table has the name of its stream, with `_` for characters other than ASCII letters, digits and `_`. The options stay
    in this session: with a catalog that outlives it, call this again in the next one.

    Args:
        spark: The session.
        database: The database, which is created if it does not exist.
        **options: Options of the data source for every table. `streamPattern` selects streams; the default is all that
            the user may read.

    Returns:
        The streams by the names of their tables.

    Raises:
        OptionError: An option is invalid, or two streams have the same table name.
        BrokerUnreachable: The broker cannot be reached.
    """
    given = option_texts(options)
    settings = read_options(given)
    for name in _TABLE_OPTIONS:
        if name in settings.given:
            raise OptionError(f"option {name}: not valid in create_tables, which sets it for each table")
    shared = {name: value for name, value in given.items() if name.lower() != _PATTERN.lower()}
    tables = _tables(_streams(settings))
    if spark.conf.get(PUSHDOWN, "false") != "true":
        register(spark)
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {_quoted(database)}")
    created = {}
    for table, (stream, address) in tables.items():
        source = _source(f"amqp_{database}_{table}", {**shared, **address})
        spark.dataSource.register(source)
        _SOURCES[source.name()] = source
        name = f"{_quoted(database)}.{_quoted(table)}"
        if not spark.catalog.tableExists(name):
            spark.catalog.createTable(name, source=source.name())
        created[f"{database}.{table}"] = stream
    return created


def source_of(name: str) -> type[AmqpDataSource] | None:
    """Return the data source of a table that `create_tables` made in this process, None for other names."""
    return _SOURCES.get(name)


def _source(source_name: str, fixed: dict[str, str]) -> type[AmqpDataSource]:
    """Return a data source with these options, which Spark pickles by value, because it is no attribute of a module.

    A table needs one, because Spark passes the options of a catalog table neither to reads nor to INSERT INTO.
    """
    defaults = {name.lower(): value for name, value in fixed.items()}

    class TableSource(FilteringDataSource):
        @classmethod
        def name(cls) -> str:
            return source_name

        def __init__(self, options: dict[str, str]) -> None:
            # Spark also passes the properties of the table.
            given = {name.lower(): value for name, value in options.items()}
            super().__init__(defaults | {name: value for name, value in given.items() if name in BY_NAME})

    return TableSource


def _streams(settings: Settings) -> dict[str, dict[str, str]]:
    """Return the options that select a stream or a super stream for reads and for writes, by name."""
    with closing(ControlClient(endpoint_of(settings), reconnect_timeout=INITIAL_CONNECT_TIMEOUT)) as control:
        if not control.is_leveret():
            raise OptionError(f"option url: {control.endpoint} is another broker; expected Leveret")
        names = streams_of(Target(STREAM, _PATTERN, settings.stream_pattern or ".*"), control)
        found: dict[str, dict[str, str]] = {}
        partitions: set[str] = set()
        for super_stream in sorted({match[1] for name in names if (match := _PARTITION.fullmatch(name))}):
            try:
                partitions |= set(streams_of(Target(STREAM, "superStream", super_stream), control))
            except OptionError:
                continue  # streams whose names happen to end with a number
            found[super_stream] = {"superStream": super_stream, "exchange": super_stream}
    for name in names:
        if name not in partitions:
            found[name] = {"stream": name, "exchange": "", "routingKey": name}
    return found


def _tables(streams: dict[str, dict[str, str]]) -> dict[str, tuple[str, dict[str, str]]]:
    """Return streams and their options by table name, which Spark compares without regard to case."""
    tables: dict[str, tuple[str, dict[str, str]]] = {}
    for stream, address in sorted(streams.items()):
        table = re.sub(r"\W", "_", stream, flags=re.ASCII).lower()
        if table in tables:
            raise OptionError(
                f"streams {tables[table][0]!r} and {stream!r} have the same table name {table!r}; expected a streamPattern "
                "that matches one of them (use CREATE TABLE for the other)"
            )
        tables[table] = (stream, address)
    return tables


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
