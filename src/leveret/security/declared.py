"""Users and realms declared in the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from leveret.config import ConfigError, UserConfig, VhostConfig
from leveret.security.patterns import Pattern
from leveret.security.permissions import Permission
from leveret.security.users import DeclaredUser, User, UserLimits


def declared_users(users: Mapping[str, UserConfig]) -> dict[str, DeclaredUser]:
    """Convert the users of the configuration for the user store. Reads password files.

    Raises:
        ConfigError: A password file cannot be read or is empty.
    """
    return {name: _declared(name, user) for name, user in users.items()}


def check_realms(vhosts: Mapping[str, VhostConfig]) -> None:
    """Raise ConfigError if RE2 does not support the resource pattern of a realm."""
    for name, vhost in vhosts.items():
        for realm, settings in vhost.realms.items():
            try:
                Pattern(settings.resources, whole=True)
            except ValueError as error:
                raise ConfigError(f"vhosts.{name}.realms.{realm}.resources: {settings.resources[:80]!r} {error}") from None


def _declared(name: str, config: UserConfig) -> DeclaredUser:
    password = config.password.encode() if config.password is not None else None
    if config.password_file is not None:
        password = read_password(Path(config.password_file), f"users.{name}.password_file")
    user = User(
        name=name,
        password_hash=config.password_hash or "",
        tags=tuple(config.tags),
        permissions={vhost: Permission(one.configure, one.write, one.read) for vhost, one in config.permissions.items()},
        limits=UserLimits(config.limits.max_connections, config.limits.max_channels),
    )
    return DeclaredUser(user=user, password=password)


def read_password(path: Path, what: str, expected: str = "the password") -> bytes:
    """Return the first line of a file, without the line end."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{what}: {path} cannot be read: {error.strerror}") from None
    if not lines or not lines[0]:
        raise ConfigError(f"{what}: {path} is empty; expected {expected} in its first line")
    return lines[0]
