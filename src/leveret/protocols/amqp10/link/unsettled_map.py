"""Exchange of unsettled maps in the attaches of a link (transport section 2.6.13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from leveret.protocols.amqp10.link.resume_outgoing import Resumption
from leveret.wire.amqp10.composites import encode_any, encode_composite, encode_map

if TYPE_CHECKING:
    from leveret.protocols.amqp10.link.incoming import IncomingLink
    from leveret.protocols.amqp10.link.outgoing import OutgoingLink
    from leveret.protocols.amqp10.link.pending_attach import PendingAttach
    from leveret.protocols.amqp10.link.resume_actions import RemoteUnsettledMap
    from leveret.protocols.amqp10.terminus.source import SourceTerminus
    from leveret.protocols.amqp10.terminus.target import TargetTerminus
    from leveret.wire.amqp10.composite import Composite
    from leveret.wire.amqp10.transport import Attach

# Upper bound on the bytes of an attach around its map.
AROUND: Final = 64
# Deliveries that are encoded between two checks of the budget.
ENCODED_AT_ONCE: Final = 64
# Units of work to encode the state of a delivery.
STATE_WORK: Final = 5


class LocalUnsettledMap:
    """The unsettled map of a terminus, encoded in steps for the broker's attach.

    Attributes:
        tags: the tags of the deliveries, in the order of the terminus; after `add_to`, only of those in the map.
    """

    def __init__(self, tags: list[bytes], max_frame_size: int) -> None:
        self.tags = tags
        self._max_frame_size = max_frame_size
        self._encoded: list[bytes] = []
        self._pieces: list[bytes] = []
        self._size = 0

    def encoding(self, state_of: Callable[[bytes], Composite | None], remote: RemoteUnsettledMap) -> Iterator[int]:
        """Encode the deliveries in steps, as long as they fit a frame: first those in the client's map."""
        known = remote.states
        own = set(self.tags) if known else set()
        work = 0
        for tag in chain(
            (tag for tag in known if tag in own),
            (tag for tag in self.tags if tag not in known),
        ):
            state = state_of(tag)
            piece = encode_any(tag) + encode_any(state)
            self._size += len(piece)
            self._encoded.append(tag)
            self._pieces.append(piece)
            if self._size > self._max_frame_size:
                break
            work += 1 if state is None else STATE_WORK
            if work >= ENCODED_AT_ONCE:
                yield work
                work = 0
        yield work

    def add_to(self, answer: Attach) -> None:
        """Set the map of the broker's attach, without the deliveries that do not fit its frame."""
        room = self._max_frame_size - len(encode_composite(answer)) - AROUND
        while self._size > room and self._pieces:
            self._size -= len(self._pieces.pop())
            self._encoded.pop()
        if len(self._encoded) < len(self.tags):
            answer.incomplete_unsettled = True
            kept = set(self._encoded)
            self.tags = [tag for tag in self.tags if tag in kept]
        answer.unsettled = encode_map(self._pieces)


def set_for_source(
    link: OutgoingLink, terminus: SourceTerminus, frame: Attach, answer: Attach, pending: PendingAttach | None
) -> LocalUnsettledMap | None:
    """Add the unsettled map of a source to the broker's attach. Return it; None if there is nothing to compare."""
    if not terminus.attached:
        if frame.unsettled is not None:
            answer.unsettled = {}
        return None
    assert pending is not None
    if pending.continues:
        terminus.move(link, pending.tags)
    local = pending.local
    if local is not None:
        local.add_to(answer)
    return local


def compare(
    link: OutgoingLink, terminus: SourceTerminus, answer: Attach, pending: PendingAttach, local: LocalUnsettledMap
) -> None:
    """Compare the map that was sent with the client's, and set the link's deliveries to resume."""
    incomplete = answer.incomplete_unsettled or pending.frame.incomplete_unsettled
    resumption = Resumption(link, terminus, pending.remote, incomplete)
    resumption.compare(local.tags)
    if resumption.comparing or resumption.pending or incomplete:
        link.resume(resumption)


def set_for_target(
    link: IncomingLink, terminus: TargetTerminus, frame: Attach, answer: Attach, pending: PendingAttach | None
) -> None:
    """Add the unsettled map of a target to the broker's attach."""
    if not terminus.attached:
        if frame.unsettled is not None:
            answer.unsettled = {}
        return
    assert pending is not None
    local = pending.local
    if local is not None:
        local.add_to(answer)
        if answer.incomplete_unsettled:
            link.only_resume()
