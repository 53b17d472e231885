"""Entry point of the HTTP process that `leveret serve` starts. Its first line of standard input has the settings."""

from __future__ import annotations

import asyncio
import logging

from leveret.cli.child_main import begin
from leveret.cli.logs import set_up_logging
from leveret.management.http.settings import HttpSettings
from leveret.management.recent_log import RecentLog


def main() -> None:
    """Serve the HTTP API until standard input ends."""
    settings, parent = begin(HttpSettings)
    recent = RecentLog()
    set_up_logging(settings.log_level, settings.log_format, recent)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    from leveret.management.http.server import serve

    asyncio.run(serve(settings, parent, recent.records))
