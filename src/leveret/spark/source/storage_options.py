"""Options for the file systems of segment URLs: credentials, endpoints.

The broker never sends them. They come from the environment of the reading process, in the form that each file system
defines, or from a file on the driver and every worker; plans, checkpoints and partitions contain only its path.
"""

from __future__ import annotations

import tomllib

from leveret._text import decode_text, read_json
from leveret.segments.typed_json import Document
from leveret.spark.errors import OptionError


def storage_options(path: str | None) -> dict[str, Document] | None:
    """Read the options from a TOML file, or a JSON file if its name ends in `.json`.

    Raises:
        OptionError: The file is unreadable. The message does not include its content.
    """
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            text = decode_text(file.read())
        found = read_json(text) if path.endswith(".json") else tomllib.loads(text)
    except OSError as error:
        raise _unusable(path, f"cannot be read ({error.strerror})") from None
    except ValueError:
        raise _unusable(path, f"is not valid {'JSON' if path.endswith('.json') else 'TOML'}") from None
    if not isinstance(found, dict):
        raise _unusable(path, "is not a single table")
    return found


def _unusable(path: str, what: str) -> OptionError:
    return OptionError(
        f"option storageOptionsFile: {path!r} {what}; expected a file like that of the broker's setting "
        "streams.storage_options_file, which the driver and all workers can read"
    )
