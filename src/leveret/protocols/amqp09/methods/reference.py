"""Class message of 0-9: bodies by reference, which clients can resume at checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from leveret.broker.errors import BrokerError
from leveret.protocols.amqp09.channel.channel import Channel
from leveret.protocols.amqp09.contents.answers import Answer
from leveret.protocols.amqp09.contents.references import KIND, leave
from leveret.protocols.amqp09.methods.message import make_message, publish
from leveret.protocols.amqp091.reply_codes import CODES
from leveret.wire.amqp0.classes import MESSAGE


def open_reference(channel: Channel, reference: str) -> None:
    """Perform message.open."""
    channel.messages.check_new_reference(reference)
    connection = channel.opened_on
    staged = channel.broker.uploads.begin(channel.vhost.name, connection.user, KIND, connection)
    channel.messages.open_reference(reference, staged)
    channel.messages.answers.ok()


def append(channel: Channel, reference: str, bytes: bytes) -> None:
    """Perform message.append."""
    found = channel.messages.find_reference(reference)
    channel.opened_on.published(channel)
    channel.check_pause()
    found.staged.append(bytes)
    channel.messages.answers.ok()


# Method id of message.checkpoint.
CHECKPOINT: Final = 90


class _Checkpoint:
    """A checkpoint that is being written to disk."""

    def __init__(self, channel: Channel, answer: Answer) -> None:
        self.channel = channel
        self.answer = answer

    def kept(self, error: BrokerError | None) -> None:
        channel = self.channel
        if channel.closing:
            return
        if error is not None:
            channel.connection.refuse(channel, CODES[error.condition], str(error), MESSAGE, CHECKPOINT)
        else:
            channel.messages.answers.release(self.answer)
            channel.resume()


def checkpoint(channel: Channel, reference: str, identifier: str) -> None:
    """Perform message.checkpoint: reply when everything up to here is on disk.

    The channel is stalled until then, so that a client cannot queue an unlimited number of syncs.
    """
    found = channel.messages.find_reference(reference)
    answer = Answer("message.ok", {}, channel.request, deferred=True)
    channel.messages.answers.add(answer)
    channel.stall()
    try:
        found.staged.checkpoint(identifier, _Checkpoint(channel, answer).kept)
    except BrokerError:
        channel.cancel_stall()
        raise


def resume(channel: Channel, reference: str, identifier: str) -> None:
    """Perform message.resume: open a reference at its checkpoint, or at 0 if the checkpoint is unknown."""
    channel.messages.check_new_reference(reference)
    connection = channel.opened_on
    uploads = channel.broker.uploads
    vhost = channel.vhost.name
    staged = uploads.resume(vhost, connection.user, KIND, identifier, connection)
    if staged is None:
        staged = uploads.begin(vhost, connection.user, KIND, connection)
    channel.messages.open_reference(reference, staged)
    channel.messages.answers.add(Answer("message.offset", {"value": staged.size}, channel.request))


def close(channel: Channel, reference: str) -> None:
    """Perform message.close: publish the transfers of the reference."""
    messages = channel.messages
    found = messages.find_reference(reference)
    staged = found.staged
    try:
        if found.transfers and not found.messages:
            body = staged.finish()
            found.complete([make_message(channel, arguments, body, staged.size) for arguments, _ in found.transfers])
        for message in found.messages:
            route = channel.opened_on.find_route(message.address)
            if channel.write_ahead(route, message, partial(found.replace_body, message)):
                return
    except BrokerError:
        del messages.references[reference]
        messages.answers.ok()
        leave(staged)
        raise
    del messages.references[reference]
    messages.answers.ok()
    if not found.transfers:
        staged.discard()
        return
    try:
        for (arguments, request), message in zip(found.transfers, found.messages, strict=True):
            messages.answers.add(publish(channel, arguments, message, request))
    except BrokerError:
        leave(staged)
        raise
    if channel.transacted:
        staged.claim()
        messages.pending.append(staged)
    else:
        staged.published()


HANDLERS: Final[dict[str, Callable[..., None]]] = {
    "message.open": open_reference,
    "message.append": append,
    "message.checkpoint": checkpoint,
    "message.resume": resume,
    "message.close": close,
}
