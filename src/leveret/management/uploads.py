"""Uploads (staged content) that are incomplete or not published: list, show, discard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leveret.broker.branch import meant, shown
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.management.calls import Call, InVhost, Item, NamedInVhost, plain

if TYPE_CHECKING:
    from leveret.broker.uploads import Upload
    from leveret.management.admin import Admin


class OneUpload(NamedInVhost, kw_only=True):
    """`user` and `kind` (file, message) are needed if the identifier is ambiguous."""

    user: str | None = None
    kind: str | None = None


def describe(upload: Upload) -> Item:
    """Describe an upload.

    `octets` is the bytes received so far; `announced` the total, None if unknown; `idle` the seconds since its sender
    disconnected; `timeout` the seconds until it is discarded, None if it does not expire.
    """
    vhost, user, kind, _ = upload.key
    uploads = upload.manager
    state = "published in a transaction" if upload.taken else "open" if upload.owner is not None else (
        "complete" if upload.complete else "incomplete")
    idle = max(uploads.broker.timers.now() - upload.idle_since, 0) if upload.owner is None else 0
    waits = upload.owner is None and not upload.taken and uploads.settings.timeout > 0
    return {"vhost": vhost, "identifier": shown(upload.identifier), "kind": kind, "user": plain(user), "state": state,
            "octets": upload.size, "announced": upload.announced, "checkpoints": len(upload.checkpoints),
            "idle": idle // 1000, "timeout": max(uploads.settings.timeout - idle, 0) // 1000 if waits else None}


def list_uploads(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    names = {vhost.name for vhost in admin.vhosts(arguments.vhost)}
    return (describe(upload) for upload in list(admin.broker.uploads.by_key.values()) if upload.key[0] in names)


def show(admin: Admin, arguments: OneUpload) -> Item:
    upload = _find(admin, arguments)
    return {**describe(upload), "checkpoints": {shown(name): size for name, size in upload.checkpoints.items()}}


def discard(admin: Admin, arguments: OneUpload) -> Item:
    """Discard an upload. A client that is sending it gets an error."""
    upload = _find(admin, arguments)
    if upload.taken:
        raise PreconditionFailed(f"upload '{arguments.name}' is published in a transaction; wait for its commit or"
                                 " rollback")
    size = upload.size
    upload.turn += 1
    upload.discard()
    return {"discarded": size}


def _find(admin: Admin, arguments: OneUpload) -> Upload:
    vhost = admin.vhost(arguments.vhost).name
    try:
        identifier = meant(arguments.name)
    except ValueError:
        raise NotFound(f"'{arguments.name}' is not an identifier: expected hexadecimal digits after 'hex:'") from None
    found = [upload for upload in admin.broker.uploads.by_key.values()
             if upload.key[0] == vhost and identifier in (upload.identifier, *upload.checkpoints)
             and arguments.user in (None, upload.key[1]) and arguments.kind in (None, upload.key[2])]
    if not found:
        raise NotFound(f"no upload '{arguments.name}' in vhost '{vhost}'")
    if len(found) > 1:
        candidates = ", ".join(f"{upload.key[2]} of user '{upload.key[1]}'" for upload in found[:5])
        raise PreconditionFailed(f"{len(found)} uploads have the identifier '{arguments.name}': {candidates}; expected"
                                 " the user and kind of one of them")
    return found[0]


CALLS = {
    "staged.list": Call(list_uploads, InVhost),
    "staged.show": Call(show, OneUpload),
    "staged.discard": Call(discard, OneUpload, changes=True),
}
