"""The telemetry process: exports until the broker's process ends."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import BinaryIO, Final

from opentelemetry.sdk.resources import Resource

from leveret.management.http.control import Control
from leveret.management.parent import wait_for_end
from leveret.management.telemetry.collector import Collector
from leveret.management.telemetry.metrics import Metrics
from leveret.management.telemetry.settings import TelemetrySettings
from leveret.management.telemetry.traces import Traces

log = logging.getLogger("leveret.telemetry")

# Seconds for the last export.
_STOP_TIMEOUT: Final = 1.0
_MAX_CALLS: Final = 2


async def export(settings: TelemetrySettings, parent: BinaryIO) -> None:
    """Export until the broker's process closes its end of `parent`, and then once more."""
    control = Control(Path(settings.control), _MAX_CALLS)
    collector = Collector(settings.endpoint)
    resource = Resource.create(
        {
            "service.name": settings.service_name,
            "service.version": settings.version,
            "service.instance.id": settings.node,
        }
    )
    stopping = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    if settings.traces:
        traces = Traces(control, collector, resource, settings.endpoint, settings.version)
        tasks.append(asyncio.create_task(traces.run(stopping)))
    if settings.metrics:
        metrics = Metrics(control, collector, resource, settings)
        tasks.append(asyncio.create_task(metrics.run(stopping)))
    log.info("exporting to %s", settings.endpoint)
    ended = asyncio.create_task(wait_for_end(parent))
    done, _ = await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()  # raises the error of a task, so that the broker restarts the process
    stopping.set()
    if tasks:
        await asyncio.wait(tasks, timeout=_STOP_TIMEOUT)
