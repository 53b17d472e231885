"""The settings that a running broker applies on SIGHUP."""

from __future__ import annotations

import msgspec

from leveret.config import Config

# The keys of [tls] that a listener can reload.
_RELOADABLE_TLS = ("cert", "key", "key_password_file", "ca")


def reloaded(old: Config, new: Config) -> Config:
    """Return the old configuration, updated with the new settings that apply without a restart."""
    tls = old.tls
    if old.tls.cert and new.tls.cert:
        tls = msgspec.structs.replace(tls, **{name: getattr(new.tls, name) for name in _RELOADABLE_TLS})
    return msgspec.structs.replace(old, tls=tls, limits=new.limits, users=new.users, vhosts=new.vhosts)


def needing_restart(running: Config, new: Config) -> list[str]:
    """Return the names of changed settings that require a restart."""
    changed = []
    for section in msgspec.structs.fields(Config):
        before, after = getattr(running, section.name), getattr(new, section.name)
        if isinstance(before, msgspec.Struct):
            changed += [
                f"{section.name}.{field.name}"
                for field in msgspec.structs.fields(before)
                if getattr(before, field.name) != getattr(after, field.name)
            ]
    return changed
