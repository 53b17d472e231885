"""Configuration: a TOML file, environment variables and flags, in this order of precedence.

The structs in `model` are the only list of keys: the loader, its refusals and `docs/configuration.md` are made from it.
"""

from __future__ import annotations

from leveret.config.load import ConfigError, combine_config, load_config
from leveret.config.model import (
    Amqp09Config,
    Amqp10Config,
    AmqpConfig,
    AuthConfig,
    BrokerConfig,
    CompatConfig,
    Config,
    LimitsConfig,
    PermissionConfig,
    RealmConfig,
    ServerConfig,
    StorageConfig,
    StreamsConfig,
    TlsConfig,
    UserConfig,
    UserLimitsConfig,
    VhostConfig,
    VhostLimitsConfig,
)

__all__ = [
    "Amqp09Config",
    "Amqp10Config",
    "AmqpConfig",
    "AuthConfig",
    "BrokerConfig",
    "CompatConfig",
    "Config",
    "ConfigError",
    "LimitsConfig",
    "PermissionConfig",
    "RealmConfig",
    "ServerConfig",
    "StorageConfig",
    "StreamsConfig",
    "TlsConfig",
    "UserConfig",
    "UserLimitsConfig",
    "VhostConfig",
    "VhostLimitsConfig",
    "combine_config",
    "load_config",
]
