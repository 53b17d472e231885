"""Uploads (staged content) that are incomplete or not published: list, show, discard."""

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
    """`user` and `kind` (file, message) are needed if the identifier is ambiguous."""

    user: str | None = None
    kind: str | None = None


def describe(staged: Staged) -> Item:
    """Describe an upload.

    `octets` is the bytes received so far; `announced` the total, None if unknown; `idle` the seconds since its sender
    disconnected; `timeout` the seconds until it is discarded, None if it does not expire.
    """
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
    return {**describe(staged), "checkpoints": {shown(name): size for name, size in staged.checkpoints.items()}}


def discard(admin: Admin, arguments: OneUpload) -> Item:
    """Discard an upload. A client that is sending it gets an error."""
    staged = _find(admin, arguments)
    if staged.taken:
        raise PreconditionFailed(f"upload '{arguments.name}' is published in a transaction; wait for its commit or"
                                 " rollback")
    size = staged.size
    staged.turn += 1
    staged.discard()
    return {"discarded": size}


def _find(admin: Admin, arguments: OneUpload) -> Staged:
    vhost = admin.vhost(arguments.vhost).name
    try:
        identifier = meant(arguments.name)
    except ValueError:
        raise NotFound(f"'{arguments.name}' is not an identifier: expected hexadecimal digits after 'hex:'") from None
    found = [staged for staged in admin.broker.staging.uploads.values()
             if staged.key[0] == vhost and identifier in (staged.identifier, *staged.checkpoints)
             and arguments.user in (None, staged.key[1]) and arguments.kind in (None, staged.key[2])]
    if not found:
        raise NotFound(f"no upload '{arguments.name}' in vhost '{vhost}'")
    if len(found) > 1:
        candidates = ", ".join(f"{staged.key[2]} of user '{staged.key[1]}'" for staged in found[:5])
        raise PreconditionFailed(f"{len(found)} uploads have the identifier '{arguments.name}': {candidates}; expected"
                                 " the user and kind of one of them")
    return found[0]


CALLS = {
    "staged.list": Call(list_staged, InVhost),
    "staged.show": Call(show, OneUpload),
    "staged.discard": Call(discard, OneUpload, changes=True),
}
