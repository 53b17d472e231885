"""Pipelines on Spark: capture messages, decode and transform them, and write them to tables and exchanges, exactly once.

`run_pipeline` runs a pipeline.toml, and `compact` compacts a table. The ready-made pipelines are also functions that start
streaming queries or run jobs in a session of the caller: `archive`, `replay`, `deadletters`, `redrive`, `traffic`,
`enrich`, `scrub`.
"""

from __future__ import annotations

from leveret.spark.pipeline.commands.deadletters import deadletters, triaged
from leveret.spark.pipeline.commands.redrive import redrive
from leveret.spark.pipeline.commands.replay import replay
from leveret.spark.pipeline.compaction.compact import compact
from leveret.spark.pipeline.compaction.merging import Compacted
from leveret.spark.pipeline.decoding.decode import decoded
from leveret.spark.pipeline.definition import Flow
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.flow import start_flow
from leveret.spark.pipeline.kinds.archive import archive
from leveret.spark.pipeline.kinds.enrich import enrich
from leveret.spark.pipeline.kinds.masking import Rule
from leveret.spark.pipeline.kinds.scrub import scrub, scrubbed
from leveret.spark.pipeline.kinds.traffic import traffic
from leveret.spark.pipeline.load import load_pipeline
from leveret.spark.pipeline.model import Broker, Capture, Decode, ExchangeOutput, StaticTable, TableOutput
from leveret.spark.pipeline.reports.traffic_report import write_traffic_report
from leveret.spark.pipeline.run import check_pipeline, run_pipeline
from leveret.spark.pipeline.session import make_session

__all__ = [
    "Broker",
    "Capture",
    "Compacted",
    "Decode",
    "ExchangeOutput",
    "Flow",
    "PipelineError",
    "Rule",
    "StaticTable",
    "TableOutput",
    "archive",
    "check_pipeline",
    "compact",
    "deadletters",
    "decoded",
    "enrich",
    "load_pipeline",
    "make_session",
    "redrive",
    "replay",
    "run_pipeline",
    "scrub",
    "scrubbed",
    "start_flow",
    "traffic",
    "triaged",
    "write_traffic_report",
]
