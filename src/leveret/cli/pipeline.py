"""`leveret pipeline`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from leveret._build import installation
from leveret.cli.client_command import DEFAULT_URL
from leveret.cli.failed import Failed
from leveret.cli.options import FilePath
from leveret.cli.output import Item, Reply, show_json, show_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., None])

COLUMNS = (
    ("flow", "flow"),
    ("state", "state"),
    ("batch", "batch"),
    ("rows", "rows"),
    ("rows_per_second", "rows/s"),
    ("lag", "lag"),
    ("batch_ms", "batch ms"),
    ("watermark", "watermark"),
    ("restarts", "restarts"),
    ("offsets", "offsets"),
    ("error", "error"),
)


@click.group()
def pipeline() -> None:
    """Run data pipelines on Spark. Requires the extra `leveret[pipeline]` and Java 17."""


def file_argument(function: Function) -> Function:
    return click.argument("file", type=FilePath(dir_okay=False, exists=True), default="pipeline.toml")(function)


def master_option(function: Function) -> Function:
    return click.option(
        "--master", metavar="URL", help="Spark master, instead of spark.master in FILE; local[*] is this machine."
    )(function)


def url_option(function: Function) -> Function:
    return click.option(
        "--url",
        metavar="URL",
        envvar="LEVERET_URL",
        help="Broker, instead of broker.url in FILE.  [env LEVERET_URL]",
    )(function)


def broker_options(function: Function) -> Function:
    """Add the options of commands without a pipeline file."""
    function = click.option("--master", default="local[*]", show_default=True, metavar="URL", help="Spark master.")(
        function
    )
    function = click.option(
        "--password-file", type=FilePath(dir_okay=False, exists=True), help="File whose first line is the password."
    )(function)
    return click.option(
        "--url",
        default=DEFAULT_URL,
        envvar="LEVERET_URL",
        metavar="URL",
        help=f"Broker.  [env LEVERET_URL; default: {DEFAULT_URL}]",
    )(function)


def _run_spark(function: Callable[[], Result]) -> Result:
    """Call a function. Converts pipeline and Spark errors to `Failed`."""
    try:
        from leveret.spark.errors import SparkError
        from leveret.spark.pipeline.errors import PipelineError
    except ImportError as error:
        raise Failed(f"pipelines need Spark: {installation('pipeline')} ({error})") from None
    try:
        return function()
    except (PipelineError, SparkError) as error:
        raise Failed(str(error)) from None
    except ImportError as error:
        raise Failed(f"pipelines need Spark: {installation('pipeline')} ({error})") from None


@pipeline.command()
@file_argument
@master_option
@url_option
@click.option("--once", is_flag=True, help="Process the available data, and exit.")
def run(file: str, master: str | None, url: str | None, once: bool) -> None:
    """Run the flows of FILE until SIGTERM or SIGINT. FILE defaults to pipeline.toml. Running batches finish first."""

    def call() -> bool:
        from leveret.spark.pipeline.run import run_pipeline

        return run_pipeline(file, master=master, url=url, once=once, echo=lambda line: click.echo(line))

    if not _run_spark(call):
        raise Failed("a flow failed too often")


@pipeline.command()
@file_argument
@master_option
@url_option
def check(file: str, master: str | None, url: str | None) -> None:
    """Check FILE without processing data. Verifies keys, schemas, functions, and that Spark can plan every flow."""

    def call() -> list[str]:
        from leveret.spark.pipeline.run import check_pipeline

        return check_pipeline(file, master=master, url=url)

    for line in _run_spark(call):
        click.echo(line)


@pipeline.command()
@file_argument
@click.option("--watch", is_flag=True, help="Refresh every second until the pipeline ends.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with all details.")
def status(file: str, watch: bool, as_json: bool) -> None:
    """Show the state of the pipeline in FILE. Includes batches, offsets, lag, rows per second and batch times."""

    def call() -> str:
        from leveret.spark.pipeline.load import load_pipeline

        return load_pipeline(file).directory

    directory = _run_spark(call)
    while True:
        state = _read_state(directory)
        if as_json:
            show_json(state)
        else:
            if watch and sys.stdout.isatty():
                click.clear()
            _show(state)
        if not watch or not state["alive"]:
            return
        time.sleep(1.0)


def _read_state(directory: str) -> Item:
    from leveret.spark.pipeline.state import read_state

    state = read_state(directory)
    if state is None:
        raise Failed(f"the pipeline has never run: no status in {directory}")
    return state


def _show(state: Item) -> None:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state["started"]))
    shown = state["state"] if state["alive"] or state["state"] != "running" else "crashed"
    click.echo(
        f"pipeline {state['pipeline']} on {state['master']}: {shown}, process {state['pid']} since {since}, "
        f"updated {max(0.0, time.time() - state['updated']):.0f} s ago"
    )
    flows = [
        {
            "flow": name,
            **flow,
            "rows_per_second": round(flow["rows_per_second"]),
            "offsets": json.dumps(flow["offsets"]) if flow["offsets"] else "",
        }
        for name, flow in state["flows"].items()
    ]
    show_table(flows, COLUMNS)


@pipeline.command()
@file_argument
@master_option
@click.option(
    "--to", "target", type=FilePath(file_okay=False), default="package", show_default=True, help="Output directory."
)
def package(file: str, master: str | None, target: str) -> None:
    """Package FILE for spark-submit on a cluster. Shows the script that submits it."""

    def call() -> str:
        from leveret.spark.pipeline.package import package_pipeline

        return package_pipeline(file, target, master)

    click.echo(_run_spark(call))


@pipeline.command()
@click.argument("file", type=FilePath(dir_okay=False), default="pipeline.toml")
@click.option("--table", metavar="PATH", help="Compact this table instead of those of FILE.")
@click.option(
    "--table-format",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Format of the table.",
)
@click.option(
    "--target-mib",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Approximate size of the new files in MiB.",
)
@click.option(
    "--min-age",
    type=click.FloatRange(min=0),
    default=3600.0,
    show_default=True,
    help="Seconds without a change after which a partition is finished.",
)
def compact(file: str, table: str | None, table_format: str, target_mib: int, min_age: float) -> None:
    """Merge small files in the tables of FILE. FILE defaults to pipeline.toml.

    Readers see each row once at any time, and flows may run meanwhile. Partitions that changed recently are left.
    """

    def tables() -> list[Reply]:
        from leveret.spark.pipeline.compaction.compact import tables_of
        from leveret.spark.pipeline.load import load_pipeline
        from leveret.spark.pipeline.model import TableOutput

        if table is not None:
            return [TableOutput(path=table, format=table_format)]  # type: ignore[arg-type]
        return list(tables_of(load_pipeline(file)))

    def compact_one(output: Reply) -> Reply:
        from leveret.spark.pipeline.compaction.compact import compact as compact_table

        return compact_table(output, target_bytes=target_mib << 20, min_age=min_age)

    failed = 0
    for output in _run_spark(tables):
        try:
            done = _run_spark(partial(compact_one, output))
        except Failed as error:
            failed += 1
            click.echo(f"error: {error}", err=True)
            continue
        click.echo(
            f"{output.path}: {done.removed} files became {done.added} in {done.partitions} partitions; "
            f"{done.young} partitions are not finished, {done.busy} were changed meanwhile"
        )
    if failed:
        raise Failed(f"{failed} tables were not compacted")


# Ready-made pipelines


def _session(name: str, master: str) -> SparkSession:
    from leveret.spark.pipeline.session import make_session

    return make_session(f"leveret-{name}", master)


def _run_flow(
    name: str, kind: str, table: Item, url: str, password_file: str | None, master: str, directory: str, once: bool
) -> None:
    """Run one flow as a pipeline, with the supervision of flows in a file."""
    broker: Item = {"url": url}
    if password_file is not None:
        broker["password_file"] = password_file
    whole = {
        "name": name,
        "directory": directory,
        "broker": broker,
        "spark": {"master": master},
        "flows": {kind: {"kind": kind, **table}},
    }

    def call() -> bool:
        from leveret.spark.pipeline.load import pipeline_of
        from leveret.spark.pipeline.run import run_loaded

        return run_loaded(pipeline_of(whole), once=once, echo=lambda line: click.echo(line))

    if not _run_spark(call):
        raise Failed("the flow failed too often")


def capture_options(function: Function) -> Function:
    """Add the options that select the source of messages. A command requires exactly one of them."""
    for name, text in (
        ("exchange", "Read an exchange, through a stream that is declared and bound to it."),
        ("super-stream", "Read a super stream."),
        ("stream", "Read a stream."),
        ("queue", "Read a queue, and remove its messages."),
    ):
        function = click.option(f"--{name}", metavar="NAME", help=text)(function)
    function = click.option("--key", "keys", multiple=True, metavar="KEY", help="Binding key of the exchange; repeatable.")(
        function
    )
    return click.option(
        "--source-option",
        "source_options",
        multiple=True,
        metavar="NAME=VALUE",
        help="Data source option, such as maxMessagesPerTrigger=100000; repeatable.",
    )(function)


def _capture(values: Item) -> Item:
    found: Item = {
        name: values[name] for name in ("exchange", "super_stream", "stream", "queue") if values[name] is not None
    }
    if values["keys"]:
        found["keys"] = list(values["keys"])
    if values["source_options"]:
        found["options"] = dict(_pair(pair, "--source-option") for pair in values["source_options"])
    return found


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Failed(f"{option} {text!r}: expected NAME=VALUE")
    return name, value


def flow_options(function: Function) -> Function:
    function = click.option("--once", is_flag=True, help="Process the available data, and exit.")(function)
    return click.option(
        "--directory",
        required=True,
        type=FilePath(file_okay=False),
        help="Directory for checkpoints and status. A run resumes from the last one.",
    )(function)


def decode_options(function: Function) -> Function:
    function = click.option(
        "--format",
        "body_format",
        type=click.Choice(["raw", "json", "avro", "protobuf"]),
        default="raw",
        show_default=True,
        help="Format of bodies.",
    )(function)
    function = click.option("--schema", metavar="COLUMNS", help="JSON schema: 'id BIGINT NOT NULL, name STRING'.")(function)
    function = click.option("--schema-file", type=FilePath(dir_okay=False), help="File with the schema.")(function)
    function = click.option("--message", metavar="NAME", help="Protobuf message type.")(function)
    return click.option("--quarantine", metavar="PATH", help="Table for messages that cannot be decoded.")(function)


def _decode(values: Item) -> Item:
    found = {
        "format": values["body_format"],
        "schema": values["schema"],
        "schema_file": values["schema_file"],
        "message": values["message"],
        "quarantine": values["quarantine"],
    }
    if values["body_format"] != "raw" and values["quarantine"] is None:
        found["on_error"] = "fail"
    return {name: value for name, value in found.items() if value is not None}


@pipeline.command()
@capture_options
@decode_options
@click.option("--table", required=True, metavar="PATH", help="Directory or URL of the table.")
@click.option(
    "--table-format",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Format.",
)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="COLUMN",
    help="Partition by day(COLUMN), hour(COLUMN), month(COLUMN) or COLUMN; repeatable.  [default: day(append_time)]",
)
@click.option(
    "--writer",
    type=click.Choice(["auto", "spark"]),
    default="auto",
    show_default=True,
    help="auto: the tasks that read messages write the files if possible; spark: Spark always writes them.",
)
@flow_options
@broker_options
def archive(
    table: str,
    table_format: str,
    partitions: tuple[str, ...],
    writer: str,
    url: str,
    password_file: str | None,
    master: str,
    directory: str,
    once: bool,
    **values: Reply,
) -> None:
    """Archive messages in a table. Writes each message of a stream, queue or exchange exactly once."""
    output: Item = {"path": table, "format": table_format, "writer": writer}
    if partitions:
        output["partition"] = list(partitions)
    _run_flow(
        "archive",
        "archive",
        {"capture": _capture(values), "decode": _decode(values), "table": output},
        url,
        password_file,
        master,
        directory,
        once,
    )


@pipeline.command()
@click.option("--table", metavar="PATH", help="Directory or URL of the table of windows.")
@click.option("--exchange", metavar="NAME", help="Topic exchange for the windows, with keys traffic.EVENT.QUEUE.")
@click.option("--stream", metavar="NAME", help="Existing stream that is bound to the events.  [default: declare one]")
@click.option(
    "--window", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, help="Seconds per window."
)
@click.option(
    "--late",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds to wait for late events before a window closes.",
)
@click.option("--report", metavar="PATH", help="HTML report to write after each batch.")
@flow_options
@broker_options
def traffic(
    table: str | None,
    exchange: str | None,
    stream: str | None,
    window: float,
    late: float,
    report: str | None,
    url: str,
    password_file: str | None,
    master: str,
    directory: str,
    once: bool,
) -> None:
    """Count broker events in time windows."""
    flow: Item = {"window": window, "late": late}
    if table is not None:
        flow["table"] = {"path": table}
    if exchange is not None:
        flow["exchange"] = {"exchange": exchange}
    if stream is not None:
        flow["capture"] = {"stream": stream}
    if report is not None:
        flow["report"] = report
    _run_flow("traffic", "traffic", flow, url, password_file, master, directory, once)


@pipeline.command()
@capture_options
@decode_options
@click.option("--table", required=True, metavar="PATH", help="Directory or URL of the table.")
@click.option(
    "--table-format", default="parquet", show_default=True, help="Spark format of the table: parquet, csv, json, ..."
)
@click.option(
    "--on",
    "pairs",
    multiple=True,
    required=True,
    metavar="FIELD=COLUMN",
    help="Body field and table column to join on; repeatable.",
)
@click.option("--add", multiple=True, metavar="COLUMN", help="Column to add; repeatable.  [default: all others]")
@click.option(
    "--unmatched",
    type=click.Choice(["keep", "quarantine", "drop"]),
    default="keep",
    show_default=True,
    help="Action for messages without a matching row.",
)
@click.option("--to-exchange", default="", metavar="NAME", help="Target exchange.  [default: the default exchange]")
@click.option(
    "--to-key", metavar="KEY", help="Routing key; a queue for the default exchange.  [default: that of each message]"
)
@flow_options
@broker_options
def enrich(
    table: str,
    table_format: str,
    pairs: tuple[str, ...],
    add: tuple[str, ...],
    unmatched: str,
    to_exchange: str,
    to_key: str | None,
    url: str,
    password_file: str | None,
    master: str,
    directory: str,
    once: bool,
    **values: Reply,
) -> None:
    """Add columns from a table to JSON bodies. Publishes each message exactly once."""
    to: Item = {"exchange": to_exchange}
    if to_key is not None:
        to["routing_key"] = to_key
    static = {"path": table, "format": table_format}
    if table_format == "csv":
        static["options"] = {"header": "true", "inferSchema": "true"}  # type: ignore[assignment]
    _run_flow(
        "enrich",
        "enrich",
        {
            "capture": _capture(values),
            "decode": _decode(values),
            "table": static,
            "on": dict(_pair(pair, "--on") for pair in pairs),
            "add": list(add),
            "unmatched": unmatched,
            "to": to,
        },
        url,
        password_file,
        master,
        directory,
        once,
    )


@pipeline.command()
@capture_options
@click.option(
    "--rules",
    required=True,
    type=FilePath(dir_okay=False, exists=True),
    help="TOML file with [[rules]] tables: field, header, property or pattern, and action.",
)
@click.option("--key-file", type=FilePath(dir_okay=False, exists=True), help="File whose first line is the hash key.")
@click.option("--quarantine", metavar="PATH", help="Table for messages that cannot be masked, which are stored unchanged.")
@click.option("--to-exchange", metavar="NAME", help="Target exchange.")
@click.option("--to-key", metavar="KEY", help="Routing key.  [default: that of each message]")
@click.option("--table", metavar="PATH", help="Directory or URL of a table.")
@flow_options
@broker_options
def scrub(
    rules: str,
    key_file: str | None,
    quarantine: str | None,
    to_exchange: str | None,
    to_key: str | None,
    table: str | None,
    url: str,
    password_file: str | None,
    master: str,
    directory: str,
    once: bool,
    **values: Reply,
) -> None:
    """Mask personal data by rules. Writes the messages to an exchange, a table, or both."""
    import tomllib

    try:
        found = tomllib.loads(Path(rules).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Failed(f"{rules}: {error}") from None
    if set(found) != {"rules"}:
        raise Failed(f"{rules}: expected only [[rules]] tables, got {', '.join(found) or 'nothing'}")
    flow: Item = {"capture": _capture(values), "rules": found["rules"], "on_error": "quarantine" if quarantine else "fail"}
    if key_file is not None:
        flow["key_file"] = key_file
    if quarantine is not None:
        flow["quarantine"] = quarantine
    if to_exchange is not None:
        flow["exchanges"] = [{"exchange": to_exchange, **({"routing_key": to_key} if to_key is not None else {})}]
    if table is not None:
        flow["tables"] = [{"path": table}]
    _run_flow("scrub", "scrub", flow, url, password_file, master, directory, once)


@pipeline.command()
@click.argument("name")
@click.option("--table", metavar="PATH", help="Read an archive.")
@click.option("--stream", metavar="NAME", help="Read a stream.")
@click.option("--exchange", metavar="NAME", help="Target exchange.  [default: that of each message]")
@click.option("--key", metavar="KEY", help="Routing key.  [default: that of each message]")
@click.option("--where", metavar="SQL", help="Replay only messages that match this condition.")
@click.option(
    "--since", metavar="TIME", help="Replay only messages appended at or after this time: '2026-11-22 10:00:00', UTC."
)
@click.option("--until", metavar="TIME", help="Replay only messages appended before this time.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum number of messages per second.")
@broker_options
def replay(
    name: str,
    table: str | None,
    stream: str | None,
    exchange: str | None,
    key: str | None,
    where: str | None,
    since: str | None,
    until: str | None,
    rate: float | None,
    url: str,
    password_file: str | None,
    master: str,
) -> None:
    """Publish archived messages again, in order. NAME identifies the replay; rerun the command to resume it."""
    if (table is None) == (stream is None):
        raise Failed("expected exactly one of --table and --stream")

    def call() -> int:
        from leveret.spark.pipeline import model
        from leveret.spark.pipeline.commands.replay import replay as replay_messages
        from leveret.spark.pipeline.output import exchanges

        broker = model.Broker(url=url, password_file=password_file)
        spark = _session("replay", master)
        try:
            messages: Reply = table
            if stream is not None:
                messages = (
                    spark.read.format("amqp").options(**exchanges.broker_options(broker)).option("stream", stream).load()
                )
            return replay_messages(
                spark,
                broker,
                messages,
                model.ExchangeOutput(exchange=exchange, routing_key=key),
                name=name,
                where=where,
                since=since,
                until=until,
                rate=rate,
                echo=lambda line: click.echo(line),
            )
        finally:
            spark.stop()

    click.echo(f"published {_run_spark(call):,} messages")


@pipeline.command()
@click.argument("queue")
@click.option(
    "--where", metavar="SQL", help="Show only messages that match, such as \"reason = 'expired' AND age_s < 3600\"."
)
@click.option("--table", metavar="PATH", help="Parquet directory to replace with the matching messages.")
@click.option("--report", metavar="PATH", help="HTML report to write.")
@broker_options
def deadletters(
    queue: str, where: str | None, table: str | None, report: str | None, url: str, password_file: str | None, master: str
) -> None:
    """Count dead letters by reason, queue and key. Does not remove them from QUEUE."""

    def call() -> list[Item]:
        from leveret.spark.pipeline import model
        from leveret.spark.pipeline.commands.deadletters import deadletters as triage
        from leveret.spark.pipeline.commands.deadletters import groups

        spark = _session("deadletters", master)
        try:
            found = triage(
                spark, model.Broker(url=url, password_file=password_file), queue, where=where, table=table, report=report
            )
            return [row.asDict() for row in groups(found).collect()]
        finally:
            spark.stop()

    show_table(
        _run_spark(call),
        (
            ("reason", "reason"),
            ("dead_queue", "queue"),
            ("dead_exchange", "exchange"),
            ("dead_key", "routing key"),
            ("count", "messages"),
            ("deaths", "most deaths"),
            ("first", "first"),
            ("last", "last"),
        ),
    )


@pipeline.command()
@click.argument("queue")
@click.option("--where", metavar="SQL", help="Redrive only messages that match; the others stay in QUEUE.")
@click.option("--exchange", metavar="NAME", help="Target exchange.  [default: the original exchange of each message]")
@click.option("--key", metavar="KEY", help="Routing key.  [default: the original routing key of each message]")
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of messages to check, oldest first.")
@click.option("--resume", metavar="NAME", help="Resume an interrupted redrive, with the same options.")
@broker_options
def redrive(
    queue: str,
    where: str | None,
    exchange: str | None,
    key: str | None,
    limit: int | None,
    resume: str | None,
    url: str,
    password_file: str | None,
    master: str,
) -> None:
    """Publish dead letters to their original exchange. Publishes each message in QUEUE exactly once."""
    if (exchange is None) != (key is None):
        raise Failed("expected both --exchange and --key, or neither")

    def call() -> tuple[int, int]:
        from leveret.spark.pipeline import model
        from leveret.spark.pipeline.commands.redrive import redrive as redrive_messages

        spark = _session("redrive", master)
        try:
            to = model.ExchangeOutput(exchange=exchange, routing_key=key) if exchange is not None else None
            return redrive_messages(
                spark,
                model.Broker(url=url, password_file=password_file),
                queue,
                where=where,
                to=to,
                resume=resume,
                limit=limit,
                echo=lambda line: click.echo(line),
            )
        finally:
            spark.stop()

    published, kept = _run_spark(call)
    click.echo(f"published {published:,} messages, kept {kept:,}")
