"""Subscriptions to live events."""

from __future__ import annotations

from leveret.management.http.events import EventStream
from leveret.management.http.request import Answer, Request


async def subscribe(request: Request) -> Answer:
    """Stream events. `kinds` of the query selects some; the header `Last-Event-ID` continues an earlier stream."""
    kinds = [kind for kind in request.query.get("kinds", "").split(",") if kind]
    last_id = request.headers.get("last-event-id", request.query.get("last_event_id", ""))
    return Answer(body=EventStream(request.events, request.events.subscribe(request.identity, kinds, last_id)))
