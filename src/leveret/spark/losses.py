"""What a batch read leaves out because retention was faster: a file for each range, in a directory that the user names.

A task can tell the driver whether it has failed, and nothing else; and a batch read has no progress that would show it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from urllib.parse import quote

from leveret.spark.errors import ReadFailed
from leveret.storage import disk


def note_loss(directory: str, stream: str, first: int, stop: int) -> None:
    """Write that the messages from `first` to before `stop` were lost. The same again, as of a task that is repeated, is
    the same file. `ReadFailed` if it cannot be written: nothing is left out in silence."""
    place = Path(directory)
    content = json.dumps({"stream": stream, "first_offset": first, "last_offset": stop - 1, "messages": stop - first,
                          "time": time.time()})
    file = place / f"{quote(stream, safe='')[:150]}-{first:020}-{stop - 1:020}.json"
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        disk.make_directories(place)
        disk.write_synced(beside, content.encode("utf-8"))
        beside.replace(file)
        disk.sync_directory(place)
    except OSError as error:
        raise ReadFailed(f"option lossDirectory: {directory!r} cannot be written ({error.strerror}), and messages of stream"
                         f" {stream!r} from offset {first} to {stop - 1} are gone; expected a directory that the driver and"
                         " all workers may write to") from None
