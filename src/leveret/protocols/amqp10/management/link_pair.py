"""The link pair of the management node: requests arrive on one link, responses leave on another of the same name.

Both links are settled and have the property `paired`. Either may be attached first. A response waits for the client's
credit, and until the change that it reports is on disk. The broker grants credit for up to `MAX_REQUESTS` requests and
responses in flight.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker.log import CommitWaiter
from leveret.protocols.amqp10.errors import LinkRefused, make_error
from leveret.protocols.amqp10.link.incoming import IncomingLink
from leveret.protocols.amqp10.link.link import Link
from leveret.protocols.amqp10.link.outgoing import Sending
from leveret.protocols.amqp10.management import router
from leveret.protocols.amqp10.session.serial_numbers import MASK, WINDOW, credit_left
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.transport import Attach, Flow, Transfer
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint

MANAGEMENT: Final = "/management"
PAIRED: Final = "paired"
CAPABILITY: Final = "LINK_PAIR_V1_0"
# Maximum number of requests and responses in flight.
MAX_REQUESTS: Final = 64
# Maximum bytes of one request.
MAX_REQUEST_BYTES: Final = 1 << 20
# Maximum bytes of a connection's pending responses. Above this, requests are refused.
MAX_ANSWER_BYTES: Final = 4 << 20


class PendingResponse:
    """A pending response.

    Attributes:
        batch: the commit that it waits for.
        removing: whether it first waits for the removal of the deleted object, then for the commit; or for the
            verification of a token.
        detaching: the client's own links whose node was deleted, and the texts of the errors. They are detached after the
            response, because blocking clients would mistake an earlier detach for the response.
    """

    __slots__ = ("batch", "detaching", "payload", "removing")

    def __init__(self, payload: bytes, batch: int, detaching: list[tuple[Link, str]], removing: bool) -> None:
        self.payload = payload
        self.batch = batch
        self.detaching = detaching
        self.removing = removing


class PendingResponses:
    """The unsent responses of a connection, and the links that the request in progress detaches.

    Attributes:
        size: bytes of the responses.
        detaching: links whose node is deleted now, which are detached after the response; None if there is no request in
            progress.
    """

    def __init__(self) -> None:
        self.size = 0
        self.detaching: list[tuple[Link, str]] | None = None

    def add(self, size: int) -> None:
        """Count a response of `size` bytes."""
        self.size += size

    def remove(self, size: int) -> None:
        """Stop counting responses that were sent or dropped."""
        self.size -= size

    def begin_detaching(self, links: list[tuple[Link, str]] | None) -> None:
        """Collect the links whose node is deleted from now on in this list; None detaches them at once."""
        self.detaching = links

    def detach_later(self, link: Link, text: str) -> bool:
        """Add a link whose node was deleted. Return False if it must be detached at once."""
        if self.detaching is None:
            return False
        self.detaching.append((link, text))
        return True


class LinkPair(CommitWaiter):
    """The attached links of a pair.

    Attributes:
        waiting: responses that wait for their commit. Like those in `ready`, they count towards the connection's limit.
        ready: responses that wait for credit.
        unindexed: requests that wait until all messages are indexed.
    """

    def __init__(self, session: SessionEndpoint, name: str) -> None:
        self.session = session
        self.name = name
        self.requests: RequestLink | None = None
        self.answers: AnswerLink | None = None
        self.waiting: deque[PendingResponse] = deque()
        self.ready: deque[bytes] = deque()
        self.unindexed: deque[bytes] = deque()

    def perform(self, payload: bytes) -> None:
        """Perform a request, when all messages are indexed."""
        indexing = self.session.broker.indexing
        if indexing.is_active():
            self.unindexed.append(payload)
            indexing.after(self._perform_next)
        else:
            self._perform(payload)

    def _perform_next(self) -> None:
        """Perform the first request that has waited until all messages are indexed."""
        payload = self.unindexed.popleft()
        if self.session.link_pairs.get(self.name) is self and not self.session.closing:
            self._perform(payload)
            self.session.connection.mark()

    def _perform(self, payload: bytes) -> None:
        session = self.session
        connection = session.connection
        busy = ""
        responses = connection.responses
        if responses.size > MAX_ANSWER_BYTES:
            busy = f"responses of {responses.size} bytes wait for credit; expected at most {MAX_ANSWER_BYTES}"
        detaching: list[tuple[Link, str]] = []
        responses.begin_detaching(detaching)
        try:
            message, answer = router.answer(connection, payload, busy)
        finally:
            responses.begin_detaching(self._detaching_links())
        removals = session.broker.jobs.removals
        renewal = answer.renewal
        is_removing = answer.removed and bool(removals.pending)
        waiting = PendingResponse(message, 0, detaching, is_removing or renewal is not None)
        self.waiting.append(waiting)
        responses.add(len(message))
        if renewal is not None:
            renewal.when_resolved(partial(self._renewed, waiting))
        elif is_removing:
            responses.begin_detaching(detaching)
            removals.after(partial(self._removed, waiting, answer.kept))
        else:
            self._wait(waiting, answer.kept)

    def _removed(self, waiting: PendingResponse, kept: bool) -> None:
        """Continue after the removal of the deleted object."""
        waiting.removing = False
        self.session.connection.responses.begin_detaching(self._detaching_links())
        self._wait(waiting, kept)
        self.session.connection.mark()

    def _renewed(self, waiting: PendingResponse, refusal: bytes) -> None:
        """Continue after the verification of a token."""
        if refusal:
            self.session.connection.responses.add(len(refusal) - len(waiting.payload))
            waiting.payload = refusal
        waiting.removing = False
        self._resolve()

    def _detaching_links(self) -> list[tuple[Link, str]] | None:
        """Return the list for links whose node is deleted now: that of the latest unfinished removal."""
        return next((waiting.detaching for waiting in reversed(self.waiting) if waiting.removing), None)

    def _wait(self, waiting: PendingResponse, kept: bool) -> None:
        log = self.session.log
        if kept and log.has_pending():
            waiting.batch = log.filling
            log.wait(self)
        self._resolve()

    def committed(self, batch: int) -> None:
        self._resolve()

    def _resolve(self) -> None:
        """Send responses whose commits are done, in the order of the requests."""
        waiting = self.waiting
        committed = self.session.log.committed
        while waiting and not waiting[0].removing and waiting[0].batch <= committed:
            first = waiting.popleft()
            self.ready.append(first.payload)
            self.send()
            for link, text in first.detaching:
                link.node_deleted(text)
        if self.answers is None and self.requests is None:
            self.forget_ready()

    def send(self) -> None:
        """Send responses while there is credit."""
        link = self.answers
        if link is None or self.session.closing:
            return
        while self.ready and link.can_send():
            payload = self.ready.popleft()
            self.session.connection.responses.remove(len(payload))
            link.send(payload)
        if self.requests is not None:
            self.requests.grant()

    def forget_ready(self) -> None:
        """Drop pending responses: their link is closed."""
        self.session.connection.responses.remove(sum(len(payload) for payload in self.ready))
        self.ready.clear()

    def close_if_empty(self) -> None:
        """Drop pending responses and the pair itself if both links are closed."""
        if self.answers is None and self.requests is None:
            self.forget_ready()
            if self.session.link_pairs.get(self.name) is self:
                del self.session.link_pairs[self.name]

    def room(self) -> int:
        """Return how many more requests the client may send."""
        return MAX_REQUESTS - len(self.waiting) - len(self.ready) - len(self.unindexed)


class RequestLink(IncomingLink):
    """The link that receives requests."""

    def __init__(self, session: SessionEndpoint, frame: Attach, handle: int, pair: LinkPair) -> None:
        super().__init__(session, frame, handle)
        self.pair = pair
        self.spools = False
        self.max_size = min(self.max_size or MAX_REQUEST_BYTES, MAX_REQUEST_BYTES)

    def address_text(self) -> str:
        return MANAGEMENT

    def grant(self) -> None:
        """Grant credit for the requests that may be in flight."""
        room = self.pair.room()
        if not self.closed and self.credit < room and self.credit <= MAX_REQUESTS >> 1:
            self.credit = room
            self.send_flow()

    def is_alarm_exempt(self) -> bool:
        """Return True: a purge may clear an alarm."""
        return True

    def transfer(self, frame: Transfer) -> None:
        super().transfer(frame)
        self.grant()

    def _used(self) -> None:
        """Count a request against the credit; its response restores it."""
        self.delivery_count = (self.delivery_count + 1) & MASK
        self.credit -= 1

    def complete(self, payload: bytes) -> None:
        """Perform a received request."""
        self.pair.perform(payload)

    def close(self) -> None:
        if self.pair.requests is self:
            self.pair.requests = None
            self.pair.close_if_empty()
        super().close()


class AnswerLink(Link):
    """The link that sends responses."""

    def __init__(self, session: SessionEndpoint, frame: Attach, handle: int, pair: LinkPair) -> None:
        super().__init__(session, frame, handle)
        self.pair = pair
        self.max_size: int = frame.max_message_size or 0

    def size_limit(self) -> int:
        return self.max_size

    def address_text(self) -> str:
        return MANAGEMENT

    def flow(self, frame: Flow) -> None:
        if frame.link_credit is not None:
            self.credit = credit_left(frame.link_credit, frame.delivery_count, self.delivery_count)
        self.pair.send()
        if self.closed:
            return
        if frame.drain:
            self.delivery_count = (self.delivery_count + self.credit) & MASK
            self.credit = 0
        if frame.drain or frame.echo:
            self._send_flow(frame.drain)

    def _send_flow(self, drain: bool) -> None:
        session = self.session
        session.connection.send(
            Flow(
                session.incoming_window,
                session.next_outgoing_id,
                WINDOW,
                session.next_incoming_id,
                self.handle,
                self.delivery_count,
                self.credit,
                len(self.pair.ready),
                drain,
                channel=session.channel,
            )
        )

    def can_send(self) -> bool:
        session = self.session
        return self.credit > 0 and session.remote_window > 0 and not session.sending

    def send(self, payload: bytes) -> None:
        """Send a response, in several frames if it is long. Detach the link if the client does not accept its size."""
        if 0 < self.max_size < len(payload):
            text = f"a response of {len(payload)} bytes exceeds the max-message-size of link '{self.name}', {self.max_size}"
            self.session.refuse(self, make_error(constants.LINK_MESSAGE_SIZE_EXCEEDED, text))
            return
        number = self.use_credit()
        self.session.send(Sending(self, number, number.to_bytes(4, "big"), True, payload, b"", b""))

    def wake(self) -> None:
        """Send pending responses: the window or the socket has room again."""
        self.pair.send()

    def close(self) -> None:
        """Drop the unsent responses."""
        if self.pair.answers is self:
            self.pair.answers = None
            self.pair.forget_ready()
            self.pair.close_if_empty()
            if self.pair.requests is not None:
                self.pair.requests.grant()
        self.forget()


def wants(address: Checked) -> bool:
    """Return whether an address is that of the management node."""
    return bool(address == MANAGEMENT)


def attach_requests(session: SessionEndpoint, frame: Attach, handle: int) -> RequestLink:
    """Attach the link on which the client sends."""
    pair = _pair(session, frame)
    link = RequestLink(session, frame, handle, pair)
    pair.requests = link
    _answer(session, frame, handle, link.max_size)
    return link


def attach_answers(session: SessionEndpoint, frame: Attach, handle: int) -> AnswerLink:
    """Attach the link on which the client receives."""
    pair = _pair(session, frame)
    link = AnswerLink(session, frame, handle, pair)
    pair.answers = link
    _answer(session, frame, handle, None)
    return link


def _pair(session: SessionEndpoint, frame: Attach) -> LinkPair:
    """Return the pair that has a link of this name in the other direction, or a new pair."""
    properties = frame.properties
    if not isinstance(properties, dict) or properties.get(PAIRED) is not True:
        raise LinkRefused(
            constants.INVALID_FIELD,
            f"links to {MANAGEMENT} require the property {PAIRED}=true: requests and responses use a pair of links",
        )
    if frame.snd_settle_mode != constants.SENDER_SETTLE_MODE_SETTLED:
        raise LinkRefused(constants.INVALID_FIELD, f"links to {MANAGEMENT} require snd-settle-mode settled")
    pair = session.link_pairs.get(frame.name)
    if pair is None:
        pair = session.link_pairs[frame.name] = LinkPair(session, frame.name)
    return pair


def _answer(session: SessionEndpoint, frame: Attach, handle: int, max_size: int | None) -> None:
    ours = not frame.role
    session.connection.send(
        Attach(
            frame.name,
            handle,
            ours,
            frame.snd_settle_mode,
            frame.rcv_settle_mode,
            frame.source,
            frame.target,
            initial_delivery_count=None if ours else 0,
            max_message_size=max_size,
            properties=frame.properties,
            channel=session.channel,
        )
    )
