"""Staged contents: uploads that outlive the connection they come on, and go on where they were interrupted.

An upload belongs to a user of a vhost, under an identifier of the sender's choice, or is found by its checkpoints: then it
ends with its sender until it has one. Its bytes go to a file of the data
directory where the store has one (`StagingPlace`), else to memory. The log knows the upload, so that it is there after a
kill -9, too; that entry goes with the very batch that holds the published message. The bytes of an interrupted upload,
and those before a checkpoint, are synced.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

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
from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

logger = logging.getLogger("leveret.broker")

# Bodies up to this are given out in memory: who delivers expects larger ones only to be elsewhere.
IN_MEMORY: Final = 512 << 10
# Bytes of an upload in progress that a crash may take: beyond them a sync begins, which the sender does not wait for.
SYNC_BYTES: Final = 4 << 20
# Checkpoints of different names that one upload may have.
MAX_CHECKPOINTS: Final = 64
# Milliseconds between two looks at what is too old, at most.
MAX_SWEEP_INTERVAL: Final = 3_600_000

# What `Staged.checkpoint` calls: with None, or with what went wrong.
Kept = Callable[[BrokerError | None], None]
# Vhost, user, kind ("file", "message") and identifier; of a checkpoint likewise.
Key = tuple[str, str, str, str]


class StagedBody(StoredBody):
    """The bytes of an upload. They go when nothing refers to the object any more and `keep` was not called."""

    __slots__ = ()

    def cut(self, size: int) -> None:
        """Forget what is behind so many bytes. Raises `OSError`."""
        raise NotImplementedError

    def sync(self) -> None:
        """Have everything on disk. Blocking, for any thread. Raises `OSError`."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is written for now."""

    def keep(self) -> None:
        """The process ends: leave the bytes to the next one."""


class StagingPlace:
    """Where the bytes of uploads are kept across a restart."""

    def create(self, name: str, size: int | None) -> StagedBody:
        """A body under a new name, which will have `size` bytes where that is known. ContentTooLarge where there is no
        room for it."""
        raise NotImplementedError

    def find(self, name: str, size: int | None) -> StagedBody | None:
        """What an earlier process left under a name."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """All names that there are."""
        raise NotImplementedError

    def remove(self, names: Iterable[str]) -> None:
        """Remove what earlier processes left under these names."""
        raise NotImplementedError


class _InMemory(StagedBody):
    """For a store without a directory."""

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
        """There is no disk."""


class StagingSettings:
    """max_per_user: uploads of one user in one vhost; max_bytes: of one upload; timeout: milliseconds that an upload
    waits for its sender to come back, 0 for ever."""

    def __init__(self, max_per_user: int = 1000, max_bytes: int = 16 << 30, timeout: int = 86_400_000) -> None:
        self.max_per_user = max_per_user
        self.max_bytes = max_bytes
        self.timeout = timeout


class Staged:
    """One upload.

    key          vhost, user, kind, identifier
    announced    bytes that it will have, None where the sender did not say
    header       the properties of its content, as its class encodes them; b"" until `describe`
    checkpoints  bytes at each, by name, the last one at the end
    synced       bytes of which the log knows that they are on disk; a crash may take what is behind them
    known        the log knows it: a crash does not end it
    owner        who is sending it, None while nobody is; turn: counts those who began to
    taken        a transaction is about to publish it
    """

    def __init__(self, staging: Staging, key: Key, name: str, announced: int | None, body: StagedBody) -> None:
        self.staging = staging
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
        self.idle_since = staging.broker.timers.now()
        self._confirming = False

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self.body.size

    @property
    def identifier(self) -> str:
        """By what its sender knows it: the last checkpoint, where it has given it no other name."""
        return next(reversed(self.checkpoints), self.key[3])

    @property
    def complete(self) -> bool:
        """Whether everything that was announced is there."""
        return self.announced == self.body.size and bool(self.header)

    def append(self, data: bytes) -> None:
        """Write on. ContentTooLarge beyond what was announced, the limit, or the room on the disk."""
        size = self.body.size + len(data)
        if self.announced is not None and size > self.announced:
            raise ContentTooLarge(f"staged content '{self.key[3]}' was announced with {self.announced} bytes, and has"
                                  " more")
        self.staging.check_size(size)
        self.body.append(data)

    def describe(self, header: bytes) -> None:
        """Remember the properties of the content."""
        if header != self.header:
            self.header = header
            self.staging.write(self)

    def checkpoint(self, name: str, kept: Kept) -> None:
        """Call `kept` when everything up to here is on disk, and the checkpoint with it, by which `resume` finds it.
        Another upload that has one of this name loses it. PreconditionFailed where there are too many."""
        if name not in self.checkpoints and len(self.checkpoints) >= MAX_CHECKPOINTS:
            raise PreconditionFailed(f"the content has {MAX_CHECKPOINTS} checkpoints of different identifiers, which is"
                                     " the most: use one of them again")
        size = self.body.size
        turn = self.turn

        def synced(error: BrokerError | None) -> None:
            if error is None and self.turn != turn:
                error = ResourceLocked("the content was resumed by another connection, or discarded")
            if error is not None or self.staging.uploads.get(self.key) is not self:
                kept(error)
                return
            self.staging.add_checkpoint(self, name, size)
            self.staging.when_committed(kept)

        self.staging.sync(self.body, synced)

    def confirm(self, kept: Kept) -> None:
        """Call `kept` when everything up to here is on disk, and the log knows it."""
        size = self.body.size

        def synced(error: BrokerError | None) -> None:
            # It may have been cut to a checkpoint since, or be over.
            if error is None and self.staging.uploads.get(self.key) is self and self.synced < size <= self.body.size:
                self.synced = size
                self.staging.write(self)
            if error is not None:
                kept(error)
            else:
                self.staging.when_committed(kept)

        self.staging.sync(self.body, synced)

    def detach(self) -> None:
        """Its sender has gone, or is done with it: it waits for its time to live."""
        self.owner = None
        self.idle_since = self.staging.broker.timers.now()
        self.body.close()
        self.confirm(_ignore)

    def release(self) -> None:
        """A piece is complete: the upload waits for the next piece, or to be published."""
        self.owner = None
        self.idle_since = self.staging.broker.timers.now()
        self.body.close()
        if not self._confirming and self.body.size - self.synced >= SYNC_BYTES:
            self._confirming = True
            self.confirm(self._confirmed)

    def _confirmed(self, error: BrokerError | None) -> None:
        """A sync that `release` began is done."""
        self._confirming = False

    def finish(self) -> Body:
        """The body of the message to publish. The upload stays until `published` or `discard`."""
        body = self.body
        body.close()
        if isinstance(body, _InMemory):
            return list(body.pieces)
        return body.read(0, body.size) if body.size <= IN_MEMORY else body

    def published(self) -> None:
        """The message is with the batch that is being filled, and the end of the upload too."""
        self.staging.forget(self)
        if self.known:
            self.staging.keep_until_committed(self.body)

    def discard(self) -> None:
        """Give it up."""
        self.staging.forget(self)


def _ignore(error: BrokerError | None) -> None:
    """An interrupted upload that could not be synced has been logged, and still is what is in the file."""


def _sync_at_end(body: StagedBody) -> None:
    """After a clean stop all that has come is taken for good."""
    try:
        body.sync()
    except OSError as error:
        logger.error("a staged content cannot be synced: %s", error)


class _Sweep(Timed):
    """Gives up what nobody came back for."""

    def __init__(self, staging: Staging) -> None:
        super().__init__()
        self.staging = staging

    def fire(self, now: int) -> None:
        self.staging.sweep(now)


class Staging:
    """The uploads of a broker.

    uploads  by their keys; checkpoints: the same by those
    place    None: in memory
    """

    def __init__(self, broker: Broker, place: StagingPlace | None = None, settings: StagingSettings | None = None) -> None:
        self.broker = broker
        self.place = place
        self.settings = settings if settings is not None else StagingSettings()
        self.uploads: dict[Key, Staged] = {}
        self.checkpoints: dict[Key, Staged] = {}
        self.timer = _Sweep(self)
        self._counts: dict[tuple[str, str], int] = {}
        # Of uploads that were published by a commit that has not returned.
        self._leaving: set[StagedBody] = set()
        self._post: Callable[[Callable[[], None]], None] | None = None
        self._syncing: ThreadPoolExecutor | None = None

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        """From now on files are synced by a thread. `post` runs a callable on the event loop."""
        if self.place is not None:
            self._post = post
            self._syncing = ThreadPoolExecutor(1, "leveret-staging")
        self._watch()

    def close(self) -> None:
        """The process ends: what is staged waits for the next one."""
        if self._syncing is not None:
            self._syncing.shutdown()
            self._syncing = None
        for body in self._leaving:
            body.keep()
        for staged in self.uploads.values():
            staged.body.close()
            if staged.known:
                _sync_at_end(staged.body)
                staged.body.keep()

    # Uploads

    def find(self, vhost: str, user: str, kind: str, identifier: str) -> Staged | None:
        return self.uploads.get((vhost, user, kind, identifier))

    def open(self, vhost: str, user: str, kind: str, identifier: str, size: int | None, owner: object,
             take_over: bool = False) -> Staged:
        """Begin an upload for its sender, `owner`, or go on with one: `Staged.size` says where. One that was announced with
        another size begins anew. ResourceLocked while somebody is sending or publishing it; with `take_over` nobody but
        the owner itself keeps others from it, for it may be a connection that is lost already: who was sending it finds
        another `turn`. ResourceError and ContentTooLarge for limits."""
        key = (vhost, user, kind, identifier)
        staged = self.uploads.get(key)
        if staged is not None:
            if staged.taken or (staged.owner is not None and not (take_over and staged.owner is not owner)):
                raise ResourceLocked(f"staged content '{identifier}' is open already")
            if staged.announced == size:
                staged.owner = owner
                staged.turn += 1
                return staged
            staged.turn += 1
            self.forget(staged)
        if size is not None:
            self.check_size(size)
        staged = self._begin(key, secrets.token_hex(12), size, owner)
        self.write(staged)
        return staged

    def begin(self, vhost: str, user: str, kind: str, owner: object) -> Staged:
        """Begin an upload that has no identifier of the sender's, and is not known to the log before it has a checkpoint.
        Its size is not announced. ResourceError and ContentTooLarge for limits."""
        name = secrets.token_hex(12)
        staged = self._begin((vhost, user, kind, name), name, None, owner)
        staged.known = False
        return staged

    def _begin(self, key: Key, name: str, size: int | None, owner: object) -> Staged:
        most = self.settings.max_per_user
        if self._counts.get(key[:2], 0) >= most:
            raise ResourceError(f"user '{key[1]}' has the most staged contents in vhost '{key[0]}', {most}; the setting is"
                                " uploads.max_per_user")
        body = _InMemory() if self.place is None else self.place.create(name, size)
        staged = Staged(self, key, name, size, body)
        staged.owner = owner
        self._add(staged)
        self._watch()
        return staged

    def resume(self, vhost: str, user: str, kind: str, checkpoint: str, owner: object) -> Staged | None:
        """Go on with an upload from a checkpoint on, None where there is none of that name: `Staged.size` is what it has,
        and what came later is cut off. Whoever was sending it finds another `turn`. ResourceLocked where that is the
        owner itself, or while it is published."""
        staged = self.checkpoints.get((vhost, user, kind, checkpoint))
        if staged is None:
            return None
        if staged.taken or staged.owner is owner:
            raise ResourceLocked(f"the content of checkpoint '{checkpoint}' is open already")
        staged.owner = owner
        staged.turn += 1
        size = staged.checkpoints[checkpoint]
        try:
            staged.body.cut(size)
        except OSError as error:
            raise StorageFailed(f"the staged content cannot be cut: {error.strerror}") from None
        staged.synced = min(staged.synced, size)
        for name in [name for name, n_bytes in staged.checkpoints.items() if n_bytes > size]:
            del staged.checkpoints[name]
            del self.checkpoints[(*staged.key[:3], name)]
        self.write(staged)
        return staged

    def add_checkpoint(self, staged: Staged, name: str, size: int) -> None:
        """So many bytes are on disk."""
        staged.checkpoints.pop(name, None)
        staged.checkpoints[name] = size
        staged.synced = max(staged.synced, size)
        key = (*staged.key[:3], name)
        other = self.checkpoints.get(key)
        self.checkpoints[key] = staged
        staged.known = True
        self.write(staged)
        if other is not None and other is not staged:
            del other.checkpoints[name]
            if other.checkpoints or other.owner is not None:
                self.write(other)
            else:
                self.forget(other)

    def check_size(self, size: int) -> None:
        """Raise ContentTooLarge for more bytes than one upload may have."""
        if size > self.settings.max_bytes:
            raise ContentTooLarge(f"a staged content of {size} bytes is larger than {self.settings.max_bytes}; the"
                                  " setting is uploads.max_bytes")

    def forget(self, staged: Staged) -> None:
        """An upload is over."""
        if self.uploads.get(staged.key) is staged:
            del self.uploads[staged.key]
            pair = staged.key[:2]
            self._counts[pair] -= 1
            if not self._counts[pair]:
                del self._counts[pair]
            for name in staged.checkpoints:
                self.checkpoints.pop((*staged.key[:3], name), None)
            if staged.known:
                self.broker.log.put(metadata.STAGED, metadata.make_key(*staged.key), None)

    def forget_vhost(self, vhost: str) -> None:
        """A vhost was deleted."""
        for staged in [staged for staged in self.uploads.values() if staged.key[0] == vhost]:
            self.forget(staged)

    def _add(self, staged: Staged) -> None:
        self.uploads[staged.key] = staged
        pair = staged.key[:2]
        self._counts[pair] = self._counts.get(pair, 0) + 1

    def write(self, staged: Staged) -> None:
        """Have the log know what is known of an upload beside its bytes, if it is to know the upload."""
        if not staged.known:
            return
        value: dict[str, Any] = {"file": staged.name, "size": staged.announced, "header": staged.header,
                                 "checkpoints": dict(staged.checkpoints), "synced": staged.synced}
        self.broker.log.put(metadata.STAGED, metadata.make_key(*staged.key), metadata.pack(value))

    # The disk

    def sync(self, body: StagedBody, synced: Kept) -> None:
        """Call `synced` on the event loop when all bytes of a body are on disk."""
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
                logger.error("a staged content cannot be synced: %s", failure)
                error = StorageFailed(f"the staged content is not on disk: {failure.strerror}")
            post(lambda: self._told(synced, error))

        self._syncing.submit(work)

    def _told(self, synced: Kept, error: BrokerError | None) -> None:
        synced(error)
        self.broker.end_turn()

    def when_committed(self, kept: Kept) -> None:
        """Call `kept` when the batch that is being filled is on disk."""
        if self.broker.log.has_pending():
            self.broker.log.wait(_Waiter(kept))
        else:
            kept(None)

    def keep_until_committed(self, body: StagedBody) -> None:
        """Keep the file of an upload that is published by the batch being filled: until that batch is on disk, a crash
        brings the upload back."""
        self._leaving.add(body)
        self.when_committed(lambda error: self._leaving.discard(body))

    # Time

    def _watch(self) -> None:
        if not self.timer.due and self.uploads and self.settings.timeout:
            timers = self.broker.timers
            timers.at(timers.now() + min(self.settings.timeout // 4 + 1, MAX_SWEEP_INTERVAL), self.timer)

    def sweep(self, now: int) -> None:
        """Give up uploads whose sender has not come back for too long."""
        for staged in list(self.uploads.values()):
            if staged.owner is None and not staged.taken and now - staged.idle_since >= self.settings.timeout:
                logger.info("staged content '%s' of user '%s' in vhost '%s' is given up with %d bytes (uploads.timeout)",
                            staged.key[3], staged.key[1], staged.key[0], staged.size)
                self.forget(staged)
        self._watch()

    # After a start

    def recover(self, recovery: Recovery) -> None:
        """Find what earlier processes were sent."""
        for (kind, key), data in recovery.metadata.items():
            if kind != metadata.STAGED:
                continue
            value = metadata.unpack(data)
            vhost, user, what, identifier = metadata.split_key(key)
            body = self.place.find(value["file"], value["size"]) if self.place is not None else None
            checkpoints = {} if body is None else {
                name: n_bytes for name, n_bytes in value["checkpoints"].items() if n_bytes <= body.size}
            if value["checkpoints"] and len(checkpoints) < len(value["checkpoints"]):
                logger.error("staged content '%s' of user '%s' in vhost '%s' has lost what was there at its checkpoints:"
                             " its file has %d bytes", identifier, user, vhost, body.size if body is not None else 0)
            nameless = identifier == value["file"] and not checkpoints
            if body is None or nameless or vhost not in self.broker.vhosts:
                self.broker.log.put(metadata.STAGED, key, None)
                if body is not None and self.broker.kept_files.is_salvaged(STAGED):
                    body.keep()  # the vhost may be what was lost
                continue
            staged = Staged(self, (vhost, user, what, identifier), value["file"], value["size"], body)
            staged.header = value["header"]
            staged.checkpoints = checkpoints
            # What was not synced may be anything after a power cut.
            staged.synced = body.size if recovery.clean else min(value.get("synced", body.size), body.size)
            if staged.synced < body.size:
                body.cut(staged.synced)
            self._add(staged)
            for name in staged.checkpoints:
                self.checkpoints[vhost, user, what, name] = staged
        if self.place is not None:
            named = {staged.name for staged in self.uploads.values()}
            self.place.remove(self.broker.kept_files.removable(STAGED, self.place.names(), named))


class _Waiter(CommitWaiter):
    def __init__(self, kept: Kept) -> None:
        self.kept = kept

    def committed(self, batch: int) -> None:
        self.kept(None)
