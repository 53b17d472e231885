"""The structure of a pipeline.toml, as types. Durations are in seconds unless a comment says otherwise.

A flow goes from one capture through decoding and a transformation to tables and exchanges. Each kind of flow is a struct
of its own in `kinds`, so that keys it does not use are rejected.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from leveret.segments.typed_json import Document
from leveret.spark.pipeline.decoding.registry import FORMATS, RAW

if TYPE_CHECKING:
    from leveret.spark.pipeline.checks import Problem
    from leveret.spark.pipeline.definition import Flow

DEFAULT_URL = "amqp://guest:guest@localhost/"
# Elements of `TableOutput.partition`: transform and source column, or a plain column.
PARTITION = re.compile(r"(?:(day|hour|month)\((\w+)\)|(\w+))\Z")


class Section(Struct, forbid_unknown_fields=True, frozen=True):
    """A table of the file; unknown keys are errors.

    Attributes:
        FILES: Keys with files that the driver reads. A package contains them.
        LOCATIONS: Keys with other paths, such as directories of tables. They may be URLs.
    """

    FILES: ClassVar[tuple[str, ...]] = ()
    LOCATIONS: ClassVar[tuple[str, ...]] = ()

    def sections(self) -> Iterator[Section]:
        """Yield the sections inside this one, then this one."""
        for name in self.__struct_fields__:
            for value in _elements(getattr(self, name)):
                if isinstance(value, Section):
                    yield from value.sections()
        yield self

    def requirements(self) -> Iterator[str]:
        """Yield the requirements, in addition to Leveret's, of this section without those inside it."""
        yield from ()

    def with_absolute_paths(self, base: Path) -> Self:
        """Return the section with paths relative to `base` made absolute, also in the sections inside it."""
        paths = {*self.FILES, *self.LOCATIONS}
        return replace(
            self,
            **{
                name: _absolute(value, base) if name in paths else _with_absolute_paths(value, base)
                for name in self.__struct_fields__
                for value in [getattr(self, name)]
            },
        )


def _elements(value: object) -> Iterable[object]:
    """Return the elements of an array, the values of a table, or the value itself."""
    if isinstance(value, list):
        return value
    return value.values() if isinstance(value, dict) else (value,)


def _with_absolute_paths(value: object, base: Path) -> object:
    if isinstance(value, Section):
        return value.with_absolute_paths(base)
    if isinstance(value, list):
        return [_with_absolute_paths(element, base) for element in value]
    if isinstance(value, dict):
        return {key: _with_absolute_paths(element, base) for key, element in value.items()}
    return value


def _absolute(value: object, base: Path) -> object:
    """Return an absolute path, or a list of them; URLs and None are returned unchanged."""
    if isinstance(value, list):
        return [_absolute(path, base) for path in value]
    return absolute_path(value, base) if isinstance(value, str) else value


def absolute_path(path: str, base: Path) -> str:
    """Return a path relative to `base` as an absolute one; a URL is returned unchanged."""
    return path if "://" in path else str(base / Path(path).expanduser())


class Broker(Section, frozen=True):
    LOCATIONS = ("password_file",)

    url: str = DEFAULT_URL
    # A file with the password in its first line, so that it need not be in the URL.
    password_file: str | None = None
    # Additional options of the data source for every flow, such as "tls.caFile".
    options: dict[str, str] = {}


class Spark(Section, frozen=True):
    master: str = "local[*]"
    conf: dict[str, str | int | float | bool] = {}


class Supervision(Section, frozen=True):
    # Maximum number of restarts of a failed flow before the application ends; reset after `healthy` seconds.
    restarts: int = 10
    backoff: float = 1.0
    max_backoff: float = 60.0
    healthy: float = 300.0
    # Time limit in seconds for a running batch when the application is stopped.
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
    FILES = ("schema_file",)
    LOCATIONS = ("quarantine",)

    # RAW, or a name in `decoding.registry`.
    format: str = RAW
    # JSON: column definitions ("id BIGINT NOT NULL, name STRING"), or a file with them. Avro: a file with the schema.
    # Protobuf: a file with a descriptor set.
    schema: str | None = None
    schema_file: str | None = None
    # Protobuf: full name of the message type.
    message: str | None = None
    # Avro: framing of the datum.
    framing: Literal["datum", "container", "single-object", "confluent"] = "datum"
    column: str = "data"
    # Action for a body that cannot be decoded.
    on_error: Literal["quarantine", "fail", "drop"] = "quarantine"
    # Directory of the Parquet table for such messages.
    quarantine: str | None = None

    def requirements(self) -> Iterator[str]:
        if self.format != RAW and FORMATS[self.format].requirement:
            yield FORMATS[self.format].requirement


class StaticTable(Section, frozen=True):
    LOCATIONS = ("path",)

    path: str
    format: str = "parquet"
    options: dict[str, str] = {}


class Transform(Section, frozen=True):
    """A transformation by the user: a function, or SQL over the table `messages`."""

    LOCATIONS = ("path",)

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

    def with_absolute_paths(self, base: Path) -> Self:
        changed = super().with_absolute_paths(base)
        return replace(changed, path=[str(base), *changed.path])


class TableOutput(Section, frozen=True):
    LOCATIONS = ("path",)

    path: str
    format: Literal["parquet", "delta", "iceberg"] = "parquet"
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

    def requirements(self) -> Iterator[str]:
        if self.format == "iceberg":
            yield "pyiceberg[sql-sqlite]>=0.9"
        if self.format == "delta":
            yield "deltalake>=1.6"


class ExchangeOutput(Section, frozen=True):
    # "" is the default exchange. By default the rows' columns exchange and routing_key apply.
    exchange: str | None = None
    routing_key: str | None = None
    where: str | None = None
    options: dict[str, str | int | float | bool] = {}


class FlowSection(Section, frozen=True, kw_only=True, tag_field="kind"):
    """A table [flows.NAME]. Each kind of flow is a subclass, whose tag is the kind's name, in `kinds.registry`."""

    capture: Capture
    # Seconds between batches; 0 starts the next batch immediately.
    trigger: float = 5.0

    @abstractmethod
    def check(self) -> Iterator[Problem]:
        """Yield the problems of this kind of flow; `checks.check_flow` finds those that all kinds can have."""

    @abstractmethod
    def build(self, name: str) -> Flow:
        """Build the flow.

        Args:
            name: Names of pipeline and flow.

        Raises:
            PipelineError: A function or a file of the flow does not exist.
        """


class Pipeline(Section, frozen=True):
    name: str
    # Directory of checkpoints and of the status, with one subdirectory per flow.
    directory: str
    broker: Broker = field(default_factory=Broker)
    spark: Spark = field(default_factory=Spark)
    supervision: Supervision = field(default_factory=Supervision)
    flows: dict[str, FlowSection] = {}


class _Outline(Section, frozen=True):
    """The top level of the file: flows are converted one by one, so that an error can name the flow."""

    name: str
    directory: str
    broker: Broker = field(default_factory=Broker)
    spark: Spark = field(default_factory=Spark)
    supervision: Supervision = field(default_factory=Supervision)
    flows: dict[str, dict[str, Document]] = {}
