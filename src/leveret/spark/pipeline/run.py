"""Running a pipeline from its file, and checking it without data."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from leveret.spark.errors import OptionError
from leveret.spark.options import read_options
from leveret.spark.pipeline.capture import no_messages, source_options
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.exchanges import sink_options
from leveret.spark.pipeline.flow import Flow
from leveret.spark.pipeline.kinds import flow_of
from leveret.spark.pipeline.load import load_pipeline
from leveret.spark.pipeline.model import Pipeline
from leveret.spark.pipeline.session import make_session
from leveret.spark.pipeline.supervise import Supervisor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_pipeline(path: str, *, master: str | None = None, url: str | None = None, once: bool = False,
                 submitted: bool = False, echo: Callable[[str], None] = print) -> bool:
    """Run a pipeline until it is told to stop by SIGTERM or SIGINT; whether it ended well.

    master, url  instead of the file's
    once         take what is there now, and end
    submitted    spark-submit has said which master
    Raises `PipelineError` before anything runs where something of the file does not fit.
    """
    return run_loaded(load_pipeline(path, replacements(master, url)), once=once, submitted=submitted, echo=echo)


def run_loaded(pipeline: Pipeline, *, once: bool = False, submitted: bool = False,
               echo: Callable[[str], None] = print) -> bool:
    """The same for a pipeline that is read already."""
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
    """Plan a pipeline over messages that there are none of, in a session on this machine; a line about each flow.

    Raises `PipelineError` where something does not fit. The broker is not asked.
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
    """The flows by name, with their functions loaded and their options read. `PipelineError`."""
    flows = {name: flow_of(pipeline.name, name, flow) for name, flow in pipeline.flows.items()}
    for name, flow in flows.items():
        try:
            read_options(source_options(flow.capture, pipeline.broker, flow.name))
            for exchange in flow.exchanges:
                read_options(sink_options(exchange, pipeline.broker))
        except OptionError as error:
            raise PipelineError(f"flows.{name}: {error}") from None
    return flows


def plan(spark: SparkSession, flows: Mapping[str, Flow], places: bool = False) -> list[str]:
    """Have Spark plan every flow over no messages; what each of them does.

    places  whether what is there where tables are to be is looked at, too
    """
    lines = []
    for name, flow in flows.items():
        try:
            messages = no_messages(spark.newSession(), flow.capture.options.get("columns"))
            flow.check(messages)
            if places:
                flow.check_places(messages)
        except PipelineError as error:
            raise PipelineError(f"flows.{name}: {error}") from None
        except Exception as error:
            text = str(error).strip().splitlines()
            raise PipelineError(f"flows.{name}: {text[0] if text else error.__class__.__name__}") from error
        outputs = [f"table {table.path}" for table in flow.tables]
        outputs += [f"exchange {exchange.exchange!r}" if exchange.exchange is not None else "the rows' exchanges"
                    for exchange in flow.exchanges]
        lines.append(f"{name}: {flow.decode.format} to {', '.join(outputs)}")
    return lines
