"""The options of the data source, in one table, and their parsed values.

Spark treats option names as case-insensitive. A test compares docs/spark-options.md with the table.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from leveret.spark import values
from leveret.spark.errors import OptionError
from leveret.spark.kafka_options import instead_of
from leveret.spark.values import InvalidValue, Reader

STREAM: Final = "stream"
LEASE: Final = "lease"
SPOOL: Final = "spool"
BROWSE: Final = "browse"
SINK: Final = "sink"

_READS: Final = (STREAM, LEASE, SPOOL, BROWSE)
_ALL: Final = (*_READS, SINK)
_TRIGGERED: Final = (STREAM, LEASE, SPOOL)

# Maximum rows of a batch for Spark. Larger batches save little time and use more memory.
BATCH_ROWS: Final = 16_384


class Option(NamedTuple):
    """One option.

    Attributes:
        name: As users write it.
        type: Shown in the docs: text, integer, bytes, time, ...
        default: As text; None for none.
        modes: Modes that accept it.
        meaning: A sentence or two for the docs.
        read: Parses the text; raises InvalidValue.
    """

    name: str
    type: str
    default: str | None
    modes: tuple[str, ...]
    meaning: str
    read: Reader

    @property
    def field(self) -> str:
        """The name of the attribute in `Settings`: tls.caFile is tls_ca_file."""
        return re.sub(r"[A-Z]", lambda found: "_" + found[0].lower(), self.name.replace(".", "_"))


OPTIONS: Final = (
    # Connection
    Option(
        "url",
        "URL",
        "amqp://localhost",
        _ALL,
        "The broker: `amqp://user:password@host:port/vhost`, or `amqps://` for TLS.",
        values.text,
    ),
    Option(
        "hosts",
        "names",
        None,
        _ALL,
        "Other nodes of the broker, as `host` or `host:port`, separated by commas. They are tried in turn if the host "
        "of the URL does not answer. The rest of the URL applies to all.",
        values.names,
    ),
    Option(
        "protocol",
        "0-9-1, 1.0",
        "0-9-1",
        _ALL,
        "Protocol to use with the broker. Both return the same rows.",
        values.choice("0-9-1", "1.0"),
    ),
    Option("vhost", "text", None, _ALL, "The vhost. Overrides the URL.", values.text),
    Option(
        "passwordFile",
        "path",
        None,
        _ALL,
        "File with the password, which every process that connects reads. Overrides the URL. Without it and without a "
        "password in the URL, the environment variable `LEVERET_PASSWORD` is used.",
        values.text,
    ),
    Option("tls.caFile", "path", None, _ALL, "CA certificates to trust, in PEM, instead of the system's.", values.text),
    Option("tls.certFile", "path", None, _ALL, "Client certificate, in PEM.", values.text),
    Option(
        "tls.keyFile",
        "path",
        None,
        _ALL,
        "Key of the client certificate, in PEM, if it is not in the same file.",
        values.text,
    ),
    Option("tls.keyPasswordFile", "path", None, _ALL, "File with the password of the key.", values.text),
    Option(
        "tls.serverName",
        "text",
        None,
        _ALL,
        "Name in the broker's certificate, if it differs from the host name.",
        values.text,
    ),
    Option("tls.verify", "true, false", "true", _ALL, "Whether to verify the broker's certificate.", values.boolean),
    # Source
    Option("queue", "text", None, _READS, "Queue to read.", values.text),
    Option(
        "stream",
        "text",
        None,
        (STREAM, SPOOL),
        "Stream to read; one of RabbitMQ is read in mode `spool`.",
        values.text,
    ),
    Option(
        "superStream",
        "text",
        None,
        (STREAM,),
        "Super stream to read, with all of its partitions, or those of `partitions`.",
        values.text,
    ),
    Option(
        "streams",
        "names",
        None,
        (STREAM,),
        "Streams and super streams to read, separated by commas.",
        values.names,
    ),
    Option(
        "streamPattern",
        "regular expression",
        None,
        (STREAM,),
        "Streams to read: all whose whole name matches, including streams declared later.",
        values.pattern,
    ),
    Option(
        "partitions",
        "numbers, JSON",
        None,
        (STREAM,),
        "Partitions of the super stream to read, separated by commas; as JSON, lists of numbers by super stream. The "
        "default is all.",
        values.partitions,
    ),
    Option(
        "mode",
        "stream, lease, spool, browse",
        None,
        _READS,
        "How to read. By default the type of the queue decides: `stream` for a stream, `lease` (in `readStream`) or "
        "`browse` (in `read`) for a classic queue, `spool` for a queue or a stream of another broker.",
        values.choice(*_READS),
    ),
    Option(
        "consumerName",
        "text",
        None,
        (STREAM,),
        "Name under which the broker stores the start position and the progress of a query. Required in a "
        "`readStream` if `startingOffsets` is `latest`.",
        values.name(255),
    ),
    Option(
        "lease", "text", None, (LEASE,), "Name of the lease on a queue; one query at a time holds it.", values.name(255)
    ),
    Option(
        "leaseTimeout",
        "time",
        None,
        (LEASE,),
        "Time after which messages that were leased for a query and never read return to the queue, unless the query "
        "restarts. By default they stay leased until an operator releases the lease.",
        values.positive_duration,
    ),
    # Range
    Option(
        "startingOffsets",
        "earliest, latest, JSON",
        None,
        (STREAM,),
        "Where a `read`, a query without a checkpoint, or a stream that is added to a query starts; as JSON, offsets by "
        "stream, with -2 for earliest and -1 for latest. The default is `latest` in `readStream` and `earliest` in `read`.",
        values.offsets("earliest", "latest"),
    ),
    Option(
        "startingTimestamp",
        "time, JSON",
        None,
        (STREAM,),
        "Start with the first message appended at this time or later: milliseconds since 1970 or ISO 8601, in UTC unless "
        "it has an offset; as JSON, times by stream.",
        values.timestamps,
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "latest, error",
        "latest",
        (STREAM,),
        "What to do if no message was appended at `startingTimestamp` or later: start at the end of the stream "
        "(`latest`), or fail.",
        values.choice("latest", "error"),
    ),
    Option(
        "endingOffsets",
        "latest, JSON",
        "latest",
        (STREAM,),
        "Where a `read` ends; as JSON, offsets by stream, exclusive.",
        values.offsets("latest"),
    ),
    Option(
        "endingTimestamp",
        "time, JSON",
        None,
        (STREAM,),
        "End a `read` before the first message appended at this time or later, or at the end of the stream. Written "
        "like `startingTimestamp`.",
        values.timestamps,
    ),
    # Limits of a batch
    Option(
        "maxMessagesPerTrigger",
        "integer",
        None,
        _TRIGGERED,
        "Maximum number of messages in a micro-batch. Each stream with messages gets one, and a share of the rest in "
        "proportion to its backlog; if there are more streams than messages, they take turns.",
        values.integer(1),
    ),
    Option(
        "maxBytesPerTrigger",
        "bytes",
        None,
        _TRIGGERED,
        "Maximum bytes of bodies in a micro-batch, counting those known before it is read, shared in the same way; at "
        "least one message.",
        values.size,
    ),
    Option(
        "minMessagesPerTrigger",
        "integer",
        None,
        _TRIGGERED,
        "A micro-batch waits for this many messages, or for `maxTriggerDelay`.",
        values.integer(1),
    ),
    Option(
        "maxTriggerDelay",
        "time",
        "15m",
        _TRIGGERED,
        "How long `minMessagesPerTrigger` may delay a micro-batch.",
        values.duration,
    ),
    Option(
        "minPartitions",
        "integer",
        None,
        (STREAM, LEASE),
        "Minimum number of tasks per batch, if it has that many messages. By default a batch has a task for every 50,000 "
        "messages, up to the session's default parallelism, and one with more messages has at least one for each "
        "partition of a super stream.",
        values.integer(1, 100_000),
    ),
    Option(
        "maxRecordsPerPartition",
        "integer",
        None,
        (STREAM, LEASE),
        "Maximum number of messages per task; there are more tasks than `minPartitions` if that is necessary.",
        values.integer(1),
    ),
    Option(
        "failOnDataLoss",
        "true, false",
        "true",
        (STREAM,),
        "Whether a query fails if retention removed messages before they were read. Otherwise it counts and skips "
        "them; `read` then needs `lossDirectory`.",
        values.boolean,
    ),
    Option(
        "lossDirectory",
        "path",
        None,
        (STREAM,),
        "Directory that the driver and all workers share. With `failOnDataLoss` `false`, tasks write a JSON file "
        "there for each skipped range of offsets.",
        values.text,
    ),
    # Contents of a row
    Option(
        "columns",
        "names",
        None,
        _READS,
        "Columns to read, separated by commas, or a preset: `minimal` or `kafka`. Others are not built. "
        "The default is all.",
        values.names,
    ),
    Option(
        "routingKeyFilter",
        "pattern",
        None,
        (STREAM,),
        "Read only messages whose routing key matches a topic exchange pattern (`orders.*.eu`, `audit.#`).",
        values.text,
    ),
    Option(
        "headersFormat",
        "both, map, json",
        "both",
        _READS,
        "Which of the columns `headers` and `headers_json` to fill; the other is null.",
        values.choice("both", "map", "json"),
    ),
    # Transfer
    Option(
        "history",
        "auto, segments, amqp",
        "auto",
        (STREAM,),
        "Where to read sealed messages: from the broker's segment files if they can be opened (`auto`), only from "
        "them (`segments`), or never (`amqp`).",
        values.choice("auto", "segments", "amqp"),
    ),
    Option(
        "storageOptionsFile",
        "path",
        None,
        (STREAM,),
        "TOML file (JSON if its name ends with `.json`) with options for the file system of the segments' URL, such "
        "as credentials. Every process that reads segments reads it. By default the options come from the "
        "environment.",
        values.text,
    ),
    Option(
        "spoolDir",
        "path",
        None,
        (SPOOL,),
        "Directory that stores messages of another broker until they are committed; all workers must see it.",
        values.text,
    ),
    Option(
        "prefetch", "integer", None, _READS, "Maximum number of deliveries in transit to a task.", values.integer(1, 65535)
    ),
    Option(
        "arrowBatchRows",
        "integer",
        str(BATCH_ROWS),
        _READS,
        "Maximum number of rows in an Arrow batch for Spark.",
        values.integer(1, 1_000_000),
    ),
    # Sinks
    Option(
        "exchange",
        "text",
        None,
        (SINK,),
        "Exchange for all rows; overrides the column `exchange`. An empty string is the default exchange.",
        values.anything,
    ),
    Option(
        "routingKey",
        "text",
        None,
        (SINK,),
        "Routing key for all rows; overrides the column `routing_key`.",
        values.anything,
    ),
    Option(
        "guarantee",
        "exactly-once, at-least-once",
        None,
        (SINK,),
        "`exactly-once` uses sink transactions and needs Leveret; `at-least-once` publishes with confirms to any "
        "broker. The default is exactly-once if it is possible.",
        values.choice("exactly-once", "at-least-once"),
    ),
    Option("sinkName", "text", None, (SINK,), "Distinguishes the sinks of one query.", values.name(200)),
    Option(
        "txnAppId",
        "text",
        None,
        (SINK,),
        "For batch writes and `foreachBatch`: name of the writer. Together with `txnVersion` it makes a repeated "
        "write take effect once.",
        values.name(255),
    ),
    Option(
        "txnVersion",
        "integer",
        None,
        (SINK,),
        "Number of the write, higher than that of the previous write.",
        values.integer(0, 1 << 62),
    ),
    Option(
        "maxInFlight",
        "integer",
        "1000",
        (SINK,),
        "Maximum number of unconfirmed publishes per task. A record batch is one, and at most 8 of them are unconfirmed.",
        values.integer(1, 1_000_000),
    ),
    Option(
        "maxRate",
        "messages a second",
        None,
        (SINK,),
        "Maximum publish rate per task; a write has as many tasks as the DataFrame has partitions.",
        values.rate,
    ),
    Option(
        "maxMessageBytes",
        "bytes",
        "128m",
        (SINK,),
        "Maximum body size that the broker accepts, in bytes; `onError` applies to larger rows.",
        values.size,
    ),
    Option(
        "onUnroutable",
        "fail, drop, dead-letter",
        "fail",
        (SINK,),
        "What to do with an unroutable row. Dropped rows are counted.",
        values.choice("fail", "drop", "dead-letter"),
    ),
    Option(
        "onError",
        "fail, drop, dead-letter",
        "fail",
        (SINK,),
        "What to do with a row that cannot be published. Dropped rows are counted.",
        values.choice("fail", "drop", "dead-letter"),
    ),
    Option(
        "deadLetterExchange",
        "text",
        None,
        (SINK,),
        "Exchange for `dead-letter`. An empty string is the default exchange, for which `deadLetterRoutingKey` names "
        "a queue.",
        values.anything,
    ),
    Option(
        "deadLetterRoutingKey",
        "text",
        None,
        (SINK,),
        "Routing key of dead letters. The default is the row's own.",
        values.text,
    ),
)

BY_NAME: Final = {option.name.lower(): option for option in OPTIONS}
# Prefix of the options of a catalog table among its properties.
TABLE_PREFIX: Final = "option."
SOURCES: Final = ("queue", "stream", "superStream", "streams", "streamPattern")


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of all options, as attributes named by `Option.field`; None for an option without value and default.

    Attributes:
        given: Names of the options that were set.
    """

    url: str = field(repr=False)
    hosts: tuple[str, ...] | None
    protocol: str
    vhost: str | None
    password_file: str | None
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_key_password_file: str | None
    tls_server_name: str | None
    tls_verify: bool
    queue: str | None
    stream: str | None
    super_stream: str | None
    streams: tuple[str, ...] | None
    stream_pattern: str | None
    partitions: tuple[int, ...] | dict[str, tuple[int, ...]] | None
    mode: str | None
    consumer_name: str | None
    lease: str | None
    lease_timeout: float | None
    starting_offsets: str | dict[str, int] | None
    starting_timestamp: int | dict[str, int] | None
    starting_offsets_by_timestamp_strategy: str
    ending_offsets: str | dict[str, int]
    ending_timestamp: int | dict[str, int] | None
    max_messages_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_messages_per_trigger: int | None
    max_trigger_delay: float
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    loss_directory: str | None
    columns: tuple[str, ...] | None
    routing_key_filter: str | None
    headers_format: str
    history: str
    storage_options_file: str | None
    spool_dir: str | None
    prefetch: int | None
    arrow_batch_rows: int
    exchange: str | None
    routing_key: str | None
    guarantee: str | None
    sink_name: str | None
    txn_app_id: str | None
    txn_version: int | None
    max_in_flight: int
    max_rate: float | None
    max_message_bytes: int
    on_unroutable: str
    on_error: str
    dead_letter_exchange: str | None
    dead_letter_routing_key: str | None
    given: frozenset[str]

    def source(self) -> tuple[str, str]:
        """Return the option that selects the source, and its value. Raises OptionError unless exactly one is set."""
        found = [name for name in SOURCES if name in self.given]
        if len(found) != 1:
            got = " and ".join(found) or "none of them"
            raise OptionError(f"expected exactly one of the options {', '.join(SOURCES)}; got {got}")
        value = getattr(self, BY_NAME[found[0].lower()].field)
        return found[0], ",".join(value) if found[0] == "streams" else value

    def check_mode(self, mode: str) -> None:
        """Raise OptionError for options of other read modes. Options of sinks are ignored: a table may have both."""
        for name in sorted(self.given):
            option = BY_NAME[name.lower()]
            if mode not in option.modes and SINK not in option.modes:
                raise OptionError(
                    f"option {name}: not valid in mode {mode}, only in mode {' or '.join(option.modes)} (see "
                    "option mode and the type of the queue)"
                )


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Return options as text, as Spark passes them to a data source."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the user set, among those that Spark passes.

    When a catalog table is created, Spark passes its properties as well: `path`, `owner`, those of TBLPROPERTIES, and each
    of its options a second time with a prefix.
    """
    given = {name.lower(): value for name, value in options.items()}
    return {
        name.removeprefix(TABLE_PREFIX): value for name, value in given.items() if name.startswith(TABLE_PREFIX)
    } or given


def read_options(options: Mapping[str, str]) -> Settings:
    """Parse the options. Raises OptionError for an unknown name or an invalid value."""
    found: dict[str, Any] = {}
    given: list[str] = []
    for name, value in options.items():
        option = BY_NAME.get(name.lower())
        if option is None:
            raise OptionError(unknown_option(name))
        given.append(option.name)
        found[option.field] = _read(option, value)
    for option in OPTIONS:
        if option.field not in found:
            found[option.field] = None if option.default is None else option.read(option.default)
    return Settings(**found, given=frozenset(given))


def unknown_option(name: str, known: Iterable[str] = BY_NAME) -> str:
    """Return the error message for an unknown option, with similar names, or what replaces an option of Kafka's."""
    instead = instead_of(name)
    if instead is not None:
        return f"option {name[:60]!r} is Kafka's; {instead} (see docs/coming-from-kafka.md)"
    near = [BY_NAME[found].name for found in difflib.get_close_matches(name.lower(), known, 3, 0.5)]
    hint = f"; did you mean {' or '.join(near)}?" if near else "; docs/spark-options.md lists all options"
    return f"unknown option {name[:60]!r}{hint}"


def _read(option: Option, value: str) -> Any:
    try:
        return option.read(str(value))
    except InvalidValue as error:
        shown = "the value" if option.name == "url" else repr(value)[:100]
        raise OptionError(f"option {option.name}: {shown} is invalid; expected {error.args[0]}") from None
