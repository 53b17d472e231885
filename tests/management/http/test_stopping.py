"""The end of the process, or of the thread in an embedded broker."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgspec

from leveret.config import Config
from leveret.management.http.app import Application
from leveret.management.http.control import Control
from leveret.management.recent_log import LogRecords
from leveret.node.http_endpoint import HttpEndpoint


def test_threads_end_if_the_databases_are_still_being_opened(tmp_path: Path) -> None:
    control = Control(tmp_path / "control")
    settings = msgspec.structs.replace(HttpEndpoint(Config(), tmp_path).settings(), listeners=["http://127.0.0.1:1/"])
    before = set(threading.enumerate())

    async def main() -> None:
        application = Application(settings, control, control, LogRecords())
        statistics = asyncio.create_task(application.keep_statistics())
        while set(threading.enumerate()) <= before:
            await asyncio.sleep(0)
        statistics.cancel()
        await asyncio.wait([statistics])
        assert statistics.cancelled()

    asyncio.run(main())
    assert set(threading.enumerate()) <= before
    assert not list(tmp_path.glob("*-wal"))  # each database was closed
