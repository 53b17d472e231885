"""What a channel has to do with class message of 0-9, in both directions.

To the client a message goes as `message.transfer`, where it is large between `message.open` and `message.append`s that
end with `message.close`. From the client it comes the same way. A consumer that keeps checkpoints is asked by
`message.resume` instead what it has of a large message already, and sent checkpoints on the way.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.broker.bodies import whole
from leveret.broker.errors import CommandInvalid, NotAllowed, PreconditionFailed
from leveret.broker.message import Entry
from leveret.broker.uploads import Upload
from leveret.protocols.amqp09.contents.answers import Answers
from leveret.protocols.amqp09.contents.bodies import tail
from leveret.protocols.amqp09.contents.content import as_class
from leveret.protocols.amqp09.contents.references import MAX_NAME_BYTES, Reference, leave
from leveret.protocols.amqp09.contents.transfers import (
    BODY_OVERHEAD,
    BY_REFERENCE,
    INLINE,
    Appending,
    Resumed,
    Transfer,
    body_field,
    encode,
    without_headers,
)
from leveret.wire.amqp0.classes import MESSAGE

if TYPE_CHECKING:
    from leveret.protocols.amqp09.channel.channel import Channel


class Messages:
    """Class message on one channel.

    references  the client's that are open, by name
    pending     contents of closed ones, published in a transaction that is not committed
    answers     the broker's, in order
    resuming    deliveries to consumers that keep checkpoints, and have not said yet how much they have
    unanswered  transfers that the client has to answer, in the order in which they went out: not those of consumers and
                gets without acknowledgement, which need no response
    incomplete  how many of them have not gone out as a whole: they are not among the channel's unacknowledged
    answered    those that it has answered in a transaction that is not committed
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.references: dict[str, Reference] = {}
        self.pending: list[Upload] = []
        self.answers = Answers(channel)
        self.resuming: deque[Resumed] = deque()
        self.unanswered: deque[Transfer] = deque()
        self.incomplete = 0
        self.answered: list[Transfer] = []

    # From the client

    def find_reference(self, name: str) -> Reference:
        """Return an open reference.

        Raises:
            CommandInvalid: it is not open on this channel.
            ResourceLocked: another connection has resumed its content.
        """
        reference = self.references.get(name)
        if reference is None:
            raise CommandInvalid(
                f"reference '{name}' is not open on this channel: send message.open or message.resume first"
            )
        reference.check()
        return reference

    def open_reference(self, name: str, staged: Upload) -> None:
        """Open a reference whose body goes to an upload."""
        self.references[name] = Reference(name, staged)

    def check_new_reference(self, name: str) -> None:
        """Check the name of a reference that is to be opened.

        Raises:
            CommandInvalid: it is open already.
            PreconditionFailed: the name is too long.
        """
        if name in self.references:
            raise CommandInvalid(f"reference '{name}' is already open on this channel")
        if len(name) > MAX_NAME_BYTES:
            raise PreconditionFailed(f"the name of a reference has {len(name)} bytes; expected at most {MAX_NAME_BYTES}")

    # To the client

    def deliver(self, entry: Entry, destination: str, acknowledged: bool, resumes: bool = False) -> None:
        """Transfer a message to a destination of the client's. `acknowledged`: it has to answer. `resumes`: it is asked for
        its checkpoint of a large one first."""
        channel = self.channel
        connection = channel.connection
        engine = connection.engine
        message = as_class(entry, MESSAGE)
        header = message.header
        start = encode(entry, header, destination)
        tag = channel.next_tag
        channel.next_tag = tag + 1
        reference = f"{channel.number}.{tag}"
        # Behind the body Qpid's peers have one more byte: `mandatory`.
        end = b"\0" if engine.uses_requests else b""
        room = engine.method_max - len(start) - BODY_OVERHEAD - len(end)
        if len(reference) > room:
            start = encode(entry, without_headers(header, message.size), destination)
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
        """Transfer a message by a reference that is open, and append its body from some byte on."""
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
        """The client has so many bytes of what it was asked to resume: on plain frames the oldest such content."""
        resuming = self.resuming
        first = self.channel.answers_from
        found = next((resumed for resumed in resuming if resumed.request == first), None)
        if found is None:
            raise CommandInvalid("message.offset: there is no message.resume that it could answer")
        if value > found.message.size:
            raise NotAllowed(
                f"message.offset: {value} bytes of '{found.identifier}' are there already, but it has {found.message.size}"
            )
        resuming.remove(found)
        self._refer(found, value)
        self.channel.wake()

    def end(self, reference: str, transfer: Transfer | None) -> None:
        """All of a message was appended to its reference."""
        self.channel.connection.engine.send(self.channel.number, "message.close", {"reference": reference})
        if transfer is not None:
            self._complete(transfer)

    def _complete(self, transfer: Transfer) -> None:
        """The client may answer now."""
        channel = self.channel
        transfer.complete = True
        self.incomplete -= 1
        channel.unacked[transfer.tag] = transfer.entry
        if channel.times is not None:
            channel.times[transfer.tag] = channel.broker.timers.now()

    def settled_by(self, answer: str) -> list[int]:
        """The delivery tags of the transfers that the client settles by `message.ok` or `message.reject`. On plain frames
        these name nothing and settle the oldest one; CommandInvalid where there is none. In responses they name requests,
        of which those that are no transfers need nothing. CommandInvalid for a transfer by a reference that is open."""
        channel = self.channel
        unanswered = self.unanswered
        unacked = channel.unacked
        first = channel.answers_from
        settled: list[Transfer] = []
        skipped: list[Transfer] = []
        while unanswered and (unanswered[0].request <= channel.answers_to if first else not settled):
            transfer = unanswered.popleft()
            if transfer.request < first:
                skipped.append(transfer)
            elif not transfer.complete:
                unanswered.appendleft(transfer)
                raise CommandInvalid(f"{answer}: the reference of the transfer that it answers is open")
            elif transfer.tag in unacked:  # else it was recovered, or acknowledged by another class
                settled.append(transfer)
        unanswered.extendleft(reversed(skipped))
        if not settled and not first:
            raise CommandInvalid(f"{answer}: there is no transfer that it could answer")
        if channel.transacted:
            self.answered.extend(settled)
        return [transfer.tag for transfer in settled]

    # The channel

    def in_flight(self) -> list[Transfer]:
        """What has not gone out to the client as a whole, and is not among what the channel holds unacknowledged."""
        resuming = [resumed.transfer for resumed in self.resuming if resumed.transfer is not None]
        return [transfer for transfer in [*self.unanswered, *resuming] if not transfer.complete]

    def requeue_pending(self) -> None:
        """The channel closes, or its connection is lost: what has not gone out as a whole goes back."""
        transfers = self.in_flight()
        self.unanswered = deque(transfer for transfer in self.unanswered if transfer.complete)
        self.resuming.clear()
        self.incomplete = 0
        for transfer in reversed(transfers):
            self.channel.uncount(0, transfer.entry)
            transfer.entry.queue.requeue(transfer.entry)

    def interrupt(self) -> None:
        """The connection is lost, and with it what is under way: the broker's answers, references in both directions."""
        self.answers.interrupt()
        self._leave_references()
        self.requeue_pending()

    def forget_requests(self) -> None:
        """Resume on another connection: the client cannot name the requests of unanswered transfers."""
        channel = self.channel
        for transfer in reversed(self.unanswered):
            entry = channel.unacked.pop(transfer.tag, None)
            if entry is not None:
                channel.uncount(transfer.tag, entry)
                entry.queue.requeue(entry)
        self.unanswered.clear()

    def transaction_ended(self, committed: bool) -> None:
        """The transaction is about to be committed, or was rolled back: then the client answers once more."""
        pending = self.pending
        self.pending = []
        for staged in pending:
            if committed:
                staged.published()
            else:
                staged.taken = False
                leave(staged)
        if not committed:
            self.unanswered.extendleft(reversed(self.answered))
        self.answered = []

    def close(self) -> None:
        """The channel is gone: what has a checkpoint waits for another one."""
        self.answers.close()
        self._leave_references()
        self.transaction_ended(False)

    def _leave_references(self) -> None:
        for reference in self.references.values():
            if reference.turn == reference.staged.turn:
                leave(reference.staged)
        self.references.clear()
