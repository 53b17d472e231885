"""The shovels of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from leveret.broker.errors import PreconditionFailed
from leveret.config import ConfigError, ShovelConfig

if TYPE_CHECKING:
    from leveret.shovel.definition import Definition


def static_shovels(shovels: Mapping[str, ShovelConfig]) -> dict[tuple[str, str], tuple[Definition, str]]:
    """Return the definitions by vhost and name, each with its user. Raises `ConfigError`, which names the setting."""
    if not shovels:
        return {}
    from leveret.shovel.definition import read_settings  # imports the client, which other brokers do not need

    found = {}
    for name, shovel in shovels.items():
        given = {key: value for key, value in msgspec.structs.asdict(shovel).items() if value is not None}
        vhost, user = given.pop("vhost"), given.pop("user")
        try:
            found[vhost, name] = read_settings(name, given), user
        except PreconditionFailed as error:
            raise ConfigError(str(error)) from None
    return found
