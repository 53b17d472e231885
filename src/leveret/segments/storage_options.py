"""The file with options for the file system of a segment URL: credentials, endpoints."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from leveret._text import decode_text, read_json


def read_options(path: str) -> dict[str, Any]:
    """Read options for fsspec from a TOML file, or a JSON file if its name ends in `.json`.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not TOML or JSON, or not a table.
    """
    text = decode_text(Path(path).read_bytes())
    found: object = read_json(text) if path.endswith(".json") else tomllib.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is not a single table")
    return found
