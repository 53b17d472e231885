"""Entry point of the telemetry process that `leveret serve` starts. Its first line of standard input has the settings."""

from __future__ import annotations

import asyncio
import logging
import os

from leveret.cli.child_main import begin
from leveret.cli.logs import set_up_logging
from leveret.management.telemetry.settings import TelemetrySettings


def main() -> None:
    """Export spans and metrics until standard input ends."""
    settings, parent = begin(TelemetrySettings)
    set_up_logging(settings.log_level, settings.log_format)
    from leveret.management.telemetry.exporting import export

    async def run() -> None:
        await export(settings, parent)
        logging.shutdown()
        os._exit(0)  # a thread may still wait for the collector

    asyncio.run(run())
