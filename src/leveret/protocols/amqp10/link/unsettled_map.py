"""The exchange of the unsettled maps in the attaches of a link (transport section 2.6.13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.protocols.amqp10.link.resume_actions import RemoteUnsettledMap
from leveret.protocols.amqp10.link.resume_outgoing import Resumption
from leveret.wire.amqp10.composites import encode_any, encode_composite

if TYPE_CHECKING:
    from leveret.protocols.amqp10.link.incoming import IncomingLink
    from leveret.protocols.amqp10.link.outgoing import OutgoingLink
    from leveret.protocols.amqp10.terminus.source import SourceTerminus
    from leveret.protocols.amqp10.terminus.target import TargetTerminus
    from leveret.wire.amqp10.transport import Attach

# Bytes of an attach that are neither map nor anything else, and of a tag in a map, generously.
AROUND: Final = 64
AROUND_TAG: Final = 8


def _is_reattach(terminus: SourceTerminus | TargetTerminus, link: Any, frame: Attach) -> bool:
    """Whether the session knows the deliveries of the link still, so that they simply go on (transport section 2.6.4)."""
    return frame.unsettled is None and terminus.session is link.session


def set_for_source(link: OutgoingLink, terminus: SourceTerminus, frame: Attach, answer: Attach) -> dict[bytes, Any] | None:
    """Put what is unsettled at a source into our attach. Returns what was told, None where there is nothing to compare."""
    if not terminus.attached:
        if frame.unsettled is not None:
            answer.unsettled = {}
        return None
    if _is_reattach(terminus, link, frame):
        terminus.move(link)
        if not terminus.unsettled:
            return None
    terminus.collect()
    remote = RemoteUnsettledMap(frame.unsettled, frame.incomplete_unsettled)
    # What the client has comes first, if there should be no room for everything.
    states: dict[bytes, Any] = {tag: terminus.unsettled[tag].state for tag in terminus.unsettled if tag in remote.states}
    for tag, item in terminus.unsettled.items():
        if tag not in states:
            states[tag] = item.state
    _fit(link, answer, states)
    # In the order of the deliveries again.
    return {tag: item.state for tag, item in terminus.unsettled.items() if tag in states}


def compare(link: OutgoingLink, terminus: SourceTerminus, frame: Attach, answer: Attach, states: dict[bytes, Any]) -> None:
    """Find out what becomes of the deliveries that were told."""
    only = answer.incomplete_unsettled or frame.incomplete_unsettled
    resumption = Resumption(link, terminus, only)
    resumption.compare(states, RemoteUnsettledMap(frame.unsettled, frame.incomplete_unsettled))
    if resumption.pending or only:
        link.resumption = resumption


def set_for_target(link: IncomingLink, terminus: TargetTerminus, frame: Attach, answer: Attach) -> None:
    """Put what is unsettled at a target into our attach. What the client does not know any more is settled."""
    if not terminus.attached:
        if frame.unsettled is not None:
            answer.unsettled = {}
        return
    if _is_reattach(terminus, link, frame):
        return
    terminus.collect()
    remote = RemoteUnsettledMap(frame.unsettled, frame.incomplete_unsettled)
    if not frame.incomplete_unsettled:
        for delivery in list(terminus.deliveries.values()):
            if delivery.tag not in remote.states:
                terminus.forget(delivery)
    committed = link.session.log.committed
    states: dict[bytes, Any] = {}
    for delivery in terminus.deliveries.values():
        states[delivery.tag] = delivery.reported_state(committed)
    _fit(link, answer, states)
    link.known_tags_only = answer.incomplete_unsettled


def _fit(link: Any, answer: Attach, states: dict[bytes, Any]) -> None:
    """Set the map of our attach, as much of it as a frame has room for; what has none is taken out of `states`."""
    room = link.session.connection.output.max_frame_size - len(encode_composite(answer)) - AROUND
    kept: dict[bytes, Any] = {}
    for tag, state in states.items():
        room -= len(tag) + AROUND_TAG + len(encode_any(state))
        if room < 0:
            answer.incomplete_unsettled = True
            break
        kept[tag] = state
    if answer.incomplete_unsettled:
        for tag in list(states):
            if tag not in kept:
                del states[tag]
    answer.unsettled = kept
