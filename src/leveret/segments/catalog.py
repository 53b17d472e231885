"""Properties of the Iceberg catalog, in pyiceberg's form. Imports nothing from the optional extras."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from leveret._text import decode_text, read_json
from leveret.segments.typed_json import Document

# The catalog's name, which SQLite catalogs store in each row.
CATALOG: Final = "leveret"
DATABASE: Final = "iceberg.db"
WAREHOUSE: Final = "iceberg"


def is_remote(directory: str) -> bool:
    """Return whether a directory is a URL of something else than this machine's files."""
    return "://" in directory and not directory.startswith("file://")


def default_properties(directory: str, data_path: Path) -> dict[str, str]:
    """Return the catalog used when the configuration names none: SQLite in the data directory.

    The metadata is stored beside the segments.

    Args:
        directory: Directory of the segments, a path or a URL.
        data_path: The broker's data directory.
    """
    place = directory.rstrip("/") if "://" in directory else Path(directory).absolute().as_uri()
    return {"type": "sql", "uri": f"sqlite:///{data_path.absolute()}/{DATABASE}", "warehouse": f"{place}/{WAREHOUSE}"}


def read_properties(path: Path) -> dict[str, str]:
    """Read catalog properties from a TOML file, or a JSON file if its name ends in `.json`.

    Raises:
        ValueError: The file cannot be read, or a value is not a string, a number or a boolean.
    """
    try:
        text = decode_text(path.read_bytes())
        found: Document = read_json(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(value, (str, int, float)) for value in found.values()):
        raise ValueError(f'{path}: expected names with strings, numbers or booleans, such as uri = "..."')
    return {str(name): str(value).lower() if isinstance(value, bool) else str(value) for name, value in found.items()}
