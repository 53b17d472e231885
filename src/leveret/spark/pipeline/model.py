"""What stands in a pipeline.toml, as types. Seconds and rows are numbers; times are told in the comments.

A flow goes from one capture through decoding and a transformation to tables and exchanges. Each kind of flow is a struct
of its own: what it does not need cannot be set.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

DEFAULT_URL = "amqp://guest:guest@localhost/"


class Section(Struct, forbid_unknown_fields=True, frozen=True):
    """A table of the file: a key that it does not know is refused."""


class Broker(Section, frozen=True):
    url: str = DEFAULT_URL
    # The password stands here rather than in the URL: in the first line of the file.
    password_file: str | None = None
    # More options of the data source for every flow, such as "tls.ca".
    options: dict[str, str] = {}


class Spark(Section, frozen=True):
    master: str = "local[*]"
    conf: dict[str, str | int | float | bool] = {}


class Supervision(Section, frozen=True):
    # How often a failed flow is started again before the application ends; the count begins anew after `healthy` seconds.
    restarts: int = 10
    backoff: float = 1.0
    max_backoff: float = 60.0
    healthy: float = 300.0
    # How long the batch that runs may take when the application is told to stop.
    stop_timeout: float = 120.0
    # Seconds between lines of progress.
    progress: float = 10.0


class Capture(Section, frozen=True):
    """Where messages come from: exactly one of the first five."""

    exchange: str | None = None
    queue: str | None = None
    stream: str | None = None
    super_stream: str | None = None
    stream_pattern: str | None = None
    # Of an exchange: what is bound, and the stream that is declared for it.
    keys: list[str] = field(default_factory=lambda: ["#"])
    into: str | None = None
    arguments: dict[str, str | int | bool] = {}
    # Where a flow begins that has no checkpoint: "earliest", "latest", or offsets as JSON.
    starting_offsets: str = "earliest"
    # Under which name the broker keeps where it began, or who holds the lease; the pipeline's and the flow's otherwise.
    consumer: str | None = None
    # More options of the data source, by its names, such as maxMessagesPerTrigger.
    options: dict[str, str | int | float | bool] = {}


class Decode(Section, frozen=True):
    format: Literal["raw", "json", "avro", "protobuf"] = "raw"
    # JSON: column definitions ("id BIGINT NOT NULL, name STRING"), or a file of them. Avro: a file with the schema.
    # Protobuf: a file with a descriptor set.
    schema: str | None = None
    schema_file: str | None = None
    # Protobuf: the full name of the message type.
    message: str | None = None
    # Avro: what is around the datum.
    framing: Literal["datum", "container", "single-object", "confluent"] = "datum"
    column: str = "data"
    # What becomes of a body that cannot be decoded.
    on_error: Literal["quarantine", "fail", "drop"] = "quarantine"
    # Directory of the Parquet table of such messages.
    quarantine: str | None = None


class StaticTable(Section, frozen=True):
    path: str
    format: str = "parquet"
    options: dict[str, str] = {}


class Transform(Section, frozen=True):
    """Of the user: a function or SQL over the table `messages`."""

    function: str | None = None
    # Where the module of the function is looked for, besides the directory of pipeline.toml.
    path: list[str] = []
    sql: str | None = None
    # Whether it sees each batch by itself, or the stream as a whole: watermarks, windows, deduplication.
    scope: Literal["batch", "stream"] = "batch"
    # Of a stream with windows: what is told of a window that is not closed yet.
    output: Literal["append", "update"] = "append"
    # Tables that SQL finds under these names.
    tables: dict[str, StaticTable] = {}


class TableOutput(Section, frozen=True):
    path: str
    format: Literal["parquet", "iceberg"] = "parquet"
    # day(COLUMN), hour(COLUMN), month(COLUMN) or a column.
    partition: list[str] | UnsetType = UNSET
    # Iceberg: name of the table, and the catalog; SQLite in the table's directory otherwise.
    table: str | None = None
    catalog: dict[str, str] = {}
    # Only rows for which this SQL expression holds.
    where: str | None = None
    columns: list[str] = []
    # "auto": the tasks that read write the files, too, where they can; "spark": Spark does in any case.
    writer: Literal["auto", "spark"] = "auto"


class ExchangeOutput(Section, frozen=True):
    # "" is the default exchange. Left out, the rows' columns exchange and routing_key count.
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
    # Seconds between batches; 0: one after the other.
    trigger: float = 5.0


class ArchiveFlow(Section, frozen=True, tag_field="kind", tag="archive"):
    capture: Capture
    table: TableOutput
    decode: Decode = field(default_factory=Decode)
    trigger: float = 10.0


class TrafficFlow(Section, frozen=True, tag_field="kind", tag="traffic"):
    """From the broker's own events; `capture` need not be given."""

    capture: Capture = field(default_factory=lambda: Capture(exchange="amq.leveret.events"))
    table: TableOutput | None = None
    exchange: ExchangeOutput | None = None
    # Seconds that a window is long, and that events may come late.
    window: float = 60.0
    late: float = 30.0
    # HTML page that is made anew after each batch.
    report: str | None = None
    trigger: float = 5.0


class EnrichFlow(Section, frozen=True, tag_field="kind", tag="enrich"):
    capture: Capture
    decode: Decode
    table: StaticTable
    # Field of the decoded body = column of the table.
    on: dict[str, str]
    to: ExchangeOutput
    # Columns of the table that are added; all but the joined ones otherwise.
    add: list[str] = []
    # Whether messages without a row in the table go on, without the columns.
    unmatched: Literal["keep", "quarantine", "drop"] = "keep"
    trigger: float = 1.0


class Rule(Section, frozen=True):
    """What is masked, and how: exactly one of the first four."""

    # Path into a JSON body: "customer.email", "items[].name"; "*" is any key.
    field: str | None = None
    header: str | None = None
    # A property, such as user_id.
    property: str | None = None
    # Regular expression over the body as text.
    pattern: str | None = None
    action: Literal["hash", "mask", "drop", "replace"] = "mask"
    replacement: str = "***"


class ScrubFlow(Section, frozen=True, tag_field="kind", tag="scrub"):
    capture: Capture
    rules: list[Rule]
    # File whose first line is the key of hashes: equal values stay equal, and are not found by trying.
    key_file: str | None = None
    # What becomes of a message whose body is no JSON where a rule names a field, or is compressed where one looks into it.
    on_error: Literal["quarantine", "fail", "drop"] = "quarantine"
    quarantine: str | None = None
    tables: list[TableOutput] = []
    exchanges: list[ExchangeOutput] = []
    trigger: float = 5.0


AnyFlow = PlainFlow | ArchiveFlow | TrafficFlow | EnrichFlow | ScrubFlow
KINDS: dict[str, Any] = {"flow": PlainFlow, "archive": ArchiveFlow, "traffic": TrafficFlow, "enrich": EnrichFlow,
                         "scrub": ScrubFlow}


class Pipeline(Section, frozen=True):
    name: str
    # Directory of checkpoints and of the status: one sub-directory a flow.
    directory: str
    broker: Broker = field(default_factory=Broker)
    spark: Spark = field(default_factory=Spark)
    supervision: Supervision = field(default_factory=Supervision)
    flows: dict[str, AnyFlow] = {}


class _Outline(Section, frozen=True):
    """The file's first level: flows are read one by one, so that a refusal names the flow."""

    name: str
    directory: str
    broker: Broker = field(default_factory=Broker)
    spark: Spark = field(default_factory=Spark)
    supervision: Supervision = field(default_factory=Supervision)
    flows: dict[str, dict[str, Any]] = {}
