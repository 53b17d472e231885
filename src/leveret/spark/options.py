"""The options of the data source, all in one table, and what they say once they are read.

Spark hands options over without regard to case. docs/spark.md shows the same table; a test compares the two.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from leveret.spark import values
from leveret.spark.errors import OptionError
from leveret.spark.values import BadValue, Reader

STREAM: Final = "stream"
LEASE: Final = "lease"
SPOOL: Final = "spool"
BROWSE: Final = "browse"
SINK: Final = "sink"

_READS: Final = (STREAM, LEASE, SPOOL, BROWSE)
_ALL: Final = (*_READS, SINK)
_TRIGGERED: Final = (STREAM, LEASE, SPOOL)

# How many rows a batch that goes to Spark has at most. Larger ones save little and take memory.
BATCH_ROWS: Final = 16_384


class Option(NamedTuple):
    """One option.

    name     as users write it
    type     for people: text, integer, octets, time, ...
    default  as text; None where there is none
    modes    that take it
    meaning  a sentence or two
    read     from the text to its value; raises `BadValue`
    """

    name: str
    type: str
    default: str | None
    modes: tuple[str, ...]
    meaning: str
    read: Reader

    @property
    def field(self) -> str:
        """Of `Settings`: tls.caFile is tls_ca_file."""
        return re.sub(r"[A-Z]", lambda found: "_" + found[0].lower(), self.name.replace(".", "_"))


OPTIONS: Final = (
    # Connection
    Option("url", "URL", "amqp://localhost", _ALL,
           "The broker: `amqp://user:password@host:port/vhost`, `amqps://` with TLS.", values.text),
    Option("protocol", "0-9-1, 1.0", "0-9-1", _ALL, "What is spoken with the broker. Both give the same rows.",
           values.choice("0-9-1", "1.0")),
    Option("vhost", "text", None, _ALL, "The virtual host, in place of the URL's.", values.text),
    Option("passwordFile", "path", None, _ALL,
           "A file with the password, in place of the URL's; each process that connects reads it. Without it and without "
           "a password in the URL the environment variable `LEVERET_PASSWORD` counts.", values.text),
    Option("tls.caFile", "path", None, _ALL, "Certificates to trust in PEM, in place of the system's.", values.text),
    Option("tls.certFile", "path", None, _ALL, "Our own certificate in PEM.", values.text),
    Option("tls.keyFile", "path", None, _ALL, "Its key in PEM, where it is not in the same file.", values.text),
    Option("tls.keyPasswordFile", "path", None, _ALL, "A file with the password of the key.", values.text),
    Option("tls.serverName", "text", None, _ALL, "The name that the broker's certificate carries, where it is not the "
           "host's.", values.text),
    Option("tls.verify", "true, false", "true", _ALL, "Whether the broker's certificate is checked.", values.boolean),
    # What is read
    Option("queue", "text", None, _READS, "A queue to read.", values.text),
    Option("stream", "text", None, (STREAM,), "A stream to read.", values.text),
    Option("superStream", "text", None, (STREAM,), "A super stream to read: all of its partitions.", values.text),
    Option("streamPattern", "regular expression", None, (STREAM,),
           "Streams to read: those whose whole names match, also such as are declared later.", values.pattern),
    Option("mode", "stream, lease, spool, browse", None, _READS,
           "How it is read. Left out, the type of the queue says it: a stream by `stream`, a classic queue by `lease` in "
           "`readStream` and by `browse` in `read`, a queue of another broker by `spool`.", values.choice(*_READS)),
    Option("consumerName", "text", None, (STREAM,),
           "The name under which the broker keeps where a query began and how far it has come. Required where "
           "`startingOffsets` is `latest` in a `readStream`.", values.text),
    Option("lease", "text", None, (LEASE,), "The name of the lease on a queue; one query at a time holds it.",
           values.text),
    Option("leaseTimeout", "time", None, (LEASE,),
           "How long the broker keeps messages that were planned for a query and never read, when the query does not come "
           "back; then they return to the queue. Left out, until the lease is released by hand.", values.duration),
    # Where it begins and ends
    Option("startingOffsets", "earliest, latest, JSON", None, (STREAM,),
           "Where a query without a checkpoint begins, or a `read`: offsets by stream in JSON, in which -2 is earliest and "
           "-1 latest. Left out it is `latest` in `readStream` and `earliest` in `read`.",
           values.offsets("earliest", "latest")),
    Option("startingTimestamp", "time", None, (STREAM,),
           "Begin with what was appended then or later, as closely as the broker knows times: milliseconds of Unix time or "
           "ISO 8601.", values.timestamp),
    Option("endingOffsets", "latest, JSON", "latest", (STREAM,),
           "Where a `read` ends: offsets by stream in JSON, exclusive.", values.offsets("latest")),
    # How much at a time
    Option("maxMessagesPerTrigger", "integer", None, _TRIGGERED, "Messages that a micro-batch has at most.",
           values.integer(1)),
    Option("maxBytesPerTrigger", "octets", None, _TRIGGERED,
           "Octets of bodies that a micro-batch has at most, as far as they are known before it is read; one message at "
           "least.", values.size),
    Option("minMessagesPerTrigger", "integer", None, _TRIGGERED,
           "A micro-batch waits until so many messages are there, or `maxTriggerDelay` has passed.", values.integer(1)),
    Option("maxTriggerDelay", "time", "15m", _TRIGGERED, "How long `minMessagesPerTrigger` may hold messages back.",
           values.duration),
    Option("minPartitions", "integer", None, (STREAM, LEASE),
           "Tasks that a batch is divided into at least, where it has as many messages. Left out, small batches are one "
           "task, and large ones as many as the machine of the driver has processors.", values.integer(1, 100_000)),
    Option("failOnDataLoss", "true, false", "true", (STREAM,),
           "Whether a query ends with an error when retention has taken messages that it has not read. Otherwise they are "
           "counted and left out; `read` then needs `lossDirectory`.", values.boolean),
    Option("lossDirectory", "path", None, (STREAM,),
           "A directory that the driver and all workers share: with `failOnDataLoss` `false`, a JSON file in it says of "
           "each range of offsets that it was left out.", values.text),
    # What a row holds
    Option("columns", "names", None, _READS,
           "Columns to read, with commas between them; the others are not made. Left out, all.", values.names),
    Option("routingKeyFilter", "pattern", None, (STREAM,),
           "Only messages whose routing key matches a pattern of a topic exchange (`orders.*.eu`, `audit.#`).",
           values.text),
    Option("headersFormat", "both, map, json", "both", _READS,
           "Which of the columns `headers` and `headers_json` are filled; the other is null.",
           values.choice("both", "map", "json")),
    # How it is read
    Option("history", "auto, segments, amqp", "auto", (STREAM,),
           "Where sealed messages are read: from the broker's segment files where they can be opened (`auto`), from these "
           "only (`segments`), or never (`amqp`).", values.choice("auto", "segments", "amqp")),
    Option("storageOptionsFile", "path", None, (STREAM,),
           "A file in TOML, or JSON where it is called so, with what the file system of the segments' URL is told besides, "
           "such as credentials; each process that reads them reads it. Left out, that comes from its environment.",
           values.text),
    Option("spoolDir", "path", None, (SPOOL,),
           "The directory in which messages of another broker are kept until they are committed; all workers must see it.",
           values.text),
    Option("prefetch", "integer", None, _READS, "How many deliveries may be on their way to a task.",
           values.integer(1, 65535)),
    Option("arrowBatchRows", "integer", str(BATCH_ROWS), _READS, "Rows of an Arrow batch that goes to Spark, at most.",
           values.integer(1, 1_000_000)),
    # Sinks
    Option("exchange", "text", None, (SINK,), "The exchange that all rows go to, whatever the column `exchange` says; the "
           "default exchange is the empty text.", values.anything),
    Option("routingKey", "text", None, (SINK,), "The routing key of all rows, whatever the column `routing_key` says.",
           values.anything),
    Option("guarantee", "exactly-once, at-least-once", None, (SINK,),
           "`exactly-once` publishes by stages, which needs Leveret; `at-least-once` publishes with confirms to any "
           "broker. Left out, exactly-once where it is possible.", values.choice("exactly-once", "at-least-once")),
    Option("sinkName", "text", None, (SINK,), "Tells the sinks of one query apart.", values.text),
    Option("txnAppId", "text", None, (SINK,),
           "For batch writes and `foreachBatch`: who writes. With `txnVersion` it makes a write that is repeated count "
           "once.", values.text),
    Option("txnVersion", "integer", None, (SINK,), "The number of the write; each is greater than the one before.",
           values.integer(0)),
    Option("maxInFlight", "integer", "1000", (SINK,), "Publishes of a task that may wait for their confirms.",
           values.integer(1, 1_000_000)),
    Option("maxRate", "messages a second", None, (SINK,), "The most that a task of a write publishes; as many tasks run as "
           "the DataFrame has partitions.", values.rate),
    Option("maxMessageBytes", "octets", "128m", (SINK,),
           "Octets of a body that the broker takes; rows with larger ones go where `onError` says.", values.size),
    Option("onUnroutable", "fail, drop, dead-letter", "fail", (SINK,),
           "What becomes of a row that no queue takes. Dropped ones are counted.",
           values.choice("fail", "drop", "dead-letter")),
    Option("onError", "fail, drop, dead-letter", "fail", (SINK,),
           "What becomes of a row that cannot be published. Dropped ones are counted.",
           values.choice("fail", "drop", "dead-letter")),
    Option("deadLetterExchange", "text", None, (SINK,), "Where `dead-letter` sends to; the default exchange is the empty "
           "text, with which `deadLetterRoutingKey` is a queue.", values.anything),
    Option("deadLetterRoutingKey", "text", None, (SINK,), "The routing key of dead letters; left out, the row's own.",
           values.text),
)

BY_NAME: Final = {option.name.lower(): option for option in OPTIONS}
SOURCES: Final = ("queue", "stream", "superStream", "streamPattern")


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of all options, by the names of `Option.field`; None where one was left out and has no default.

    `given` are the options that were not left out.
    """

    url: str = field(repr=False)
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
    stream_pattern: str | None
    mode: str | None
    consumer_name: str | None
    lease: str | None
    lease_timeout: float | None
    starting_offsets: str | dict[str, int] | None
    starting_timestamp: int | None
    ending_offsets: str | dict[str, int]
    max_messages_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_messages_per_trigger: int | None
    max_trigger_delay: float
    min_partitions: int | None
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
        """The option that says what is read, and its value. `OptionError` unless there is exactly one."""
        found = [(name, getattr(self, BY_NAME[name.lower()].field)) for name in SOURCES if name in self.given]
        if len(found) != 1:
            got = " and ".join(name for name, _ in found) or "none of them"
            raise OptionError(f"expected exactly one of the options {', '.join(SOURCES)}; got {got}")
        return found[0]

    def check_mode(self, mode: str) -> None:
        """`OptionError` for options of other ways to read; those of sinks may be there, for a table has both."""
        for name in sorted(self.given):
            option = BY_NAME[name.lower()]
            if mode not in option.modes and SINK not in option.modes:
                raise OptionError(f"option {name}: not taken in mode {mode}; it is for mode {' or '.join(option.modes)}"
                                  " (option mode, and the type of the queue)")


def read_options(options: Mapping[str, str]) -> Settings:
    """What the options say. `OptionError` for one that is not known or whose value is of no use."""
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
    """What to say of an option that there is not, with those whose names are near."""
    near = [BY_NAME[found].name for found in difflib.get_close_matches(name.lower(), known, 3, 0.5)]
    hint = f"; did you mean {' or '.join(near)}?" if near else "; docs/spark.md has the table of all options"
    return f"there is no option {name[:60]!r}{hint}"


def _read(option: Option, value: str) -> Any:
    try:
        return option.read(str(value))
    except BadValue as error:
        shown = "the value" if option.name == "url" else repr(value)[:100]
        raise OptionError(f"option {option.name}: {shown} cannot be used; expected {error.args[0]}") from None
