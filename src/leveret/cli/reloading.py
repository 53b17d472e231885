"""What of a changed configuration a running broker takes over (SIGHUP)."""

from __future__ import annotations

import msgspec

from leveret.config import Config

# The keys of [tls] that a listener takes over.
_OF_TLS = ("cert", "key", "key_password_file", "ca")


def taken_over(old: Config, new: Config) -> Config:
    """The configuration that a broker has which runs with the old one and is given the new one."""
    tls = old.tls
    if old.tls.cert and new.tls.cert:
        tls = msgspec.structs.replace(tls, **{name: getattr(new.tls, name) for name in _OF_TLS})
    return msgspec.structs.replace(old, tls=tls, limits=new.limits, users=new.users, vhosts=new.vhosts)


def waiting(running: Config, new: Config) -> list[str]:
    """The keys that differ all the same: they wait for a new start."""
    changed = []
    for section in msgspec.structs.fields(Config):
        before, after = getattr(running, section.name), getattr(new, section.name)
        if isinstance(before, msgspec.Struct):
            changed += [f"{section.name}.{field.name}" for field in msgspec.structs.fields(before)
                        if getattr(before, field.name) != getattr(after, field.name)]
    return changed
