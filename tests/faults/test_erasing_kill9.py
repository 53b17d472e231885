"""SIGKILL of a broker and of its sealer process while segments are rewritten.

Messages that no rule matches survive, erased messages do not return, and the same command completes an interrupted erasure.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from leveret import sync
from leveret.management.control_client import NoBroker, call
from tests.support.broker import LeveretProcess, basic_config
from tests.support.polling import wait_until

CONFIG = (
    basic_config()
    + """
[streams]
segment_size = 4000
merge_below = 0
grace = 0
"""
)
COUNT = 600
LIMIT = 120.0
RULES = [{"action": "remove", "headers": {"customer": "3"}}, {"action": "drop-body", "headers": {"customer": "4"}}]


@pytest.fixture
def configuration() -> str:
    return CONFIG


def fill(process: LeveretProcess) -> None:
    with sync.connect(process.url()) as connection, connection.channel() as channel:
        channel.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
        with channel.publisher() as publisher:
            for number in range(COUNT):
                publisher.publish(b"%0100d" % number, "s", headers={"customer": str(number % 7)})


def read(process: LeveretProcess) -> dict[int, bytes]:
    """Return all messages by offset; the last one belongs to a customer whom no rule matches."""
    found: dict[int, bytes] = {}
    with sync.connect(process.url()) as connection, connection.channel() as channel:
        for message in channel.consume("s", arguments={"x-stream-offset": "first"}):
            headers = message.properties.headers or {}
            offset = headers["x-stream-offset"]
            assert offset not in found and int(headers["customer"]) == offset % 7
            found[offset] = bytes(message.body)
            message.ack()
            if offset == COUNT - 1:
                return found
    raise AssertionError("the consumer ended")


def check(found: dict[int, bytes], before: dict[int, bytes]) -> None:
    """Messages that no rule matches exist; the rules' changes are complete or absent, but never undone."""
    for offset in range(COUNT):
        whole = b"%0100d" % offset
        if offset % 7 == 3:
            assert found.get(offset) in ((None, whole) if offset in before else (None,)), offset
        elif offset % 7 == 4:
            assert found[offset] in ((b"", whole) if before[offset] else (b"",)), offset
        else:
            assert found[offset] == whole, offset


def wait(process: LeveretProcess) -> str:
    """Return how the erasure has ended."""

    def ended() -> str:
        state = str(call(process.data_dir, "streams.erasing", {"name": "s"})["state"])
        return state if state in ("done", "failed") else ""

    return wait_until(ended, "the erasure has not ended", LIMIT)


def sealer(process: LeveretProcess) -> int:
    """Return the sealer process, a child of the broker."""
    assert process.process is not None
    [child] = Path(f"/proc/{process.process.pid}/task/{process.process.pid}/children").read_text().split()[:1] or [""]
    if child:
        return int(child)
    for task in Path(f"/proc/{process.process.pid}/task").iterdir():
        found = (task / "children").read_text().split()
        if found:
            return int(found[0])
    raise AssertionError("there is no sealer process")


def erase(process: LeveretProcess) -> None:
    call(process.data_dir, "streams.erase", {"name": "s", "rules": RULES, "seal": True})


@pytest.mark.slow
def test_interrupted_erasures_are_neither_lost_nor_undone(process: LeveretProcess) -> None:
    random.seed(4)
    process.start()
    fill(process)
    before = read(process)
    assert len(before) == COUNT
    for kill_broker in (True, False, True):
        erase(process)
        rewritten = random.randrange(1, 8)

        def reached(rewritten: int = rewritten) -> bool:
            state = call(process.data_dir, "streams.erasing", {"name": "s"})
            return bool(state["rewritten"] >= rewritten or state["state"] == "done")

        wait_until(reached, f"{rewritten} rewritten segments", LIMIT)
        if kill_broker:
            process.kill()
            with pytest.raises(NoBroker):
                call(process.data_dir, "streams.erasing", {"name": "s"})
            process.start()
        else:
            os.kill(sealer(process), signal.SIGKILL)
            wait(process)
        found = read(process)
        check(found, before)
        before = found
    erase(process)
    assert wait(process) == "done"
    found = read(process)
    assert sorted(found) == [offset for offset in range(COUNT) if offset % 7 != 3]
    assert all(not body for offset, body in found.items() if offset % 7 == 4)
    check(found, before)
    process.stop()
    process.start()
    assert read(process) == found
    known = {segment["path"] for segment in call(process.data_dir, "streams.segments", {"name": "s"})}

    def files() -> set[str]:
        return {str(path) for path in (process.data_dir / "streams").rglob("*.parquet")}

    wait_until(lambda: files() == known, lambda: files() ^ known, LIMIT)
