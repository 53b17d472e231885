"""Statistics of the last day and month: `/api/leveret/history`."""

from __future__ import annotations

import time
from typing import Final

from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request, not_authorised, not_found
from leveret.management.http.history_store import BROKER, HOUR, KEPT, MINUTE, Subject
from leveret.management.http.request import Answer, Request

_STEPS: Final = {"minute": MINUTE, "hour": HOUR}


async def show(request: Request) -> Answer:
    """Return the samples of a queue (`vhost`, `queue`), or of the whole broker.

    `step` is `minute` or `hour`; `age` is the number of seconds to go back.
    """
    name = request.query.get("step", "minute")
    step = _STEPS.get(name)
    if step is None:
        raise bad_request(f"invalid step '{name}'; expected minute or hour")
    age = request.query.get("age", str(KEPT[step]))
    if not age.isdecimal() or len(age) > 9:
        raise bad_request(f"invalid age '{age}'; expected a number of seconds")
    subject, deleted = await _subject(request)
    now = int(time.time())
    samples = await request.history.read(subject, step, now - int(age), now + 1)
    return Answer(body={**_described(samples, subject, step), "deleted": [1000 * at for at in deleted]})


async def _subject(request: Request) -> tuple[Subject, list[int]]:
    """Return the subject that the query names, and the times at which earlier queues with its name were deleted.

    If no queue has the name now, the subject is the last one that had it. Raises `HttpError` unless the user may see it.
    """
    vhost, queue = request.query.get("vhost"), request.query.get("queue")
    if vhost is None and queue is None:
        if not request.identity.is_monitor():
            raise not_authorised("the history of the whole broker requires the tag monitoring; add vhost and queue")
        return BROKER, []
    if not vhost or not queue:
        raise bad_request("expected both vhost and queue, or none of them")
    if not request.identity.sees(vhost):
        raise not_found()
    return await request.history.of_name(vhost, queue, request.cache)


async def list_queues(request: Request) -> Answer:
    """List the queues that have a history: those that were among the busiest ones."""
    found = {
        (subject.vhost, subject.queue)
        for subject in await request.history.subjects()
        if subject != BROKER and request.identity.sees(subject.vhost)
    }
    return Answer(body=[{"vhost": vhost, "name": name} for vhost, name in sorted(found)])


def _described(samples: list[tuple[int, tuple[int, ...]]], subject: Subject, step: int) -> Row:
    """Return samples, the oldest first: gauges, and increments of counters."""
    names = subject.layout.names
    return {
        "step": step,
        "gauges": list(subject.layout.gauges),
        "counters": list(subject.layout.counters),
        "samples": [{"timestamp": 1000 * at, **dict(zip(names, values, strict=True))} for at, values in samples],
    }
