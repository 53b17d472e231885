"""Effects of the outcomes of deliveries on their entries (messaging section 3.4)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker import settlement
from leveret.broker.message import Entry, own_overlay
from leveret.broker.queues import entry_return
from leveret.protocols.convert.values import plain
from leveret.wire.amqp10 import descriptors
from leveret.wire.amqp10.messaging import Modified
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.protocols.amqp10.session.endpoint import SessionEndpoint


# Kinds of terminal delivery states.
OUTCOMES: Final = (descriptors.ACCEPTED, descriptors.REJECTED, descriptors.RELEASED, descriptors.MODIFIED)


def apply(session: SessionEndpoint, numbers: list[int], state: Checked) -> None:
    """Settle deliveries of a session with one state.

    For None and non-terminal states, apply the default outcome of the source.
    """
    unacked = session.unacked
    kind = 0 if state is None else state.kind
    if kind == descriptors.ACCEPTED:
        for number in numbers:
            entry = unacked.pop(number)
            entry.queue.settle(entry)
        session.count_acks(len(numbers))
        return
    if kind == descriptors.REJECTED:
        for number in numbers:
            apply_one(unacked.pop(number), state)
    else:
        entry_return.return_entries(
            session.broker, [unacked.pop(number) for number in numbers], partial(apply_one, state=state)
        )


def apply_one(entry: Entry, state: Checked) -> None:
    """Apply a state to an entry."""
    kind = 0 if state is None else state.kind
    if kind == descriptors.ACCEPTED:
        entry.queue.settle(entry)
    elif kind == descriptors.REJECTED:
        settlement.count_failure(entry)
        entry.queue.reject(entry)
    elif kind == descriptors.RELEASED:
        entry.queue.requeue(entry, False)
    elif kind == descriptors.MODIFIED:
        _modify(entry, state)
    else:
        requeue(entry)


def is_final(entry: Entry, state: Checked) -> bool:
    """Return whether a state removes an entry from its queue instead of requeuing it, at once or after a delay."""
    kind = 0 if state is None else state.kind
    if kind not in OUTCOMES:
        state = getattr(entry.holder, "default_outcome", None)
        kind = 0 if state is None else state.kind
    queue = entry.queue
    if kind == descriptors.MODIFIED:
        if state.undeliverable_here and queue.settings.dead_letter_exchange is not None:
            return not queue.retries(entry)
        return bool(state.delivery_failed) and queue.limits.exceeds_deliveries(entry)
    if kind == descriptors.RELEASED:
        return False
    if kind == descriptors.REJECTED:
        return not queue.retries(entry)
    return kind == descriptors.ACCEPTED or queue.limits.exceeds_deliveries(entry)


def requeue(entry: Entry) -> None:
    """Apply the default outcome of its source to an entry. If there is none, requeue it and count a failed attempt."""
    settle_by(entry, getattr(entry.holder, "default_outcome", None))


def settle_by(entry: Entry, default: Checked) -> None:
    """Apply a default outcome to an entry. If there is none, requeue it and count a failed attempt."""
    if default is not None and default.kind in OUTCOMES:
        apply_one(entry, default)
    else:
        entry.queue.requeue(entry)


def _modify(entry: Entry, state: Modified) -> None:
    annotations = state.message_annotations
    if isinstance(annotations, dict) and annotations:
        overlay = own_overlay(entry)
        for key, value in annotations.items():
            overlay.headers[str(key)] = plain(value)
        overlay.rendered = None
    queue = entry.queue
    if state.undeliverable_here:
        if queue.settings.dead_letter_exchange is not None:
            if state.delivery_failed:
                settlement.count_failure(entry)
            queue.reject(entry)
            return
        holder = entry.holder
        if holder is not None:
            queue.refuse(entry, holder.scope)
    queue.requeue(entry, bool(state.delivery_failed))
