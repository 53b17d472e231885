"""Plans of batches on a local file system: which files of a table a repeated batch will look for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from leveret.spark.pipeline.output.table_lock import OWN
from leveret.storage import disk


def unfinished_targets(root: Path) -> Iterator[str]:
    """Yield the files, relative to the table, of batches whose files are not all in the table; for holders of the lock."""
    for application in (root / OWN).iterdir():
        if not application.is_dir():
            continue
        # After a power failure, the directory of a batch must not return that is missing now.
        disk.sync_directory(application)
        for plan in application.glob("*.json"):
            if plan.with_suffix("").exists():
                for _, target in json.loads(plan.read_text()):
                    yield target
