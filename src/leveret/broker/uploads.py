"""Resumable uploads (staged content in AMQP 0-9), which outlive the connection that sends them.

An upload belongs to a user of a vhost and is found by an identifier that the sender chose, or by its checkpoints. An upload
without an identifier ends with its sender until it has a checkpoint. Its bytes are kept in a file in the data directory if
the store has one (`UploadStore`), else in memory. The log records the upload, so that it survives a kill -9. That record is
removed in the same log commit that stores the published message. The bytes of an interrupted upload, and those before a
checkpoint, are synced.
"""

from __future__ import annotations

import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from leveret.broker import metadata
from leveret.broker.bodies import Body, StoredBody
from leveret.broker.errors import (
    BrokerError,
    ContentTooLarge,
    PreconditionFailed,
    ResourceError,
    ResourceLocked,
    StorageFailed,
)
from leveret.broker.kept_files import STAGED
from leveret.broker.log import CommitWaiter, Recovery
from leveret.broker.metadata import Record
from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

logger = logging.getLogger("leveret.broker")

# Maximum size of a body that is published from memory; delivery expects only larger ones to be stored elsewhere.
IN_MEMORY: Final = 512 << 10
# Unsynced bytes of an upload in progress that start a sync in the background.
SYNC_BYTES: Final = 4 << 20
# Maximum number of checkpoints of an upload.
MAX_CHECKPOINTS: Final = 64
# Maximum interval in milliseconds between two sweeps.
MAX_SWEEP_INTERVAL: Final = 3_600_000

# Called with None on success, else with the error.
SyncCallback = Callable[[BrokerError | None], None]
# Vhost, user, kind ("file", "message") and identifier; of a checkpoint likewise.
Key = tuple[str, str, str, str]


class UploadBody(StoredBody):
    """The bytes of an upload. They are removed with the last reference to the object unless `keep` was called."""

    __slots__ = ()

    @abstractmethod
    def cut(self, size: int) -> None:
        """Truncate to a size. Raises `OSError`."""

    @abstractmethod
    def sync(self) -> None:
        """Sync all bytes to disk. Blocks; safe in any thread. Raises `OSError`."""

    def close(self) -> None:
        """Close the file until the next append."""

    def keep(self) -> None:
        """Keep the bytes for the next process."""


class UploadStore(ABC):
    """Storage of the bytes of uploads that survives a restart.

    Attributes:
        is_shared: Whether another broker that takes over the log finds the bytes here, and may use them at once.
        unshared: What to set so that it finds them; "" if no other broker takes over the log, or it finds them.
        is_pinned: Whether removed bodies are kept for a backup.
    """

    is_shared = False
    unshared = ""
    is_pinned = False

    @abstractmethod
    def attach(self, identity: str) -> None:
        """Use the bodies of the log with this identity. Called before any other method."""

    @abstractmethod
    def create(self, name: str, size: int | None) -> UploadBody:
        """Create a body under a new name.

        Args:
            name: Name of the body.
            size: Announced size in bytes; None if it is not known.

        Raises:
            ContentTooLarge: If the disk has no room for it.
        """

    @abstractmethod
    def find(self, name: str, size: int | None) -> UploadBody | None:
        """Return the body that an earlier process left under a name; None if there is none."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all bodies."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove the bodies that earlier processes left under these names."""

    @abstractmethod
    def pin(self) -> str:
        """Keep the files of removed bodies until `unpin`, so that they can be copied. Return their directory."""

    @abstractmethod
    def unpin(self) -> None:
        """Begin to remove the files that were kept."""


class _InMemory(UploadBody):
    """Upload in memory, for a store without a data directory."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def append(self, data: bytes) -> None:
        self.pieces.append(data)
        self.size += len(data)

    def cut(self, size: int) -> None:
        self.pieces = [b"".join(self.pieces)[:size]]
        self.size = size

    def sync(self) -> None:
        """Do nothing: the bytes are in memory only."""


class UploadSettings:
    """Limits of uploads.

    Attributes:
        max_per_user: Maximum number of uploads of one user in one vhost.
        max_bytes: Maximum size of one upload.
        timeout: Milliseconds after which an interrupted upload is discarded; 0 for never.
    """

    def __init__(self, max_per_user: int = 1000, max_bytes: int = 16 << 30, timeout: int = 86_400_000) -> None:
        self.max_per_user = max_per_user
        self.max_bytes = max_bytes
        self.timeout = timeout


class Upload:
    """One upload.

    Attributes:
        key: Vhost, user, kind and identifier.
        announced: Announced size in bytes; None if the sender did not announce one.
        header: Encoded properties of the content; b"" until `describe`.
        checkpoints: Sizes by checkpoint name, the last one at the end.
        synced: Number of bytes known to be on disk; a crash may lose the rest.
        known: Whether the log records the upload, so that it survives a crash.
        owner: The sender; None while it is not being sent.
        turn: Number of times that a sender took it over.
        taken: Whether a transaction is about to publish it.
    """

    def __init__(self, manager: Uploads, key: Key, name: str, announced: int | None, body: UploadBody) -> None:
        self.manager = manager
        self.key = key
        self.name = name
        self.announced = announced
        self.body = body
        self.header = b""
        self.checkpoints: dict[str, int] = {}
        self.synced = 0
        self.known = True
        self.owner: object | None = None
        self.turn = 0
        self.taken = False
        self.idle_since = manager.broker.timers.now()
        self._confirming = False

    @property
    def size(self) -> int:
        """Bytes received so far."""
        return self.body.size

    @property
    def identifier(self) -> str:
        """The name by which the sender resumes the upload: the last checkpoint, else the identifier."""
        return next(reversed(self.checkpoints), self.key[3])

    @property
    def complete(self) -> bool:
        """Whether the announced size and the properties have arrived."""
        return self.announced == self.body.size and bool(self.header)

    def append(self, data: bytes) -> None:
        """Append data.

        Raises:
            ContentTooLarge: If the upload exceeds its announced size, the limit, or the room on the disk.
            StorageFailed: If another broker may have taken over the upload.
        """
        self.manager.check_owned(self.key[3])
        size = self.body.size + len(data)
        if self.announced is not None and size > self.announced:
            raise ContentTooLarge(
                f"upload '{self.key[3]}' exceeds its announced size: expected {self.announced} bytes, got {size}"
            )
        self.manager.check_size(size)
        self.body.append(data)

    def claim(self) -> None:
        """Reserve the upload for a transaction, which publishes it when it commits."""
        self.taken = True

    def unclaim(self) -> None:
        """Free the upload again, because the transaction was rolled back."""
        self.taken = False

    def describe(self, header: bytes) -> None:
        """Record the properties of the content."""
        if header != self.header:
            self.header = header
            self.manager.write(self)

    def checkpoint(self, name: str, on_done: SyncCallback) -> None:
        """Set a checkpoint, and call `on_done` once the checkpoint and all bytes before it are on disk.

        Another upload with a checkpoint of this name loses it.

        Raises:
            PreconditionFailed: If the upload has too many checkpoints.
        """
        if name not in self.checkpoints and len(self.checkpoints) >= MAX_CHECKPOINTS:
            raise PreconditionFailed(
                f"the upload has {MAX_CHECKPOINTS} checkpoints, which is the maximum: reuse one of their identifiers"
            )
        size = self.body.size
        turn = self.turn

        def synced(error: BrokerError | None) -> None:
            if error is None and self.turn != turn:
                error = ResourceLocked("the content was resumed by another connection, or discarded")
            if error is not None or self.manager.by_key.get(self.key) is not self:
                on_done(error)
                return
            self.manager.add_checkpoint(self, name, size)
            self.manager.when_committed(on_done)

        self.manager.sync(self.body, synced)

    def confirm(self, on_done: SyncCallback) -> None:
        """Call `on_done` once all bytes received so far are on disk and the log records it."""
        size = self.body.size

        def synced(error: BrokerError | None) -> None:
            # The upload may have been truncated to a checkpoint or removed meanwhile.
            if error is None and self.manager.by_key.get(self.key) is self and self.synced < size <= self.body.size:
                self.synced = size
                self.manager.write(self)
            if error is not None:
                on_done(error)
            else:
                self.manager.when_committed(on_done)

        self.manager.sync(self.body, synced)

    def detach(self) -> None:
        """Detach the sender; the upload waits for another one until the timeout."""
        self.owner = None
        self.idle_since = self.manager.broker.timers.now()
        self.body.close()
        self.confirm(_ignore)

    def release(self) -> None:
        """End a piece; the upload waits for the next piece or to be published."""
        self.owner = None
        self.idle_since = self.manager.broker.timers.now()
        self.body.close()
        if not self._confirming and self.body.size - self.synced >= SYNC_BYTES:
            self._confirming = True
            self.confirm(self._confirmed)

    def _confirmed(self, error: BrokerError | None) -> None:
        """Note the end of a sync that `release` started."""
        self._confirming = False

    def finish(self) -> Body:
        """Return the body of the message to publish. The upload remains until `published` or `discard`.

        Raises:
            StorageFailed: the upload cannot be read.
        """
        body = self.body
        body.close()
        if isinstance(body, _InMemory):
            return list(body.pieces)
        if body.size > IN_MEMORY:
            return body
        try:
            return body.read(0, body.size)
        except OSError as error:
            logger.error("cannot read an upload: %s", error)
            raise StorageFailed(f"cannot read the upload: {error.strerror}") from None

    def published(self) -> None:
        """Remove the upload in the log commit that contains its message."""
        self.manager.remove(self)
        if self.known:
            self.manager.keep_until_committed(self.body)

    def discard(self) -> None:
        """Discard the upload."""
        self.manager.forget(self)

    def revoke(self) -> None:
        """Discard the upload. A client that is still sending it gets an error."""
        self.turn += 1
        self.discard()


def _ignore(error: BrokerError | None) -> None:
    """Ignore a failed sync of an interrupted upload: it was logged, and the file is unchanged."""


def _sync_at_end(body: UploadBody) -> None:
    """Sync an upload at a clean stop, after which recovery trusts the whole file."""
    try:
        body.sync()
    except OSError as error:
        logger.error("cannot sync an upload: %s", error)


class _Sweep(Timed):
    """Timer that discards interrupted uploads after the timeout."""

    def __init__(self, manager: Uploads) -> None:
        super().__init__()
        self.manager = manager

    def fire(self, now: int) -> None:
        self.manager.sweep(now)


class Uploads:
    """The uploads of a broker.

    Attributes:
        by_key: Uploads by key.
        checkpoints: Uploads by checkpoint.
        place: Storage of the bytes; None for memory.
    """

    def __init__(self, broker: Broker, place: UploadStore | None = None, settings: UploadSettings | None = None) -> None:
        self.broker = broker
        self.place = place
        self.settings = settings if settings is not None else UploadSettings()
        self.by_key: dict[Key, Upload] = {}
        self.checkpoints: dict[Key, Upload] = {}
        self.timer = _Sweep(self)
        self._counts: dict[tuple[str, str], int] = {}
        # Bodies of uploads whose publish is in a pending log commit.
        self._leaving: set[UploadBody] = set()
        self._post: Callable[[Callable[[], None]], None] | None = None
        self._syncing: ThreadPoolExecutor | None = None

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Start the thread that syncs files. `post` runs a callable on the event loop."""
        if self.place is not None:
            self._post = post
            self._syncing = ThreadPoolExecutor(1, "leveret-uploads")
        self._watch()

    def close(self) -> None:
        """Stop the thread, and keep the uploads for the next process."""
        if self._syncing is not None:
            self._syncing.shutdown()
            self._syncing = None
        for body in self._leaving:
            body.keep()
        for upload in self.by_key.values():
            upload.body.close()
            if upload.known:
                _sync_at_end(upload.body)
                upload.body.keep()

    # Uploads

    def find(self, vhost: str, user: str, kind: str, identifier: str) -> Upload | None:
        return self.by_key.get((vhost, user, kind, identifier))

    def open(
        self, vhost: str, user: str, kind: str, identifier: str, size: int | None, owner: object, take_over: bool = False
    ) -> Upload:
        """Begin or resume an upload for its sender, `owner`. `Upload.size` is the position to resume at.

        An upload with another announced size is restarted. `take_over` takes the upload from another owner, whose
        connection may be lost already; that owner then finds another `turn`.

        Raises:
            ResourceLocked: If the upload is being sent or published.
            ResourceError: If the user has too many uploads.
            ContentTooLarge: If the announced size exceeds the limit or the room on the disk.
            StorageFailed: If another broker may have taken over the upload.
        """
        key = (vhost, user, kind, identifier)
        upload = self.by_key.get(key)
        if upload is not None:
            if upload.taken or (upload.owner is not None and not (take_over and upload.owner is not owner)):
                raise ResourceLocked(f"upload '{identifier}' is already open")
            if upload.announced == size:
                upload.owner = owner
                upload.turn += 1
                return upload
            upload.turn += 1
            self.forget(upload)
        if size is not None:
            self.check_size(size)
        upload = self._begin(key, secrets.token_hex(12), size, owner)
        self.write(upload)
        return upload

    def begin(self, vhost: str, user: str, kind: str, owner: object) -> Upload:
        """Begin an upload without an identifier and an announced size. The log records it from its first checkpoint on.

        Raises:
            ResourceError: If the user has too many uploads.
            ContentTooLarge: If the disk has no room.
            StorageFailed: If another broker may have taken over the log.
        """
        name = secrets.token_hex(12)
        upload = self._begin((vhost, user, kind, name), name, None, owner)
        upload.known = False
        return upload

    def _begin(self, key: Key, name: str, size: int | None, owner: object) -> Upload:
        self.check_owned(key[3])
        limit = self.settings.max_per_user
        if self._counts.get(key[:2], 0) >= limit:
            raise ResourceError(
                f"user '{key[1]}' has reached the limit of {limit} uploads in vhost '{key[0]}'; the"
                " setting is uploads.max_per_user"
            )
        body = _InMemory() if self.place is None else self.place.create(name, size)
        upload = Upload(self, key, name, size, body)
        upload.owner = owner
        self._add(upload)
        self._watch()
        return upload

    def resume(self, vhost: str, user: str, kind: str, checkpoint: str, owner: object) -> Upload | None:
        """Resume an upload at a checkpoint, and truncate it there. Return None if no upload has the checkpoint.

        A previous sender finds another `turn`.

        Raises:
            ResourceLocked: If `owner` is sending it already, it is being published, or a backup is copying what would be
                truncated.
            StorageFailed: If the bytes cannot be truncated, or another broker may have taken over the upload.
        """
        self.check_owned(checkpoint)
        upload = self.checkpoints.get((vhost, user, kind, checkpoint))
        if upload is None:
            return None
        if upload.taken or upload.owner is owner:
            raise ResourceLocked(f"the content of checkpoint '{checkpoint}' is already open")
        size = upload.checkpoints[checkpoint]
        if size < max(upload.checkpoints.values()) and self.place is not None and self.place.is_pinned:
            raise ResourceLocked(
                f"the upload has a later checkpoint than '{checkpoint}', which a backup is copying; resume it there, or try"
                " again after the backup"
            )
        upload.owner = owner
        upload.turn += 1
        try:
            upload.body.cut(size)
        except OSError as error:
            raise StorageFailed(f"cannot truncate the upload: {error.strerror}") from None
        upload.synced = min(upload.synced, size)
        for name in [name for name, n_bytes in upload.checkpoints.items() if n_bytes > size]:
            del upload.checkpoints[name]
            del self.checkpoints[(*upload.key[:3], name)]
        self.write(upload)
        return upload

    def add_checkpoint(self, upload: Upload, name: str, size: int) -> None:
        """Add a checkpoint whose bytes are on disk."""
        upload.checkpoints.pop(name, None)
        upload.checkpoints[name] = size
        upload.synced = max(upload.synced, size)
        key = (*upload.key[:3], name)
        other = self.checkpoints.get(key)
        self.checkpoints[key] = upload
        upload.known = True
        self.write(upload)
        if other is not None and other is not upload:
            del other.checkpoints[name]
            if other.checkpoints or other.owner is not None:
                self.write(other)
            else:
                self.forget(other)

    def check_size(self, size: int) -> None:
        """Raise ContentTooLarge if a size exceeds the limit of one upload."""
        if size > self.settings.max_bytes:
            raise ContentTooLarge(
                f"an upload of {size} bytes exceeds the limit of {self.settings.max_bytes}; the"
                " setting is uploads.max_bytes"
            )

    def check_owned(self, identifier: str) -> None:
        """Raise StorageFailed if another broker may have taken over the log, and writes the same files."""
        if self._may_be_taken_over():
            raise StorageFailed(
                f"upload '{identifier}' is interrupted, because the broker has had no answer from its store for most of"
                " 'cluster.lease', and another one may have taken over; connect again and resume"
            )

    def _may_be_taken_over(self) -> bool:
        return self.place is not None and self.place.is_shared and self.broker.log.is_silent()

    def forget(self, upload: Upload) -> None:
        """Remove an upload and its bytes."""
        if self._may_be_taken_over():
            upload.body.keep()  # the next start with this log removes them if it has no record of the upload
        self.remove(upload)

    def remove(self, upload: Upload) -> None:
        """Remove an upload. Its bytes are removed with the last reference to its body."""
        if self.by_key.get(upload.key) is upload:
            del self.by_key[upload.key]
            pair = upload.key[:2]
            self._counts[pair] -= 1
            if not self._counts[pair]:
                del self._counts[pair]
            for name in upload.checkpoints:
                self.checkpoints.pop((*upload.key[:3], name), None)
            if upload.known:
                self.broker.log.put(metadata.STAGED, metadata.make_key(*upload.key), None)

    def forget_vhost(self, vhost: str) -> None:
        """Remove the uploads of a deleted vhost."""
        for upload in [upload for upload in self.by_key.values() if upload.key[0] == vhost]:
            self.forget(upload)

    def _add(self, upload: Upload) -> None:
        self.by_key[upload.key] = upload
        pair = upload.key[:2]
        self._counts[pair] = self._counts.get(pair, 0) + 1

    def write(self, upload: Upload) -> None:
        """Record an upload, without its bytes, in the log if it must survive a crash (`Upload.known`)."""
        if not upload.known:
            return
        value: Record = {
            "file": upload.name,
            "size": upload.announced,
            "header": upload.header,
            "checkpoints": dict(upload.checkpoints),
            "synced": upload.synced,
        }
        self.broker.log.put(metadata.STAGED, metadata.make_key(*upload.key), metadata.pack(value))

    # Sync

    def sync(self, body: UploadBody, synced: SyncCallback) -> None:
        """Call `synced` on the event loop once all bytes of a body are on disk."""
        if self._syncing is None:
            synced(None)
            return
        post = self._post
        assert post is not None

        def work() -> None:
            error: BrokerError | None = None
            try:
                body.sync()
            except OSError as failure:
                logger.error("cannot sync an upload: %s", failure)
                error = StorageFailed(f"cannot sync the upload: {failure.strerror}")
            post(lambda: self._notify(synced, error))

        self._syncing.submit(work)

    def _notify(self, synced: SyncCallback, error: BrokerError | None) -> None:
        synced(error)
        self.broker.end_turn()

    def when_committed(self, on_done: SyncCallback) -> None:
        """Call `on_done` once the current log commit is on disk."""
        if self.broker.log.has_pending():
            self.broker.log.wait(_Waiter(on_done))
        else:
            on_done(None)

    def keep_until_committed(self, body: UploadBody) -> None:
        """Keep the file of a published upload until the current log commit is on disk; a crash before restores it."""
        self._leaving.add(body)
        self.when_committed(lambda error: self._leaving.discard(body))

    # Timeout

    def _watch(self) -> None:
        if not self.timer.due and self.by_key and self.settings.timeout:
            timers = self.broker.timers
            timers.at(timers.now() + min(self.settings.timeout // 4 + 1, MAX_SWEEP_INTERVAL), self.timer)

    def sweep(self, now: int) -> None:
        """Discard the uploads that have been interrupted for the timeout."""
        for upload in list(self.by_key.values()):
            if upload.owner is None and not upload.taken and now - upload.idle_since >= self.settings.timeout:
                logger.info(
                    "upload '%s' of user '%s' in vhost '%s' discarded with %d bytes: not resumed within uploads.timeout",
                    upload.key[3],
                    upload.key[1],
                    upload.key[0],
                    upload.size,
                )
                self.forget(upload)
        self._watch()

    # Recovery

    def recover(self, recovery: Recovery) -> None:
        """Restore the uploads of earlier processes."""
        if self.place is not None:
            self.place.attach(self.broker.identity)
        for (kind, key), data in recovery.metadata.items():
            if kind != metadata.STAGED:
                continue
            value = metadata.unpack(data)
            vhost, user, what, identifier = metadata.split_key(key)
            body = self.place.find(value["file"], value["size"]) if self.place is not None else None
            checkpoints = (
                {}
                if body is None
                else {name: n_bytes for name, n_bytes in value["checkpoints"].items() if n_bytes <= body.size}
            )
            if body is None and self.place is not None and self.place.unshared:
                logger.warning(
                    "the bytes of upload '%s' of user '%s' in vhost '%s' are not here, so its sender starts again: %s",
                    identifier,
                    user,
                    vhost,
                    self.place.unshared,
                )
            elif value["checkpoints"] and len(checkpoints) < len(value["checkpoints"]):
                logger.error(
                    "upload '%s' of user '%s' in vhost '%s' has lost bytes before its checkpoints: its file has %d bytes",
                    identifier,
                    user,
                    vhost,
                    body.size if body is not None else 0,
                )
            nameless = identifier == value["file"] and not checkpoints
            if body is None or nameless or vhost not in self.broker.vhosts:
                self.broker.log.put(metadata.STAGED, key, None)
                if body is not None and self.broker.kept_files.is_salvaged(STAGED):
                    body.keep()  # the vhost may be what was lost
                continue
            upload = Upload(self, (vhost, user, what, identifier), value["file"], value["size"], body)
            upload.header = value["header"]
            upload.checkpoints = checkpoints
            # Bytes that were not synced are undefined after a power cut.
            upload.synced = body.size if recovery.clean else min(value.get("synced", body.size), body.size)
            if upload.synced < body.size:
                body.cut(upload.synced)
            self._add(upload)
            for name in upload.checkpoints:
                self.checkpoints[vhost, user, what, name] = upload
        if self.place is not None:
            named = {upload.name for upload in self.by_key.values()}
            self.place.remove(self.broker.kept_files.removable(STAGED, self.place.names(), named))


class _Waiter(CommitWaiter):
    def __init__(self, on_done: SyncCallback) -> None:
        self.on_done = on_done

    def committed(self, batch: int) -> None:
        self.on_done(None)
