"""Status of a running pipeline: a file in its directory, for `leveret pipeline status`."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from leveret.segments.typed_json import Document

FILE = "status.json"

STARTING, RUNNING, WAITING, STOPPED, FINISHED, FAILED = "starting", "running", "waiting", "stopped", "finished", "failed"


@dataclass
class FlowState:
    """Status of one query. Times are in seconds of Unix time, durations in milliseconds."""

    state: str = STARTING
    batch: int = -1
    rows: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    batch_ms: int = 0
    durations: dict[str, int] = field(default_factory=dict)
    offsets: Document = None
    latest: Document = None
    watermark: str | None = None
    restarts: int = 0
    error: str | None = None
    updated: float = 0.0

    def update(self, progress: Document) -> None:
        """Update from a Spark progress report, which may be a repeated one."""
        sources = progress["sources"]
        batch = int(progress["batchId"])
        if batch > self.batch:
            self.rows += int(progress["numInputRows"])
        self.batch = max(batch, self.batch)
        self.rows_per_second = float(progress["processedRowsPerSecond"] or 0.0)
        self.batch_ms = int(progress["batchDuration"])
        self.durations = dict(progress["durationMs"])
        self.watermark = dict(progress["eventTime"] or {}).get("watermark")
        self.offsets = [_json(source["endOffset"]) for source in sources]
        self.latest = [_json(source["latestOffset"]) for source in sources]
        self.lag = lag_of(self.latest)
        if self.lag is None and not progress["numInputRows"]:
            # A trigger without rows reports no offsets, because there is nothing to read.
            self.lag = 0
        self.updated = time.time()


def _json(text: Document) -> Document:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def lag_of(latest: list[Document]) -> int | None:
    """Return the lag that the data source reports in its latest offsets; None if it reports none."""
    lags = [source["lag"] for source in latest if isinstance(source, Mapping) and isinstance(source.get("lag"), int)]
    return sum(lags) if lags else None


class StateFile:
    """The status file; it is replaced atomically."""

    def __init__(self, directory: str, pipeline: str, master: str) -> None:
        self._path = Path(directory) / FILE
        self._about = {
            "pipeline": pipeline,
            "master": master,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": time.time(),
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, state: str, flows: Mapping[str, FlowState]) -> None:
        value = {
            **self._about,
            "state": state,
            "updated": time.time(),
            "flows": {name: asdict(flow) for name, flow in flows.items()},
        }
        temporary = self._path.with_suffix(".tmp")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(value, file)
        os.replace(temporary, self._path)


def read_state(directory: str) -> dict[str, Document] | None:
    """Read the status, adding `alive` (whether the process exists); None if there is none."""
    try:
        value: dict[str, Document] = json.loads((Path(directory) / FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    value["alive"] = value["state"] not in (STOPPED, FINISHED, FAILED) and _is_alive(value)
    return value


def _is_alive(value: Mapping[str, Document]) -> bool:
    if value["host"] != socket.gethostname():
        # The process is on another machine, so only the age of the file is known.
        return bool(time.time() - value["updated"] < 60)
    try:
        os.kill(int(value["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
