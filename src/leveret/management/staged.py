"""Staged contents, which wait for the rest of their octets or to be published: list, show, discard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leveret.broker.branch import meant, shown
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.management.calls import Call, InVhost, Item, NamedInVhost, plain

if TYPE_CHECKING:
    from leveret.broker.staging import Staged
    from leveret.management.admin import Admin


class OneUpload(NamedInVhost, kw_only=True):
    """`user` and `kind` (file, message) where the identifier is not enough."""

    user: str | None = None
    kind: str | None = None


def describe(staged: Staged) -> Item:
    """`octets`: there so far; `announced`: how many it will have, None where nobody knows; `idle`: seconds since its sender
    has gone; `timeout`: seconds until it is given up, None while it is not going to be."""
    vhost, user, kind, _ = staged.key
    staging = staged.staging
    state = "published in a transaction" if staged.taken else "open" if staged.owner is not None else (
        "complete" if staged.complete else "incomplete")
    idle = max(staging.broker.timers.now() - staged.idle_since, 0) if staged.owner is None else 0
    waits = staged.owner is None and not staged.taken and staging.settings.timeout > 0
    return {"vhost": vhost, "identifier": shown(staged.identifier), "kind": kind, "user": plain(user), "state": state,
            "octets": staged.size, "announced": staged.announced, "checkpoints": len(staged.checkpoints),
            "idle": idle // 1000, "timeout": max(staging.settings.timeout - idle, 0) // 1000 if waits else None}


def list_staged(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    names = {vhost.name for vhost in admin.vhosts(arguments.vhost)}
    return (describe(staged) for staged in list(admin.broker.staging.uploads.values()) if staged.key[0] in names)


def show(admin: Admin, arguments: OneUpload) -> Item:
    staged = _find(admin, arguments)
    return {**describe(staged), "checkpoints": {shown(name): octets for name, octets in staged.checkpoints.items()}}


def discard(admin: Admin, arguments: OneUpload) -> Item:
    """Give an upload up. Whoever is sending it finds that it is not theirs any more."""
    staged = _find(admin, arguments)
    if staged.taken:
        raise PreconditionFailed(f"staged content '{arguments.name}' is published in a transaction; expected one that is"
                                 " not, after its commit or roll-back")
    octets = staged.size
    staged.turn += 1
    staged.discard()
    return {"discarded": octets}


def _find(admin: Admin, arguments: OneUpload) -> Staged:
    vhost = admin.vhost(arguments.vhost).name
    try:
        identifier = meant(arguments.name)
    except ValueError:
        raise NotFound(f"'{arguments.name}' is no identifier: hexadecimal digits are expected after 'hex:'") from None
    found = [staged for staged in admin.broker.staging.uploads.values()
             if staged.key[0] == vhost and identifier in (staged.identifier, *staged.checkpoints)
             and arguments.user in (None, staged.key[1]) and arguments.kind in (None, staged.key[2])]
    if not found:
        raise NotFound(f"no staged content '{arguments.name}' in vhost '{vhost}'")
    if len(found) > 1:
        those = ", ".join(f"{staged.key[2]} of user '{staged.key[1]}'" for staged in found[:5])
        raise PreconditionFailed(f"{len(found)} staged contents have the identifier '{arguments.name}': {those}; expected"
                                 " user and kind to choose one")
    return found[0]


CALLS = {
    "staged.list": Call(list_staged, InVhost),
    "staged.show": Call(show, OneUpload),
    "staged.discard": Call(discard, OneUpload, changes=True),
}
