"""Builds flows from the structs of a pipeline.toml. A new kind of flow is a struct in `model` and a line here."""

from __future__ import annotations

from leveret.spark.pipeline import model
from leveret.spark.pipeline.archive import archive_flow
from leveret.spark.pipeline.enrich import enrich_flow
from leveret.spark.pipeline.flow import Flow
from leveret.spark.pipeline.scrub import scrub_flow
from leveret.spark.pipeline.traffic import traffic_flow
from leveret.spark.pipeline.transform import load_transform


def flow_of(pipeline: str, name: str, flow: model.AnyFlow) -> Flow:
    """Build a flow. Raises PipelineError if a function or a file of it does not exist."""
    full = f"{pipeline}.{name}"
    if isinstance(flow, model.ArchiveFlow):
        return archive_flow(full, flow)
    if isinstance(flow, model.TrafficFlow):
        return traffic_flow(full, flow)
    if isinstance(flow, model.EnrichFlow):
        return enrich_flow(full, flow)
    if isinstance(flow, model.ScrubFlow):
        return scrub_flow(full, flow)
    transform = flow.transform
    return Flow(full, flow.capture, flow.decode, None, load_transform(transform) if transform is not None else None,
                transform is not None and transform.scope == "stream",
                transform.output if transform is not None else "append", flow.tables, flow.exchanges, flow.trigger)
