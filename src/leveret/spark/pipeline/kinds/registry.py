"""The kinds of flows by their names in pipeline.toml. A new kind is one file and one line here."""

from __future__ import annotations

from typing import Final

from leveret.spark.pipeline.kinds.archive import ArchiveFlow
from leveret.spark.pipeline.kinds.enrich import EnrichFlow
from leveret.spark.pipeline.kinds.flow import PlainFlow
from leveret.spark.pipeline.kinds.scrub import ScrubFlow
from leveret.spark.pipeline.kinds.traffic import TrafficFlow
from leveret.spark.pipeline.model import FlowSection

# The kind of a flow without the key `kind`.
DEFAULT_KIND: Final = "flow"

KINDS: Final[dict[str, type[FlowSection]]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (
        PlainFlow,
        ArchiveFlow,
        TrafficFlow,
        EnrichFlow,
        ScrubFlow,
    )
}
