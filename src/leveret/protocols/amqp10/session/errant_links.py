"""Detaches that cross (transport sections 2.6.5 and 2.6.6), in strict mode.

The client may detach a link before it learns that the link has failed. By default, its detach counts as the reply to the
broker's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.protocols.amqp10.errors import SessionRefused
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.transport import Attach, Detach

if TYPE_CHECKING:
    from leveret.protocols.amqp10.link.link import Link
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint

# States of a failed link: the client may try to attach it again; the broker has attached it again to close it, and awaits
# the reply.
FAILED: Final = 1
CLOSED: Final = 2


class ErrantLink:
    """State of a link that the broker has detached with an error. The link itself may use much memory and is not kept.

    Attributes:
        closed: whether the broker's detach closed it.
        terminus: its terminus; None if it was closed.
    """

    __slots__ = ("closed", "name", "receives", "terminus")

    def __init__(self, link: Link, closed: bool) -> None:
        self.receives = link.receives
        self.name = link.name
        self.closed = closed
        self.terminus = None if closed else link.terminus


class CrossedDetaches:
    """The links of a session whose detaches crossed, by direction and name, with their states."""

    def __init__(self) -> None:
        self._states: dict[tuple[bool, str], int] = {}

    def clear(self) -> None:
        self._states.clear()

    def answer_detach(self, session: SessionEndpoint, link: ErrantLink, frame: Detach) -> None:
        """Process the client's detach of a link that the broker has detached."""
        terminus = link.terminus
        key = (link.receives, link.name)
        if len(self._states) >= session.connection.own.links:
            del self._states[next(iter(self._states))]  # its name may never be attached again
        if link.closed:
            if not frame.closed:
                self._states[key] = FAILED
        elif frame.closed and terminus is not None and not terminus.removed and terminus.link is None:
            # The broker's detach kept the terminus, but the client's closes it: the broker attaches the link again to
            # close it.
            terminus.destroy()
            handle = session.new_handle()
            session.connection.send(
                Attach(
                    link.name,
                    handle,
                    link.receives,
                    channel=session.channel,
                    initial_delivery_count=None if link.receives else 0,
                )
            )
            session.connection.send(Detach(handle, True, channel=session.channel))
            self._states[key] = CLOSED

    def is_answer(self, frame: Attach) -> bool:
        """Return whether an attach only replies to the broker's.

        Raises:
            SessionRefused: the link has failed.
        """
        if not self._states:
            return False
        known = self._states.pop((not frame.role, frame.name), 0)
        if known == FAILED and frame.unsettled is None:
            raise SessionRefused(
                constants.SESSION_ERRANT_LINK,
                f"link '{frame.name}' was detached with an error: it can be resumed, but not attached again",
            )
        return known == CLOSED and (frame.source if frame.role else frame.target) is None
