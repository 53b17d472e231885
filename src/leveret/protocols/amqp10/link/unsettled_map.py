"""Exchange of unsettled maps in the attaches of a link (transport section 2.6.13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from leveret.protocols.amqp10.link.resume_actions import RemoteUnsettledMap
from leveret.protocols.amqp10.link.resume_outgoing import Resumption
from leveret.wire.amqp10.composites import encode_any, encode_composite
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.protocols.amqp10.link.incoming import IncomingLink
    from leveret.protocols.amqp10.link.link import Link
    from leveret.protocols.amqp10.link.outgoing import OutgoingLink
    from leveret.protocols.amqp10.terminus.source import SourceTerminus
    from leveret.protocols.amqp10.terminus.target import TargetTerminus
    from leveret.wire.amqp10.transport import Attach

# Upper bounds on the bytes of an attach around its map, and of a tag in the map around its content.
AROUND: Final = 64
AROUND_TAG: Final = 8


# The states of deliveries by their tags.
States: TypeAlias = dict[bytes, Checked]


def _is_reattach(terminus: SourceTerminus | TargetTerminus, link: Link, frame: Attach) -> bool:
    """Return whether the session still has the link's deliveries, which then continue (transport 2.6.4)."""
    return frame.unsettled is None and terminus.session is link.session


def set_for_source(link: OutgoingLink, terminus: SourceTerminus, frame: Attach, answer: Attach) -> States | None:
    """Add the unsettled map of a source to the broker's attach. Return it; None if there is nothing to compare."""
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
    # The deliveries in the client's map come first, in case the frame is too small for all.
    states: States = {tag: terminus.unsettled[tag].state for tag in terminus.unsettled if tag in remote.states}
    for tag, item in terminus.unsettled.items():
        if tag not in states:
            states[tag] = item.state
    _fit(link, answer, states)
    # Restore the order of the deliveries.
    return {tag: item.state for tag, item in terminus.unsettled.items() if tag in states}


def compare(link: OutgoingLink, terminus: SourceTerminus, frame: Attach, answer: Attach, states: States) -> None:
    """Compare the map that was sent with the client's, and set the link's deliveries to resume."""
    incomplete = answer.incomplete_unsettled or frame.incomplete_unsettled
    resumption = Resumption(link, terminus, incomplete)
    resumption.compare(states, RemoteUnsettledMap(frame.unsettled, frame.incomplete_unsettled))
    if resumption.pending or incomplete:
        link.resume(resumption)


def set_for_target(link: IncomingLink, terminus: TargetTerminus, frame: Attach, answer: Attach) -> None:
    """Add the unsettled map of a target to the broker's attach. Settle deliveries that are not in the client's map."""
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
    states: States = {}
    for delivery in terminus.deliveries.values():
        states[delivery.tag] = delivery.reported_state(committed)
    _fit(link, answer, states)
    if answer.incomplete_unsettled:
        link.only_resume()


def _fit(link: Link, answer: Attach, states: States) -> None:
    """Set the map of the broker's attach to the part that fits a frame; remove the rest from `states`."""
    room = link.session.connection.output.max_frame_size - len(encode_composite(answer)) - AROUND
    kept: States = {}
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
