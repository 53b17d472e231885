"""Configuration from a TOML file, environment variables and flags, in ascending precedence.

The structs in `model` define the settings. The loader, its errors and `docs/configuration.md` derive from them.
"""

from __future__ import annotations

from leveret.config.check import is_address
from leveret.config.load import ConfigError, Flags, combine_config, load_config, trace_config
from leveret.config.model import (
    Amqp09Config,
    Amqp10Config,
    AmqpConfig,
    AuthConfig,
    BrokerConfig,
    ClusterTlsConfig,
    CompatConfig,
    Config,
    LimitsConfig,
    MailConfig,
    OAuthConfig,
    OAuthProviderConfig,
    PermissionConfig,
    RealmConfig,
    ServerConfig,
    ShovelConfig,
    StorageConfig,
    StreamsConfig,
    TlsConfig,
    UserConfig,
    UserLimitsConfig,
    VhostConfig,
    VhostLimitsConfig,
    WebhookConfig,
)

__all__ = [
    "Amqp09Config",
    "Amqp10Config",
    "AmqpConfig",
    "AuthConfig",
    "BrokerConfig",
    "ClusterTlsConfig",
    "CompatConfig",
    "Config",
    "ConfigError",
    "Flags",
    "LimitsConfig",
    "MailConfig",
    "OAuthConfig",
    "OAuthProviderConfig",
    "PermissionConfig",
    "RealmConfig",
    "ServerConfig",
    "ShovelConfig",
    "StorageConfig",
    "StreamsConfig",
    "TlsConfig",
    "UserConfig",
    "UserLimitsConfig",
    "VhostConfig",
    "VhostLimitsConfig",
    "WebhookConfig",
    "combine_config",
    "is_address",
    "load_config",
    "trace_config",
]
