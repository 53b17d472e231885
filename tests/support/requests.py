"""Requests to the broker's exchange `leveret.control`, over whatever protocol a channel has."""

from __future__ import annotations

import json
from typing import Any

from leveret.sync import BaseChannel

CONTROL = "leveret.control"


class Refused(Exception):
    """An error reply, with its `condition` and `message`."""

    def __init__(self, error: dict[str, str]) -> None:
        super().__init__(f"{error['condition']}: {error['message']}")
        self.condition = error["condition"]
        self.message = error["message"]


def ask_raw(channel: BaseChannel, operation: str, body: bytes, timeout: float = 60) -> dict[str, Any]:
    """Return the reply to a request of these bytes."""
    reply = channel.request(body, operation, CONTROL, timeout=timeout)
    answer: dict[str, Any] = json.loads(reply.body)
    assert answer["version"] == 1
    return answer


def ask(channel: BaseChannel, operation: str, /, *, timeout: float = 60, **arguments: Any) -> dict[str, Any]:
    """Return the reply to a request. Raises `Refused` for an error."""
    answer = ask_raw(channel, operation, json.dumps({"version": 1, **arguments}).encode(), timeout)
    if not answer["ok"]:
        raise Refused(answer["error"])
    return answer
