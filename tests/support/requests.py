"""Requests to the broker's exchange `leveret.control`, over whatever protocol a channel has."""

from __future__ import annotations

import json
from typing import Any

from leveret.sync import Channel

CONTROL = "leveret.control"


class Refused(Exception):
    """An answer that says no; `condition` and `message` as it has them."""

    def __init__(self, error: dict[str, str]) -> None:
        super().__init__(f"{error['condition']}: {error['message']}")
        self.condition = error["condition"]
        self.message = error["message"]


def ask_raw(channel: Channel, operation: str, body: bytes, timeout: float = 60) -> dict[str, Any]:
    """The answer to a request of these octets."""
    reply = channel.request(body, operation, CONTROL, timeout=timeout)
    answer: dict[str, Any] = json.loads(reply.body)
    assert answer["version"] == 1
    return answer


def ask(channel: Channel, operation: str, /, *, timeout: float = 60, **arguments: Any) -> dict[str, Any]:
    """The answer to a request; `Refused` where it is none."""
    answer = ask_raw(channel, operation, json.dumps({"version": 1, **arguments}).encode(), timeout)
    if not answer["ok"]:
        raise Refused(answer["error"])
    return answer
