"""Decisions when a source's deliveries are resumed (transport section 2.6.13, messaging section 3.4.6).

Both ends send their unsettled maps. `decide` compares the two states of one delivery.
"""

from __future__ import annotations

from typing import Final

from leveret.wire.amqp10 import descriptors
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.messaging import Received
from leveret.wire.amqp10.values import Checked

# Actions for a delivery that is unsettled at the broker.
FORGET: Final = 0  # the receiver has settled it
SEND_AGAIN: Final = 1  # the receiver has not received it
WAIT: Final = 2  # the receiver's map is incomplete
RESUME: Final = 3  # send the missing part
SETTLE: Final = 4  # apply the receiver's outcome and settle
RESTATE: Final = 5  # send the broker's outcome, which differs from the receiver's
ABORT: Final = 6  # the receiver has a part, and the rest cannot be sent

OUTCOMES: Final = (descriptors.ACCEPTED, descriptors.REJECTED, descriptors.RELEASED, descriptors.MODIFIED)


class RemoteUnsettledMap:
    """The unsettled map of the client's attach.

    given       whether the attach has a map; without one, the client has lost the state of earlier deliveries
    incomplete  whether deliveries that are not in the map may still be unsettled at the client
    """

    def __init__(self, unsettled: Checked, incomplete: bool) -> None:
        self.given = unsettled is not None
        self.incomplete = incomplete
        self.states: dict[bytes, Checked] = {}
        if unsettled is not None:
            pairs = unsettled.items() if isinstance(unsettled, dict) else unsettled.pairs
            for tag, state in pairs:
                if isinstance(tag, bytes):
                    self.states[bytes(tag)] = state


def is_outcome(state: Checked) -> bool:
    """Return whether a state is terminal."""
    return isinstance(state, Composite) and state.kind in OUTCOMES


def decide(local: Composite | None, known: bool, remote: Checked, incomplete: bool = False) -> int:
    """Return the action for a delivery that is unsettled at the source.

    Args:
        local: the source's state. None if the whole message can be sent, `received` for the first position that can be
            sent, or an outcome.
        known: whether the receiver's map contains the delivery.
        remote: its state in that map.
        incomplete: whether the map is incomplete, so that a missing delivery may still be unsettled at the receiver.
    """
    ended = is_outcome(local)
    if not known:
        if incomplete:
            return WAIT
        return FORGET if ended else SEND_AGAIN
    if is_outcome(remote):
        if not ended:
            return SETTLE
        assert local is not None
        return SETTLE if local.kind == remote.kind else RESTATE
    if ended:
        return ABORT
    if isinstance(local, Received) and position_of(remote) < (local.section_number, local.section_offset):
        return ABORT
    return RESUME


def position_of(state: Checked) -> tuple[int, int]:
    """Return the receiver's position in a message as section and offset."""
    if isinstance(state, Received):
        return state.section_number, state.section_offset
    return 0, 0
