"""Records of messages that a batch read skipped because retention removed them: one file per range.

A task can only report success or failure to the driver, and a batch read has no progress, hence files.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from urllib.parse import quote

from leveret.spark.errors import ReadFailed
from leveret.storage import disk


def record_loss(directory: str, stream: str, first: int, stop: int) -> None:
    """Record that the messages from `first` to before `stop` were lost.

    A retried task writes the same file again.

    Raises:
        ReadFailed: The file cannot be written; losses are never silent.
    """
    target = Path(directory)
    content = json.dumps({"stream": stream, "first_offset": first, "last_offset": stop - 1, "messages": stop - first,
                          "time": time.time()})
    file = target / f"{quote(stream, safe='')[:150]}-{first:020}-{stop - 1:020}.json"
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        disk.make_directories(target)
        disk.write_synced(temporary, content.encode("utf-8"))
        temporary.replace(file)
        disk.sync_directory(target)
    except OSError as error:
        raise ReadFailed(f"option lossDirectory: {directory!r} cannot be written ({error.strerror}), and messages of "
                         f"stream {stream!r} from offset {first} to {stop - 1} are lost; expected a directory that the "
                         "driver and all workers can write to") from None
