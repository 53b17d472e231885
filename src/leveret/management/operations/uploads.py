"""Incomplete and unpublished uploads (staged content): list, show, discard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.transactions.branch import format_identifier, parse_identifier
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.structs import InVhost, NamedInVhost, Reply

if TYPE_CHECKING:
    from leveret.broker.uploads import Upload


class OneUpload(NamedInVhost, kw_only=True):
    """Request about an upload. `user` and `kind` (file, message) are required if the identifier is ambiguous."""

    user: str | None = None
    kind: str | None = None


class UploadInfo(Reply, kw_only=True):
    """An upload. In lists, `checkpoints` is their number.

    `octets` is the size received in bytes, `announced` the total or None, `idle` the seconds since the sender
    disconnected, and `timeout` the seconds until the upload expires or None.
    """

    vhost: str
    identifier: str
    kind: str
    user: str
    state: str
    octets: int
    announced: int | None
    checkpoints: int | dict[str, int]
    idle: int
    timeout: int | None


class Discarded(Reply, kw_only=True):
    """The number of discarded bytes."""

    discarded: int


def describe(upload: Upload) -> UploadInfo:
    """Describe an upload."""
    vhost, user, kind, _ = upload.key
    uploads = upload.manager
    state = (
        "published in a transaction"
        if upload.taken
        else "open"
        if upload.owner is not None
        else ("complete" if upload.complete else "incomplete")
    )
    idle = max(uploads.broker.timers.now() - upload.idle_since, 0) if upload.owner is None else 0
    waits = upload.owner is None and not upload.taken and uploads.settings.timeout > 0
    return UploadInfo(
        vhost=vhost,
        identifier=format_identifier(upload.identifier),
        kind=kind,
        user=user,
        state=state,
        octets=upload.size,
        announced=upload.announced,
        checkpoints=len(upload.checkpoints),
        idle=idle // 1000,
        timeout=max(uploads.settings.timeout - idle, 0) // 1000 if waits else None,
    )


def list_uploads(context: Context, request: InVhost) -> Iterator[UploadInfo]:
    """List uploads."""
    names = {vhost.name for vhost in context.vhosts(request.vhost)}
    return (describe(upload) for upload in list(context.broker.uploads.by_key.values()) if upload.key[0] in names)


def show(context: Context, request: OneUpload) -> UploadInfo:
    """Return an upload with the sizes at its checkpoints."""
    upload = _find(context, request)
    found = describe(upload)
    found.checkpoints = {format_identifier(name): size for name, size in upload.checkpoints.items()}
    return found


def discard(context: Context, request: OneUpload) -> Discarded:
    """Discard an upload. A client that is still sending it gets an error."""
    upload = _find(context, request)
    if upload.taken:
        raise PreconditionFailed(f"upload '{request.name}' is part of a transaction; wait for its commit or rollback")
    size = upload.size
    upload.revoke()
    return Discarded(discarded=size)


def _find(context: Context, request: OneUpload) -> Upload:
    vhost = context.vhost(request.vhost).name
    try:
        identifier = parse_identifier(request.name)
    except ValueError:
        raise NotFound(f"'{request.name}' is not an identifier: expected hexadecimal digits after 'hex:'") from None
    found = [
        upload
        for upload in context.broker.uploads.by_key.values()
        if upload.key[0] == vhost
        and identifier in (upload.identifier, *upload.checkpoints)
        and request.user in (None, upload.key[1])
        and request.kind in (None, upload.key[2])
    ]
    if not found:
        raise NotFound(f"upload '{request.name}' does not exist in vhost '{vhost}'")
    if len(found) > 1:
        candidates = ", ".join(f"{upload.key[2]} of user '{upload.key[1]}'" for upload in found[:5])
        raise PreconditionFailed(
            f"{len(found)} uploads have the identifier '{request.name}': {candidates}; expected"
            " the user and kind of one of them"
        )
    return found[0]


OPERATIONS: Operations = {
    "staged.list": Operation(list_uploads, InVhost, UploadInfo),
    "staged.show": Operation(show, OneUpload, UploadInfo),
    "staged.discard": Operation(discard, OneUpload, Discarded, changes=True),
}
