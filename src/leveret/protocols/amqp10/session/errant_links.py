"""Detaches that cross (transport sections 2.6.5 and 2.6.6), in strict mode.

The client may not have heard yet that a link has failed when it detaches the link itself. By default its detach is taken
for the answer to ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.protocols.amqp10.errors import SessionRefused
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.transport import Attach, Detach

if TYPE_CHECKING:
    from leveret.protocols.amqp10.link.link import Link
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint

# What is known of a link of some direction and name: it has failed, and the client may think that it can be attached
# again; or we have attached it again to say that it is closed, which the client will answer.
FAILED: Final = 1
CLOSED: Final = 2


class ErrantLink:
    """What is to be known of a link that we have detached with an error; not the link, which may hold much.

    closed    whether our detach has closed it
    terminus  what it leaves behind, if it has not
    """

    __slots__ = ("closed", "name", "receives", "terminus")

    def __init__(self, link: Link, closed: bool) -> None:
        self.receives = link.receives
        self.name = link.name
        self.closed = closed
        self.terminus = None if closed else link.terminus


def answer_detach(session: SessionEndpoint, link: ErrantLink, frame: Detach) -> None:
    """The client detaches such a link."""
    terminus = link.terminus
    key = (link.receives, link.name)
    if len(session.crossed_detaches) >= session.connection.own.links:
        del session.crossed_detaches[next(iter(session.crossed_detaches))]  # names that nobody ever attaches again
    if link.closed:
        if not frame.closed:
            session.crossed_detaches[key] = FAILED
    elif frame.closed and terminus is not None and not terminus.removed and terminus.link is None:
        # Ours has left the terminus alone, the client's has not: attaching is how this side closes the link, too.
        terminus.destroy()
        handle = session.new_handle()
        session.connection.send(Attach(link.name, handle, link.receives, channel=session.channel,
                                       initial_delivery_count=None if link.receives else 0))
        session.connection.send(Detach(handle, True, channel=session.channel))
        session.crossed_detaches[key] = CLOSED


def is_answer(session: SessionEndpoint, frame: Attach) -> bool:
    """Whether an attach only answers ours. SessionRefused for one that attaches again what has failed."""
    known = session.crossed_detaches.pop((not frame.role, frame.name), 0)
    if known == FAILED and frame.unsettled is None:
        raise SessionRefused(constants.SESSION_ERRANT_LINK, f"link '{frame.name}' was detached with an error: it can be"
                             " resumed, but not attached again")
    if known == CLOSED and (frame.source if frame.role else frame.target) is None:
        session.errant[frame.handle] = None
        return True
    return False
