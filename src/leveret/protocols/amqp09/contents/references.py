"""References that a client opens (0-9 class message).

Their bodies are sent by message.append; closing a reference publishes its messages. A reference belongs to its channel, but
an upload with a checkpoint outlives it.
"""

from __future__ import annotations

from typing import Final

from leveret.broker.bodies import StoredBody
from leveret.broker.errors import PreconditionFailed, ResourceLocked
from leveret.broker.message import Message
from leveret.broker.uploads import Upload
from leveret.wire.amqp0.classes import encode_transfer
from leveret.wire.amqp0.values import Arguments

KIND: Final = "message"
# Maximum number of transfers with the same reference.
MAX_TRANSFERS: Final = 256
# Maximum bytes of the fields of all transfers of a reference, which are kept in memory. A single transfer may exceed it.
MAX_FIELD_BYTES: Final = 1 << 20
# Maximum bytes of the name of a reference.
MAX_NAME_BYTES: Final = 1024


class Reference:
    """An open reference.

    Attributes:
        transfers: the arguments and request ids of its transfers.
        messages: their messages, once the client has closed the reference.
    """

    def __init__(self, name: str, staged: Upload) -> None:
        self.name = name
        self.staged = staged
        self.turn = staged.turn
        self.transfers: list[tuple[Arguments, int]] = []
        self.messages: list[Message] = []
        self._fields = 0

    def check(self) -> None:
        """Raise ResourceLocked if another connection has resumed the content, or it was discarded."""
        if self.turn != self.staged.turn:
            raise ResourceLocked(f"the content of reference '{self.name}' was resumed by another connection or discarded")

    def add(self, arguments: Arguments, request: int) -> None:
        """Add a transfer with this body.

        Raises:
            PreconditionFailed: the limit of transfers or of their fields is exceeded.
        """
        self._fields += len(encode_transfer(0, arguments))
        if len(self.transfers) >= MAX_TRANSFERS or (self.transfers and self._fields > MAX_FIELD_BYTES):
            raise PreconditionFailed(
                f"reference '{self.name}' is the body of too many messages: expected at most {MAX_TRANSFERS},"
                f" with {MAX_FIELD_BYTES} bytes of fields"
            )
        self.transfers.append((arguments, request))

    def complete(self, messages: list[Message]) -> None:
        """Set the messages of the transfers."""
        self.messages = messages

    def replace_body(self, message: Message, body: StoredBody) -> None:
        """Publish a message with a body that the log has written."""
        message.body = body


def leave(staged: Upload) -> None:
    """Release the upload of a closed channel: keep it if it has a checkpoint, otherwise discard it."""
    if staged.checkpoints:
        staged.detach()
    else:
        staged.discard()
