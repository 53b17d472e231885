"""Which deliveries of a source are resumed, and how (transport section 2.6.13, messaging section 3.4.6).

Both ends tell what is unsettled at them. `decide` compares the two states of one delivery.
"""

from __future__ import annotations

from typing import Any, Final

from leveret.wire.amqp10 import descriptors
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.messaging import Received

# What is to be done with a delivery that is unsettled here.
FORGET: Final = 0  # the receiver has done with it, and so has the source
SEND_AGAIN: Final = 1  # the receiver has never seen it
WAIT: Final = 2  # the receiver has not said whether it knows of it
RESUME: Final = 3  # send what is missing
SETTLE: Final = 4  # apply the receiver's outcome, and say that it is settled
RESTATE: Final = 5  # the outcome is another than the receiver's
ABORT: Final = 6  # the receiver has a part, and the rest cannot be sent

OUTCOMES: Final = (descriptors.ACCEPTED, descriptors.REJECTED, descriptors.RELEASED, descriptors.MODIFIED)


class RemoteUnsettledMap:
    """The unsettled map of the client's attach.

    given       whether there was one: a client without knows nothing of what was before
    incomplete  whether what is not in it may be unsettled there all the same
    """

    def __init__(self, unsettled: Any, incomplete: bool) -> None:
        self.given = unsettled is not None
        self.incomplete = incomplete
        self.states: dict[bytes, Any] = {}
        if unsettled is not None:
            pairs = unsettled.items() if isinstance(unsettled, dict) else unsettled.pairs
            for tag, state in pairs:
                if isinstance(tag, bytes):
                    self.states[bytes(tag)] = state


def is_outcome(state: Any) -> bool:
    """Whether a state is terminal."""
    return isinstance(state, Composite) and state.kind in OUTCOMES


def decide(local: Composite | None, known: bool, remote: Any, incomplete: bool = False) -> int:
    """What becomes of a delivery that is unsettled at the source.

    local  the source's state: None while all of the message can be sent, `received` for the first position that can, or
           an outcome
    known  whether the receiver has the delivery, and `remote` its state; incomplete: what it does not tell says nothing
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


def position_of(state: Any) -> tuple[int, int]:
    """How far the receiver has a message, as section and offset."""
    if isinstance(state, Received):
        return state.section_number, state.section_offset
    return 0, 0
