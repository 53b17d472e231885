"""Renamed settings. The loader rejects the old names with a pointer to the new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from leveret.config.errors import ConfigError
from leveret.config.values import Setting

RENAMED_SETTINGS: Final = {
    "staging": "uploads",
    "staging.max_per_user": "uploads.max_per_user",
    "staging.max_octets": "uploads.max_bytes",
    "staging.timeout": "uploads.timeout",
    "stages": "sink_transactions",
    "stages.size": "sink_transactions.max_bytes",
    "stages.count": "sink_transactions.max_per_vhost",
    "stages.apps": "sink_transactions.max_apps",
    "stages.timeout": "sink_transactions.timeout",
    "dtx.count": "dtx.max_branches",
    "dtx.size": "dtx.max_bytes",
}


def refuse_renamed(path: Sequence[str], value: Setting, source: str) -> None:
    """Raise `ConfigError` for the old name of a renamed setting.

    Args:
        path: The name of a setting or a section.
        value: The value. If it is the table of a renamed section, the error names a key in it.
        source: The source of the setting.
    """
    name = ".".join(path)
    keys = value if isinstance(value, Mapping) else ()
    for candidate in (*(f"{name}.{key}" for key in keys), name, *path[:1]):
        if candidate in RENAMED_SETTINGS:
            new = RENAMED_SETTINGS[candidate]
            raise ConfigError(f"{source}: unknown setting '{candidate}': it was renamed to '{new}'")
