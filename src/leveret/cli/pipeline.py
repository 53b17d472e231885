"""`leveret pipeline`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from leveret.cli.client_command import DEFAULT_URL
from leveret.cli.failed import Failed
from leveret.cli.output import show_json, show_table

Function = TypeVar("Function", bound=Callable[..., Any])

COLUMNS = (("flow", "flow"), ("state", "state"), ("batch", "batch"), ("rows", "rows"),
           ("rows_per_second", "rows/s"), ("lag", "lag"), ("batch_ms", "batch ms"), ("watermark", "watermark"),
           ("restarts", "restarts"), ("offsets", "offsets"), ("error", "error"))


@click.group()
def pipeline() -> None:
    """Run data pipelines on Spark: pip install 'leveret[pipeline]', and Java 17."""


def file_argument(function: Function) -> Function:
    return click.argument("file", type=click.Path(dir_okay=False, exists=True), default="pipeline.toml")(function)


def master_option(function: Function) -> Function:
    return click.option("--master", metavar="URL", help="Where Spark runs, instead of the file's spark.master; "
                        "local[*] is this machine.")(function)


def url_option(function: Function) -> Function:
    return click.option("--url", metavar="URL", envvar="LEVERET_URL",
                        help="The broker, instead of the file's broker.url.  [env LEVERET_URL]")(function)


def broker_options(function: Function) -> Function:
    """Of commands without a file."""
    function = click.option("--master", default="local[*]", show_default=True, metavar="URL", help="Where Spark runs.")(
        function)
    function = click.option("--password-file", type=click.Path(dir_okay=False, exists=True),
                            help="File whose first line is the password.")(function)
    return click.option("--url", default=DEFAULT_URL, envvar="LEVERET_URL", metavar="URL",
                        help=f"The broker.  [env LEVERET_URL; default: {DEFAULT_URL}]")(function)


def _refused(function: Callable[[], Any]) -> Any:
    """Call, with refusals as the command's failure."""
    try:
        from leveret.spark.errors import SparkError
        from leveret.spark.pipeline.errors import PipelineError
    except ImportError as error:
        raise Failed(f"pipelines need Spark: pip install 'leveret[pipeline]' ({error})") from None
    try:
        return function()
    except (PipelineError, SparkError) as error:
        raise Failed(str(error)) from None
    except ImportError as error:
        raise Failed(f"pipelines need Spark: pip install 'leveret[pipeline]' ({error})") from None


@pipeline.command()
@file_argument
@master_option
@url_option
@click.option("--once", is_flag=True, help="Take what is there now, and end.")
def run(file: str, master: str | None, url: str | None, once: bool) -> None:
    """Run the flows of FILE (pipeline.toml) until SIGTERM or SIGINT, which let the batches that run finish."""
    def call() -> bool:
        from leveret.spark.pipeline.run import run_pipeline

        return run_pipeline(file, master=master, url=url, once=once, echo=lambda line: click.echo(line))

    if not _refused(call):
        raise Failed("a flow has failed too often")


@pipeline.command()
@file_argument
@master_option
@url_option
def check(file: str, master: str | None, url: str | None) -> None:
    """Check FILE without data: keys, schemas, functions, and that Spark can plan every flow."""
    def call() -> list[str]:
        from leveret.spark.pipeline.run import check_pipeline

        return check_pipeline(file, master=master, url=url)

    for line in _refused(call):
        click.echo(line)


@pipeline.command()
@file_argument
@click.option("--watch", is_flag=True, help="Show it again every second, until the pipeline ends.")
@click.option("--json", "as_json", is_flag=True, help="JSON, with everything that is known.")
def status(file: str, watch: bool, as_json: bool) -> None:
    """Show how the pipeline of FILE is: batches, offsets, lag, rows a second and batch times of its flows."""
    def call() -> str:
        from leveret.spark.pipeline.load import load_pipeline

        return load_pipeline(file).directory

    directory = _refused(call)
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


def _read_state(directory: str) -> dict[str, Any]:
    from leveret.spark.pipeline.state import read_state

    state = read_state(directory)
    if state is None:
        raise Failed(f"the pipeline has never run: there is no status in {directory}")
    return state


def _show(state: dict[str, Any]) -> None:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state["started"]))
    how = state["state"] if state["alive"] or state["state"] != "running" else "gone without an end"
    click.echo(f"pipeline {state['pipeline']} on {state['master']}: {how}, process {state['pid']} since {since}, "
               f"told {max(0.0, time.time() - state['updated']):.0f} s ago")
    flows = [{"flow": name, **flow, "rows_per_second": round(flow["rows_per_second"]),
              "offsets": json.dumps(flow["offsets"]) if flow["offsets"] else ""} for name, flow in state["flows"].items()]
    show_table(flows, COLUMNS)


@pipeline.command()
@file_argument
@master_option
@click.option("--to", "target", type=click.Path(file_okay=False), default="package", show_default=True,
              help="The directory that is written.")
def package(file: str, master: str | None, target: str) -> None:
    """Write what spark-submit needs to run FILE on a cluster, and show the script that calls it."""
    def call() -> str:
        from leveret.spark.pipeline.package import package_pipeline

        return package_pipeline(file, target, master)

    click.echo(_refused(call))


# The ready pipelines


def _session(name: str, master: str) -> Any:
    from leveret.spark.pipeline.session import make_session

    return make_session(f"leveret-{name}", master)


def _run_flow(name: str, kind: str, table: dict[str, Any], url: str, password_file: str | None, master: str, directory: str,
              once: bool) -> None:
    """Run one flow as a pipeline of its own, supervised as one of a file is."""
    broker: dict[str, Any] = {"url": url}
    if password_file is not None:
        broker["password_file"] = password_file
    whole = {"name": name, "directory": directory, "broker": broker, "spark": {"master": master},
             "flows": {kind: {"kind": kind, **table}}}

    def call() -> bool:
        from leveret.spark.pipeline.load import pipeline_of
        from leveret.spark.pipeline.run import run_loaded

        return run_loaded(pipeline_of(whole), once=once, echo=lambda line: click.echo(line))

    if not _refused(call):
        raise Failed("the flow has failed too often")


def capture_options(function: Function) -> Function:
    """Exactly one of these says where messages come from."""
    for name, text in (("exchange", "An exchange: a stream is declared and bound to it."),
                       ("super-stream", "A super stream."), ("stream", "A stream."),
                       ("queue", "A queue: its messages are taken.")):
        function = click.option(f"--{name}", metavar="NAME", help=text)(function)
    function = click.option("--key", "keys", multiple=True, metavar="KEY", help="Binding key of the exchange; repeatable.")(
        function)
    return click.option("--source-option", "source_options", multiple=True, metavar="NAME=VALUE",
                        help="An option of the data source, such as maxMessagesPerTrigger=100000; repeatable.")(function)


def _capture(values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {name: values[name] for name in ("exchange", "super_stream", "stream", "queue")
                             if values[name] is not None}
    if values["keys"]:
        found["keys"] = list(values["keys"])
    if values["source_options"]:
        found["options"] = dict(_pair(one, "--source-option") for one in values["source_options"])
    return found


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Failed(f"{option} {text!r}: expected NAME=VALUE")
    return name, value


def flow_options(function: Function) -> Function:
    function = click.option("--once", is_flag=True, help="Take what is there now, and end.")(function)
    return click.option("--directory", required=True, type=click.Path(file_okay=False),
                        help="Checkpoints and status; the next run with it goes on where this one ends.")(function)


def decode_options(function: Function) -> Function:
    function = click.option("--format", "body_format", type=click.Choice(["raw", "json", "avro", "protobuf"]),
                            default="raw", show_default=True, help="What bodies are.")(function)
    function = click.option("--schema", metavar="COLUMNS", help="Of JSON: 'id BIGINT NOT NULL, name STRING'.")(function)
    function = click.option("--schema-file", type=click.Path(dir_okay=False), help="File with the schema.")(function)
    function = click.option("--message", metavar="NAME", help="Of Protobuf: the message type.")(function)
    return click.option("--quarantine", metavar="PATH", help="Table of messages that cannot be decoded.")(function)


def _decode(values: dict[str, Any]) -> dict[str, Any]:
    found = {"format": values["body_format"], "schema": values["schema"], "schema_file": values["schema_file"],
             "message": values["message"], "quarantine": values["quarantine"]}
    if values["body_format"] != "raw" and values["quarantine"] is None:
        found["on_error"] = "fail"
    return {name: value for name, value in found.items() if value is not None}


@pipeline.command()
@capture_options
@decode_options
@click.option("--table", required=True, metavar="PATH", help="Directory or URL of the table.")
@click.option("--table-format", type=click.Choice(["parquet", "iceberg"]), default="parquet", show_default=True)
@click.option("--partition", "partitions", multiple=True, metavar="COLUMN",
              help="day(COLUMN), hour(COLUMN), month(COLUMN) or a column; repeatable.  [default: day(append_time)]")
@click.option("--writer", type=click.Choice(["auto", "spark"]), default="auto", show_default=True,
              help="Who writes files: the tasks that read, where they can, or always Spark.")
@flow_options
@broker_options
def archive(table: str, table_format: str, partitions: tuple[str, ...], writer: str, url: str, password_file: str | None,
            master: str, directory: str, once: bool, **values: Any) -> None:
    """Write every message of a stream, queue or exchange into a table, once."""
    output: dict[str, Any] = {"path": table, "format": table_format, "writer": writer}
    if partitions:
        output["partition"] = list(partitions)
    _run_flow("archive", "archive", {"capture": _capture(values), "decode": _decode(values), "table": output}, url,
              password_file, master, directory, once)


@pipeline.command()
@click.option("--table", metavar="PATH", help="Directory or URL of the table of windows.")
@click.option("--exchange", metavar="NAME", help="Topic exchange for the windows, with keys traffic.EVENT.QUEUE.")
@click.option("--stream", metavar="NAME", help="A stream that is bound to the events already.  [default: one is declared]")
@click.option("--window", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, help="Seconds.")
@click.option("--late", type=click.FloatRange(min=0), default=30.0, show_default=True,
              help="Seconds that a window waits for late events.")
@click.option("--report", metavar="PATH", help="HTML page, made anew behind each batch.")
@flow_options
@broker_options
def traffic(table: str | None, exchange: str | None, stream: str | None, window: float, late: float, report: str | None,
            url: str, password_file: str | None, master: str, directory: str, once: bool) -> None:
    """Count the broker's own events by windows of time."""
    flow: dict[str, Any] = {"window": window, "late": late}
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
@click.option("--table", required=True, metavar="PATH", help="The table.")
@click.option("--table-format", default="parquet", show_default=True, help="As Spark reads it: parquet, csv, json, ...")
@click.option("--on", "pairs", multiple=True, required=True, metavar="FIELD=COLUMN",
              help="Field of the body and column of the table; repeatable.")
@click.option("--add", multiple=True, metavar="COLUMN", help="Columns that are added.  [default: all others]")
@click.option("--unmatched", type=click.Choice(["keep", "quarantine", "drop"]), default="keep", show_default=True)
@click.option("--to-exchange", default="", metavar="NAME", help="Where to.  [default: the default exchange]")
@click.option("--to-key", metavar="KEY", help="Routing key; of the default exchange a queue.  [default: the message's]")
@flow_options
@broker_options
def enrich(table: str, table_format: str, pairs: tuple[str, ...], add: tuple[str, ...], unmatched: str, to_exchange: str,
           to_key: str | None, url: str, password_file: str | None, master: str, directory: str, once: bool,
           **values: Any) -> None:
    """Add columns of a table to JSON bodies, and publish them, once."""
    to: dict[str, Any] = {"exchange": to_exchange}
    if to_key is not None:
        to["routing_key"] = to_key
    static = {"path": table, "format": table_format}
    if table_format == "csv":
        static["options"] = {"header": "true", "inferSchema": "true"}  # type: ignore[assignment]
    _run_flow("enrich", "enrich", {"capture": _capture(values), "decode": _decode(values), "table": static,
                                   "on": dict(_pair(one, "--on") for one in pairs), "add": list(add),
                                   "unmatched": unmatched, "to": to}, url, password_file, master, directory, once)


@pipeline.command()
@capture_options
@click.option("--rules", required=True, type=click.Path(dir_okay=False, exists=True),
              help="TOML file with tables [[rules]]: field, header, property or pattern, and action.")
@click.option("--key-file", type=click.Path(dir_okay=False, exists=True), help="Key of hashes, in the first line.")
@click.option("--quarantine", metavar="PATH", help="Table of messages that cannot be masked, as they came.")
@click.option("--to-exchange", metavar="NAME")
@click.option("--to-key", metavar="KEY", help="Routing key.  [default: each message's own]")
@click.option("--table", metavar="PATH", help="Directory or URL of a table.")
@flow_options
@broker_options
def scrub(rules: str, key_file: str | None, quarantine: str | None, to_exchange: str | None, to_key: str | None,
          table: str | None, url: str, password_file: str | None, master: str, directory: str, once: bool,
          **values: Any) -> None:
    """Mask personal data by rules, and write to an exchange, a table, or both."""
    import tomllib

    try:
        found = tomllib.loads(Path(rules).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Failed(f"{rules}: {error}") from None
    if set(found) != {"rules"}:
        raise Failed(f"{rules}: expected tables [[rules]] and nothing else, got {', '.join(found) or 'nothing'}")
    flow: dict[str, Any] = {"capture": _capture(values), "rules": found["rules"],
                            "on_error": "quarantine" if quarantine else "fail"}
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
@click.option("--table", metavar="PATH", help="An archive.")
@click.option("--stream", metavar="NAME", help="A stream, instead of an archive.")
@click.option("--exchange", metavar="NAME", help="Where to.  [default: each message's own exchange]")
@click.option("--key", metavar="KEY", help="Routing key.  [default: each message's own]")
@click.option("--where", metavar="SQL", help="Only messages for which this holds.")
@click.option("--since", metavar="TIME", help="Only messages appended then or later: '2026-11-22 10:00:00', UTC.")
@click.option("--until", metavar="TIME", help="Only messages appended before.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second, at most.")
@broker_options
def replay(name: str, table: str | None, stream: str | None, exchange: str | None, key: str | None, where: str | None,
           since: str | None, until: str | None, rate: float | None, url: str, password_file: str | None,
           master: str) -> None:
    """Publish archived messages again, in their order. NAME is the replay's: run again, it goes on where it was."""
    if (table is None) == (stream is None):
        raise Failed("expected exactly one of --table and --stream")

    def call() -> int:
        from leveret.spark.pipeline import exchanges, model
        from leveret.spark.pipeline.replay import replay as replay_messages

        broker = model.Broker(url=url, password_file=password_file)
        spark = _session("replay", master)
        try:
            messages: Any = table
            if stream is not None:
                messages = spark.read.format("amqp").options(**exchanges.broker_options(broker)).option(
                    "stream", stream).load()
            return replay_messages(spark, broker, messages, model.ExchangeOutput(exchange=exchange, routing_key=key),
                                   name=name, where=where, since=since, until=until, rate=rate,
                                   echo=lambda line: click.echo(line))
        finally:
            spark.stop()

    click.echo(f"{_refused(call):,} messages are published")


@pipeline.command()
@click.argument("queue")
@click.option("--where", metavar="SQL", help="Only messages for which this holds: \"reason = 'expired' AND age_s < 3600\".")
@click.option("--table", metavar="PATH", help="Directory of Parquet files that is replaced by what is found.")
@click.option("--report", metavar="PATH", help="HTML page.")
@broker_options
def deadletters(queue: str, where: str | None, table: str | None, report: str | None, url: str, password_file: str | None,
                master: str) -> None:
    """Show what is in a QUEUE of dead letters, by reason, queue and key. Nothing is taken out."""
    def call() -> list[dict[str, Any]]:
        from leveret.spark.pipeline import model
        from leveret.spark.pipeline.deadletters import deadletters as triage
        from leveret.spark.pipeline.deadletters import groups

        spark = _session("deadletters", master)
        try:
            found = triage(spark, model.Broker(url=url, password_file=password_file), queue, where=where, table=table,
                           report=report)
            return [row.asDict() for row in groups(found).collect()]
        finally:
            spark.stop()

    show_table(_refused(call), (("reason", "reason"), ("dead_queue", "queue"), ("dead_exchange", "exchange"),
                                ("dead_key", "routing key"), ("count", "messages"), ("deaths", "most deaths"),
                                ("first", "first"), ("last", "last")))


@pipeline.command()
@click.argument("queue")
@click.option("--where", metavar="SQL", help="Only messages for which this holds; the others stay.")
@click.option("--exchange", metavar="NAME", help="Where to.  [default: the exchange in which each message died]")
@click.option("--key", metavar="KEY", help="Routing key.  [default: the one with which it died]")
@click.option("--limit", type=click.IntRange(min=1), help="Messages that are looked at, oldest first.")
@click.option("--resume", metavar="NAME", help="Finish a re-drive that was interrupted, with the same options.")
@broker_options
def redrive(queue: str, where: str | None, exchange: str | None, key: str | None, limit: int | None, resume: str | None,
            url: str, password_file: str | None, master: str) -> None:
    """Publish dead letters of a QUEUE where they came from, once; the others stay in it."""
    if (exchange is None) != (key is None):
        raise Failed("expected --exchange and --key together, or neither of them")

    def call() -> tuple[int, int]:
        from leveret.spark.pipeline import model
        from leveret.spark.pipeline.redrive import redrive as redrive_messages

        spark = _session("redrive", master)
        try:
            to = model.ExchangeOutput(exchange=exchange, routing_key=key) if exchange is not None else None
            return redrive_messages(spark, model.Broker(url=url, password_file=password_file), queue, where=where, to=to,
                                    resume=resume, limit=limit, echo=lambda line: click.echo(line))
        finally:
            spark.stop()

    published, kept = _refused(call)
    click.echo(f"{published:,} messages are published, {kept:,} stay")
