"""The properties of the Iceberg catalog, as pyiceberg has them. Imports nothing that the extras bring."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Final

# What the catalog is called, and with it its tables in SQLite.
CATALOG: Final = "leveret"
DATABASE: Final = "iceberg.db"
WAREHOUSE: Final = "iceberg"


def default_properties(directory: str, data_path: Path) -> dict[str, str]:
    """The catalog where the configuration names none: SQLite in the data directory, metadata beside the segments, whose
    directory is a path or a URL."""
    place = directory.rstrip("/") if "://" in directory else Path(directory).absolute().as_uri()
    return {"type": "sql", "uri": f"sqlite:///{data_path.absolute()}/{DATABASE}", "warehouse": f"{place}/{WAREHOUSE}"}


def read_properties(path: Path) -> dict[str, str]:
    """Those of a file in TOML, or JSON where it is called so: names and texts, numbers or booleans. ValueError where it
    cannot be read."""
    try:
        text = path.read_text("utf-8")
        found: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(value, (str, int, float)) for value in found.values()):
        raise ValueError(f"{path}: expected names with texts, numbers or booleans, such as uri = \"...\"")
    return {str(name): str(value).lower() if isinstance(value, bool) else str(value) for name, value in found.items()}
