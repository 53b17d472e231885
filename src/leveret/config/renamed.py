"""Settings of earlier versions that have another name now. They are not aliases: the loader refuses them."""

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
    """Raise `ConfigError` if a setting has an earlier name.

    Args:
        path: The name of a setting or a section.
        value: The value. If it is the table of a renamed section, the error names a key in it.
        source: Where the setting was given.
    """
    name = ".".join(path)
    keys = value if isinstance(value, Mapping) else ()
    for candidate in (*(f"{name}.{key}" for key in keys), name, *path[:1]):
        if candidate in RENAMED_SETTINGS:
            new = RENAMED_SETTINGS[candidate]
            raise ConfigError(f"{source}: unknown setting '{candidate}': it is called '{new}' now")
