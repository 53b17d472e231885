"""Delivery time (annotations `x-opt-delivery-time`, `x-opt-delivery-delay`) and expiry of messages."""

from __future__ import annotations

from typing import Final

from leveret.broker.message import AT_ONCE
from leveret.protocols.amqp10.errors import LinkRefused
from leveret.wire.amqp10 import constants
from leveret.wire.amqp10.decode import section_pairs
from leveret.wire.amqp10.sections import Sections

TIME: Final = "x-opt-delivery-time"
DELAY: Final = "x-opt-delivery-delay"
_COMMON: Final = b"x-opt-delivery-"
# Slightly more than ten years, in milliseconds.
MAX_DELAY: Final = 3653 * 24 * 3600 * 1000


def delivery_time(sections: Sections, now: int, step: int) -> int:
    """Return the delivery time set by the annotations, in milliseconds of the broker's clock; 0 means now.

    `step` is the difference between the system clock, which absolute times use, and the broker's (`Timers.step`).

    Raises LinkRefused for a time that is not a whole number of milliseconds, or more than ten years ahead.
    """
    begin, end = sections.message_annotations, sections.message_annotations_end
    if sections.data.find(_COMMON, begin, end) < 0:
        return 0
    due = delay = None
    for key, item in section_pairs(sections.data, begin, end):
        if key == TIME:
            due = item
        elif key == DELAY:
            delay = item
    if due is not None:
        return _checked(TIME, due, now, -step)
    return 0 if delay is None else _checked(DELAY, delay, now, now)


def expiry_of(sections: Sections, now: int, step: int) -> int:
    """Return the expiry of a message published now, as `Message.expires_at`, from its ttl or absolute expiry time.

    Both are limited to ten years, so that sums stay within 64 bits, also in the log.
    """
    expires_at = 0
    if sections.ttl >= 0:
        expires_at = now + min(sections.ttl, MAX_DELAY) if sections.ttl else AT_ONCE
    absolute = sections.absolute_expiry_time
    if absolute > 0:
        absolute = max(absolute - step, AT_ONCE)
    if absolute > 0 and (not expires_at or absolute < expires_at):
        expires_at = min(absolute, now + MAX_DELAY)
    return expires_at


def _checked(name: str, value: object, now: int, begin: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise LinkRefused(constants.INVALID_FIELD, f"invalid annotation {name}: expected a number of milliseconds")
    due = int(value) + begin
    if due > now + MAX_DELAY:
        raise LinkRefused(constants.INVALID_FIELD, f"invalid annotation {name}: expected a time less than ten years ahead")
    return due if due > now else 0
