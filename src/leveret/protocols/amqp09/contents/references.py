"""References of class message that a client sends: bodies that come in appends, and whose messages are published when they
are closed. They belong to their channel; what has a checkpoint outlives it.
"""

from __future__ import annotations

from typing import Final

from leveret.broker.errors import PreconditionFailed, ResourceLocked
from leveret.broker.uploads import Upload
from leveret.wire.amqp0.classes import encode_transfer
from leveret.wire.amqp0.values import Arguments

KIND: Final = "message"
# Transfers whose body is the same reference.
MAX_TRANSFERS: Final = 256
# Bytes of their fields together, which are in memory; one may have any.
MAX_FIELD_BYTES: Final = 1 << 20
# Bytes of its name.
MAX_NAME_BYTES: Final = 1024


class Reference:
    """One that is open. transfers: the arguments of those that refer to it, with the ids of their requests."""

    def __init__(self, name: str, staged: Upload) -> None:
        self.name = name
        self.staged = staged
        self.turn = staged.turn
        self.transfers: list[tuple[Arguments, int]] = []
        self._fields = 0

    def check(self) -> None:
        """Raise ResourceLocked where the content is not this channel's any more."""
        if self.turn != self.staged.turn:
            raise ResourceLocked(f"the content of reference '{self.name}' was resumed by another connection, or discarded")

    def add(self, arguments: Arguments, request: int) -> None:
        """A message that has this body. PreconditionFailed where it is one too many."""
        self._fields += len(encode_transfer(0, arguments))
        if len(self.transfers) >= MAX_TRANSFERS or (self.transfers and self._fields > MAX_FIELD_BYTES):
            raise PreconditionFailed(
                f"reference '{self.name}' is the body of too many messages: at most {MAX_TRANSFERS},"
                f" with {MAX_FIELD_BYTES} bytes of fields, refer to it before it is closed"
            )
        self.transfers.append((arguments, request))


def leave(staged: Upload) -> None:
    """The sender has gone: what has a checkpoint waits for it."""
    if staged.checkpoints:
        staged.detach()
    else:
        staged.discard()
