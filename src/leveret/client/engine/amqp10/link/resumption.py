"""Resumption of a sender's unsettled deliveries on a new connection (transport 2.6.13, messaging 3.4.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.client.engine.amqp10.conditions import publish_error
from leveret.wire.amqp10 import descriptors
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.messaging import Received
from leveret.wire.amqp10.sections import section_ranges
from leveret.wire.amqp10.transport import Transfer as Performative
from leveret.wire.amqp10.values import Checked, Map

if TYPE_CHECKING:
    from leveret.client.engine.amqp10.link.outgoing import Transfer
    from leveret.client.engine.amqp10.link.sender import SenderCore

_TERMINAL: Final = (descriptors.ACCEPTED, descriptors.REJECTED, descriptors.RELEASED, descriptors.MODIFIED)


def resume(sender: SenderCore, theirs: Checked) -> None:
    """Resume the deliveries in the server's unsettled map, in order, and send the others again.

    The server never received, or has settled, a delivery that is not in its map.
    """
    known = _known(theirs)
    resumed = list(sender.resumed)
    sender.resumed.clear()
    again: list[Transfer] = []
    for transfer in resumed:
        if transfer.tag not in known:
            transfer.tag = b""
            again.append(transfer)
            continue
        state = known[transfer.tag]
        if isinstance(state, Composite) and state.kind in _TERMINAL:
            _transfer(sender, transfer, b"", state, True)
            transfer.outcome(state, publish_error(state, transfer.describe()))
        else:
            whole = b"".join(transfer.payload)
            at = state if isinstance(state, Received) else None
            _transfer(sender, transfer, whole[_offset(whole, state) :], at, False)
    sender.queue.extendleft(reversed(again))


def _known(theirs: Checked) -> dict[bytes, Checked]:
    if theirs is None:
        return {}
    return dict(theirs.pairs if isinstance(theirs, Map) else theirs)


def _offset(whole: bytes, state: Checked) -> int:
    """Return the offset of the first byte that the server lacks."""
    if not isinstance(state, Received):
        return 0
    ranges = section_ranges(whole)
    if state.section_number >= len(ranges):
        return len(whole)
    return int(min(ranges[state.section_number][1] + state.section_offset, len(whole)))


def _transfer(sender: SenderCore, transfer: Transfer, payload: bytes, state: Checked, settled: bool) -> None:
    """Send a resumed delivery, without credit, because the server has not granted any yet."""
    session = sender.session
    sender.count_resumed()
    delivery_id = session.take_delivery_id()
    session.transferred()
    session.connection.engine.output.send(
        Performative(
            sender.handle,
            delivery_id,
            transfer.tag,
            0,
            settled,
            state=state,
            resume=True,
            payload=payload,
            channel=session.number,
        )
    )
    if not settled:
        session.unsettled[delivery_id] = transfer
