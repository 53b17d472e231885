"""Class message on a channel, in both directions.

A message is sent as `message.transfer`. A large body is sent by reference: `message.open` precedes the transfer,
`message.append`s and `message.close` follow it. A consumer that keeps checkpoints gets `message.resume` instead of
`message.open`, replies with the number of bytes that it already has, and gets the rest with checkpoints. Clients send
messages in the same way.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.broker.bodies import whole
from leveret.broker.errors import CommandInvalid, NotAllowed, PreconditionFailed
from leveret.broker.message import Entry, Message
from leveret.broker.uploads import Upload
from leveret.protocols.amqp09.contents.answers import Answers
from leveret.protocols.amqp09.contents.bodies import tail
from leveret.protocols.amqp09.contents.content import address_of, fitting
from leveret.protocols.amqp09.contents.references import MAX_NAME_BYTES, Reference, leave
from leveret.protocols.amqp09.contents.transfers import (
    BODY_OVERHEAD,
    BY_REFERENCE,
    INLINE,
    TRANSFER_OVERHEAD,
    Appending,
    Resumed,
    Transfer,
    body_field,
    encode,
)
from leveret.wire.amqp0.classes import MESSAGE

if TYPE_CHECKING:
    from leveret.protocols.amqp09.channel.channel import Channel


class Messages:
    """Class message on one channel.

    Attributes:
        references: open references of the client, by name.
        pending: uploads of closed references, published in the open transaction.
        answers: pending replies of the broker.
        resuming: deliveries whose `message.resume` the client has not answered.
        unanswered: transfers that the client must answer, in the order in which they were sent. Those of consumers and gets
            without acknowledgement need no answer.
        incomplete: number of deliveries that have not been sent completely. They are not in the channel's `unacked`.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.references: dict[str, Reference] = {}
        self.pending: list[Upload] = []
        self.answers = Answers(channel)
        self.resuming: deque[Resumed] = deque()
        self.unanswered: deque[Transfer] = deque()
        self.incomplete = 0

    # From the client

    def find_reference(self, name: str) -> Reference:
        """Return an open reference.

        Raises:
            CommandInvalid: the reference is not open on this channel.
            ResourceLocked: another connection has resumed its content, or the content was discarded.
        """
        reference = self.references.get(name)
        if reference is None:
            raise CommandInvalid(
                f"reference '{name}' is not open on this channel: send message.open or message.resume first"
            )
        reference.check()
        return reference

    def open_reference(self, name: str, staged: Upload) -> None:
        """Open a reference whose body is an upload."""
        self.references[name] = Reference(name, staged)

    def check_new_reference(self, name: str) -> None:
        """Check the name of a reference before it is opened.

        Raises:
            CommandInvalid: the reference is already open.
            PreconditionFailed: the name is too long.
        """
        if name in self.references:
            raise CommandInvalid(f"reference '{name}' is already open on this channel")
        if len(name) > MAX_NAME_BYTES:
            raise PreconditionFailed(f"the name of a reference has {len(name)} bytes; expected at most {MAX_NAME_BYTES}")

    # To the client

    def fitting(self, entry: Entry, destination: str) -> Message:
        """Return the message of an entry for a transfer to a destination.

        Raises:
            Undelivered: the fields of the transfer do not fit a frame.
        """
        around = TRANSFER_OVERHEAD + len(destination.encode("utf-8", "surrogateescape")) + len(address_of(entry))
        return fitting(entry, MESSAGE, self.channel.connection.engine.method_max - around)

    def deliver(self, entry: Entry, destination: str, acknowledged: bool, resumes: bool = False) -> None:
        """Transfer a message to a destination of the client.

        Args:
            entry: the entry of the message.
            destination: the client's destination.
            acknowledged: whether the client must answer.
            resumes: whether to ask the client first for its checkpoint of a large message.

        Raises:
            Undelivered: the fields of the transfer do not fit a frame.
        """
        channel = self.channel
        connection = channel.connection
        engine = connection.engine
        message = self.fitting(entry, destination)
        start = encode(entry, message.header, destination)
        if acknowledged:
            channel.unacked.count(entry)
        tag = channel.unacked.new_tag()
        reference = f"{channel.number}.{tag}"
        # Qpid's transfers have one more byte after the body: `mandatory`.
        end = b"\0" if engine.uses_requests else b""
        room = engine.method_max - len(start) - BODY_OVERHEAD - len(end)
        transfer = Transfer(tag, entry) if acknowledged else None
        if transfer is not None:
            self.incomplete += 1
        size = message.size
        if size <= room and size <= connection.max_encoded:
            request = engine.send_encoded_method(channel.number, start + body_field(INLINE, whole(message.body)) + end)
            if transfer is not None:
                transfer.request = request
                self.unanswered.append(transfer)
                self._complete(transfer)
        else:
            payload = start + body_field(BY_REFERENCE, reference.encode()) + end
            resumed = Resumed(reference, payload, message, transfer)
            if resumes:
                resumed.identifier = f"{channel.broker.identity}.{entry.queue.id}.{entry.seq}"
                resumed.request = engine.send(
                    channel.number, "message.resume", {"reference": reference, "identifier": resumed.identifier}
                )
                self.resuming.append(resumed)
            else:
                engine.send(channel.number, "message.open", {"reference": reference})
                self._refer(resumed, 0)
        connection.mark()

    def _refer(self, resumed: Resumed, at: int) -> None:
        """Transfer a message by an open reference, and append its body from byte `at`."""
        connection = self.channel.connection
        engine = connection.engine
        request = engine.send_encoded_method(self.channel.number, resumed.payload)
        if resumed.transfer is not None:
            resumed.transfer.request = request
            self.unanswered.append(resumed.transfer)
        message = resumed.message
        size = message.size - at
        if not size:
            self.end(resumed.reference, resumed.transfer)
            return
        appending = Appending(self.channel, resumed, tail(message.body, at), size)
        if size > connection.max_encoded:
            connection.send_later(appending)
        else:
            while not appending.is_done():
                appending.encode(engine, appending.take(size))

    def offset(self, value: int) -> None:
        """Send the rest of a message that the client resumes, from byte `value`. On plain frames, it is the oldest one."""
        resuming = self.resuming
        first = self.channel.replied_first
        found = next((resumed for resumed in resuming if resumed.request == first), None)
        if found is None:
            raise CommandInvalid("message.offset: no message.resume is pending")
        if value > found.message.size:
            raise NotAllowed(
                f"message.offset: {value} exceeds the size of '{found.identifier}', {found.message.size} bytes"
            )
        resuming.remove(found)
        self._refer(found, value)
        self.channel.wake()

    def end(self, reference: str, transfer: Transfer | None) -> None:
        """Close the reference of a message whose body has been appended."""
        self.channel.connection.engine.send(self.channel.number, "message.close", {"reference": reference})
        if transfer is not None:
            self._complete(transfer)

    def _complete(self, transfer: Transfer) -> None:
        """Count a completely sent transfer as unacknowledged: the client can answer it."""
        channel = self.channel
        transfer.complete = True
        self.incomplete -= 1
        channel.unacked.put(transfer.tag, transfer.entry)

    def settled_by(self, answer: str) -> list[int]:
        """Return the delivery tags of the transfers that a `message.ok` or `message.reject` settles.

        On plain frames, it settles the oldest transfer. In responses, it names a range of requests, which may also contain
        requests other than transfers.

        Raises:
            CommandInvalid: the reference of the transfer is still open, or, on plain frames, no transfer is unanswered.
        """
        channel = self.channel
        unanswered = self.unanswered
        unacked = channel.unacked.entries
        first = channel.replied_first
        settled: list[Transfer] = []
        skipped: list[Transfer] = []
        while unanswered and (unanswered[0].request <= channel.replied_last if first else not settled):
            transfer = unanswered.popleft()
            if transfer.request < first:
                skipped.append(transfer)
            elif not transfer.complete:
                unanswered.appendleft(transfer)
                raise CommandInvalid(f"{answer}: the reference of its transfer is still open")
            elif transfer.tag in unacked:  # otherwise recovered, or acknowledged by another class
                settled.append(transfer)
        unanswered.extendleft(reversed(skipped))
        if not settled and not first:
            raise CommandInvalid(f"{answer}: no transfer is unanswered")
        return [transfer.tag for transfer in settled]

    # The channel

    def in_flight(self) -> list[Transfer]:
        """Return the incomplete transfers, which are not in the channel's `unacked`."""
        resuming = [resumed.transfer for resumed in self.resuming if resumed.transfer is not None]
        return [transfer for transfer in [*self.unanswered, *resuming] if not transfer.complete]

    def requeue_pending(self) -> None:
        """Requeue incomplete transfers, because the channel closes or its connection is lost."""
        transfers = self.in_flight()
        self.unanswered = deque(transfer for transfer in self.unanswered if transfer.complete)
        self.resuming.clear()
        self.incomplete = 0
        for transfer in reversed(transfers):
            self.channel.unacked.uncount(0, transfer.entry)
            transfer.entry.queue.requeue(transfer.entry)

    def interrupt(self) -> None:
        """Handle the loss of the connection: drop pending replies and open references, requeue incomplete transfers."""
        self.answers.interrupt()
        self._leave_references()
        self.requeue_pending()

    def forget_requests(self) -> None:
        """Requeue unanswered transfers, because a client that resumed on another connection cannot name their requests."""
        channel = self.channel
        for transfer in reversed(self.unanswered):
            entry = channel.unacked.entries.get(transfer.tag)
            if entry is not None:
                channel.unacked.remove(transfer.tag, entry)
                entry.queue.requeue(entry)
        self.unanswered.clear()

    def transaction_ended(self, committed: bool) -> None:
        """Handle the end of a transaction."""
        pending = self.pending
        self.pending = []
        for staged in pending:
            if committed:
                staged.published()
            else:
                staged.unclaim()
                leave(staged)

    def close(self) -> None:
        """Handle the end of the channel: keep uploads that have a checkpoint."""
        self.answers.close()
        self._leave_references()
        self.transaction_ended(False)

    def _leave_references(self) -> None:
        for reference in self.references.values():
            if reference.turn == reference.staged.turn:
                leave(reference.staged)
        self.references.clear()
