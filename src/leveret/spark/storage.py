"""What file systems are told besides the URLs of segments: credentials, endpoints.

The broker never says them. They come from the environment of the process that reads, as each file system has it, or from a
file that is there on the driver and on every worker; plans, checkpoints and partitions have the path of that file alone.
"""

from __future__ import annotations

import json
import tomllib
from typing import Any

from leveret.spark.errors import OptionError


def storage_options(path: str | None) -> dict[str, Any] | None:
    """The contents of the file, in TOML or, where its name ends so, JSON. `OptionError` where it cannot be read; it shows
    nothing of them."""
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        found = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
    except OSError as error:
        raise _useless(path, f"cannot be read ({error.strerror})") from None
    except ValueError:
        raise _useless(path, f"is no {'JSON' if path.endswith('.json') else 'TOML'}") from None
    if not isinstance(found, dict):
        raise _useless(path, "holds something else than one table")
    return found


def _useless(path: str, what: str) -> OptionError:
    return OptionError(f"option storageOptionsFile: {path!r} {what}; expected a file like that of the broker's setting "
                       "streams.storage_options_file, readable by the driver and by every worker")
