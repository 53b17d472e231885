"""Durations of the turns of the broker's event loop and of its commits."""

from __future__ import annotations

from typing import Any

from leveret.broker.durations import BOUNDS
from leveret.management.http.control import Row
from leveret.management.http.request import Answer, Request


async def show(request: Request) -> Answer:
    """Return histograms of turns and commits since the broker's start, in seconds: the last bucket has no bound."""
    await request.cache.refresh()
    process, performance = (request.cache.process[key] for key in ("process", "performance"))
    return Answer(
        body={
            "bounds": list(BOUNDS),
            "turns": _histogram(performance["turns"]),
            "commits": _histogram(performance["commits"]),
            "loop_cpu": performance["loop_cpu"],
            "slow_turns": process["slow_turns"],
            "longest_turn": process["longest_turn"],
        }
    )


def _histogram(found: list[Any]) -> Row:
    counts, total = found
    return {"counts": counts, "total": total}
