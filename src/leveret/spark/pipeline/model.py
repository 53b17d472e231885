"""The structure of a pipeline.toml, as types. Durations are in seconds unless a comment says otherwise.

A flow goes from one capture through decoding and a transformation to tables and exchanges. Each kind of flow is a struct
of its own, so that keys it does not use are rejected.
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field

from leveret.segments.typed_json import Document

DEFAULT_URL = "amqp://guest:guest@localhost/"
# Elements of `TableOutput.partition`: transform and source column, or a plain column.
PARTITION = re.compile(r"(?:(day|hour|month)\((\w+)\)|(\w+))\Z")


class Section(Struct, forbid_unknown_fields=True, frozen=True):
    """A table of the file; unknown keys are errors."""


class Broker(Section, frozen=True):
    url: str = DEFAULT_URL
    # A file with the password in its first line, so that it need not be in the URL.
    password_file: str | None = None
    # Additional options of the data source for every flow, such as "tls.caFile".
    options: dict[str, str] = {}


class Spark(Section, frozen=True):
    master: str = "local[*]"
    conf: dict[str, str | int | float | bool] = {}


class Supervision(Section, frozen=True):
    # How often a failed flow is restarted before the application ends; the count is reset after `healthy` seconds.
    restarts: int = 10
    backoff: float = 1.0
    max_backoff: float = 60.0
    healthy: float = 300.0
    # How long a running batch may take when the application is stopped.
    stop_timeout: float = 120.0
    # Interval of progress lines.
    progress: float = 10.0


class Capture(Section, frozen=True):
    """The source of messages: exactly one of the first five keys."""

    exchange: str | None = None
    queue: str | None = None
    stream: str | None = None
    super_stream: str | None = None
    stream_pattern: str | None = None
    # For an exchange: the binding keys, and the stream that is declared for it.
    keys: list[str] = field(default_factory=lambda: ["#"])
    into: str | None = None
    arguments: dict[str, str | int | bool] = {}
    # Start of a flow without a checkpoint: "earliest", "latest", or offsets as JSON.
    starting_offsets: str = "earliest"
    # Consumer name or name of the lease at the broker; by default the names of pipeline and flow.
    consumer: str | None = None
    # Additional options of the data source, such as maxMessagesPerTrigger.
    options: dict[str, str | int | float | bool] = {}


class Decode(Section, frozen=True):
    format: Literal["raw", "json", "avro", "protobuf"] = "raw"
    # JSON: column definitions ("id BIGINT NOT NULL, name STRING"), or a file with them. Avro: a file with the schema.
    # Protobuf: a file with a descriptor set.
    schema: str | None = None
    schema_file: str | None = None
    # Protobuf: full name of the message type.
    message: str | None = None
    # Avro: framing of the datum.
    framing: Literal["datum", "container", "single-object", "confluent"] = "datum"
    column: str = "data"
    # What to do with a body that cannot be decoded.
    on_error: Literal["quarantine", "fail", "drop"] = "quarantine"
    # Directory of the Parquet table for such messages.
    quarantine: str | None = None


class StaticTable(Section, frozen=True):
    path: str
    format: str = "parquet"
    options: dict[str, str] = {}


class Transform(Section, frozen=True):
    """A transformation by the user: a function, or SQL over the table `messages`."""

    function: str | None = None
    # Search path for the function's module, in addition to the directory of pipeline.toml.
    path: list[str] = []
    sql: str | None = None
    # Whether it receives each batch separately, or the stream as a whole: watermarks, windows, deduplication.
    scope: Literal["batch", "stream"] = "batch"
    # For a stream with windows: whether to write a window once it is closed, or to update it before.
    output: Literal["append", "update"] = "append"
    # Tables that SQL can use under these names.
    tables: dict[str, StaticTable] = {}


class TableOutput(Section, frozen=True):
    path: str
    format: Literal["parquet", "iceberg"] = "parquet"
    # day(COLUMN), hour(COLUMN), month(COLUMN) or a column.
    partition: list[str] | UnsetType = UNSET
    # Iceberg: name of the table, and the catalog; by default SQLite in the table's directory.
    table: str | None = None
    catalog: dict[str, str] = {}
    # SQL expression that selects rows.
    where: str | None = None
    columns: list[str] = []
    # "auto": the tasks that read also write the files if they can; "spark": Spark always writes them.
    writer: Literal["auto", "spark"] = "auto"


class ExchangeOutput(Section, frozen=True):
    # "" is the default exchange. By default the rows' columns exchange and routing_key apply.
    exchange: str | None = None
    routing_key: str | None = None
    where: str | None = None
    options: dict[str, str | int | float | bool] = {}


class PlainFlow(Section, frozen=True, tag_field="kind", tag="flow"):
    capture: Capture
    decode: Decode = field(default_factory=Decode)
    transform: Transform | None = None
    tables: list[TableOutput] = []
    exchanges: list[ExchangeOutput] = []
    # Seconds between batches; 0 starts the next batch immediately.
    trigger: float = 5.0


class ArchiveFlow(Section, frozen=True, tag_field="kind", tag="archive"):
    capture: Capture
    table: TableOutput
    decode: Decode = field(default_factory=Decode)
    trigger: float = 10.0


class TrafficFlow(Section, frozen=True, tag_field="kind", tag="traffic"):
    """Statistics from the broker's own events; `capture` is optional."""

    capture: Capture = field(default_factory=lambda: Capture(exchange="amq.leveret.events"))
    table: TableOutput | None = None
    exchange: ExchangeOutput | None = None
    # Length of a window, and how late events may arrive.
    window: float = 60.0
    late: float = 30.0
    # HTML page that is written after each batch.
    report: str | None = None
    trigger: float = 5.0


class EnrichFlow(Section, frozen=True, tag_field="kind", tag="enrich"):
    capture: Capture
    decode: Decode
    table: StaticTable
    # Fields of the decoded body = columns of the table.
    on: dict[str, str]
    to: ExchangeOutput
    # Columns of the table to add; by default all that are not joined on.
    add: list[str] = []
    # What to do with messages without a row in the table; "keep" publishes them without the columns.
    unmatched: Literal["keep", "quarantine", "drop"] = "keep"
    trigger: float = 1.0


class Rule(Section, frozen=True):
    """What to mask, and how: exactly one of the first four keys."""

    # Path into a JSON body: "customer.email", "items[].name"; "*" matches any key.
    field: str | None = None
    header: str | None = None
    # A property, such as user_id.
    property: str | None = None
    # Regular expression for the body as text.
    pattern: str | None = None
    action: Literal["hash", "mask", "drop", "replace"] = "mask"
    replacement: str = "***"


class ScrubFlow(Section, frozen=True, tag_field="kind", tag="scrub"):
    capture: Capture
    rules: list[Rule]
    # File with the key of the hashes in its first line: equal values have equal hashes, which cannot be reversed by trial.
    key_file: str | None = None
    # What to do with a message whose body cannot be masked: it is compressed, or not JSON although a rule names a field.
    on_error: Literal["quarantine", "fail", "drop"] = "quarantine"
    quarantine: str | None = None
    tables: list[TableOutput] = []
    exchanges: list[ExchangeOutput] = []
    trigger: float = 5.0


AnyFlow = PlainFlow | ArchiveFlow | TrafficFlow | EnrichFlow | ScrubFlow
KINDS: dict[str, type[Struct]] = {
    "flow": PlainFlow,
    "archive": ArchiveFlow,
    "traffic": TrafficFlow,
    "enrich": EnrichFlow,
    "scrub": ScrubFlow,
}


class Pipeline(Section, frozen=True):
    name: str
    # Directory of checkpoints and of the status, with one subdirectory per flow.
    directory: str
    broker: Broker = field(default_factory=Broker)
    spark: Spark = field(default_factory=Spark)
    supervision: Supervision = field(default_factory=Supervision)
    flows: dict[str, AnyFlow] = {}


class _Outline(Section, frozen=True):
    """The top level of the file: flows are converted one by one, so that an error can name the flow."""

    name: str
    directory: str
    broker: Broker = field(default_factory=Broker)
    spark: Spark = field(default_factory=Spark)
    supervision: Supervision = field(default_factory=Supervision)
    flows: dict[str, dict[str, Document]] = {}
