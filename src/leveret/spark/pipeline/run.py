"""Runs a pipeline from its file, or checks it without data."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from leveret.spark.errors import OptionError
from leveret.spark.options import read_options
from leveret.spark.pipeline.capture import no_messages, source_options
from leveret.spark.pipeline.definition import Flow
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.load import load_pipeline
from leveret.spark.pipeline.model import Pipeline
from leveret.spark.pipeline.output.exchanges import sink_options
from leveret.spark.pipeline.session import make_session
from leveret.spark.pipeline.supervise import Supervisor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_pipeline(
    path: str,
    *,
    master: str | None = None,
    url: str | None = None,
    once: bool = False,
    submitted: bool = False,
    echo: Callable[[str], None] = print,
) -> bool:
    """Run a pipeline until SIGTERM or SIGINT.

    Args:
        path: The pipeline's file.
        master: URL of the Spark master; overrides the file.
        url: URL of the broker; overrides the file.
        once: Process what is available now, then stop.
        submitted: Whether spark-submit sets the master.
        echo: Called with lines of progress.

    Returns:
        Whether the pipeline ended without an error.

    Raises:
        PipelineError: The file is invalid; no flow was started.
    """
    return run_loaded(load_pipeline(path, replacements(master, url)), once=once, submitted=submitted, echo=echo)


def run_loaded(
    pipeline: Pipeline, *, once: bool = False, submitted: bool = False, echo: Callable[[str], None] = print
) -> bool:
    """Like `run_pipeline`, for a loaded pipeline."""
    flows = flows_of(pipeline)
    spark = make_session(pipeline.name, None if submitted else pipeline.spark.master, pipeline.spark.conf)
    try:
        plan(spark, flows, True)
        supervisor = Supervisor(spark, pipeline, flows, once, echo)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: supervisor.stop())
        return supervisor.run()
    finally:
        spark.stop()


def check_pipeline(path: str, *, master: str | None = None, url: str | None = None) -> list[str]:
    """Plan a pipeline over empty input, in a local session and without the broker. Returns a line per flow.

    Raises:
        PipelineError: The pipeline is invalid.
    """
    pipeline = load_pipeline(path, replacements(master, url))
    flows = flows_of(pipeline)
    spark = make_session(f"{pipeline.name}-check", "local[1]", pipeline.spark.conf)
    try:
        return plan(spark, flows)
    finally:
        spark.stop()


def replacements(master: str | None, url: str | None) -> Mapping[str, str]:
    return {key: value for key, value in (("spark.master", master), ("broker.url", url)) if value is not None}


def flows_of(pipeline: Pipeline) -> dict[str, Flow]:
    """Build the flows, with their functions loaded and their options checked. Raises PipelineError."""
    flows = {name: flow.build(f"{pipeline.name}.{name}") for name, flow in pipeline.flows.items()}
    for name, flow in flows.items():
        try:
            read_options(source_options(flow.capture, pipeline.broker, flow.name))
            for exchange in flow.exchanges:
                read_options(sink_options(exchange, pipeline.broker))
        except OptionError as error:
            raise PipelineError(f"flows.{name}: {error}") from None
    return flows


def plan(spark: SparkSession, flows: Mapping[str, Flow], check_tables: bool = False) -> list[str]:
    """Plan every flow over empty input with Spark. Returns a description of each.

    Args:
        spark: The session.
        flows: The flows.
        check_tables: Whether to check existing tables as well.
    """
    lines = []
    for name, flow in flows.items():
        try:
            messages = no_messages(spark.newSession(), flow.capture.options.get("columns"))
            flow.check(messages)
            if check_tables:
                flow.check_existing_tables(messages)
        except PipelineError as error:
            raise PipelineError(f"flows.{name}: {error}") from None
        except Exception as error:
            text = str(error).strip().splitlines()
            raise PipelineError(f"flows.{name}: {text[0] if text else error.__class__.__name__}") from error
        outputs = [f"table {table.path}" for table in flow.tables]
        outputs += [
            f"exchange {exchange.exchange!r}" if exchange.exchange is not None else "the rows' exchanges"
            for exchange in flow.exchanges
        ]
        lines.append(f"{name}: {flow.decode.format} to {', '.join(outputs)}")
    return lines
