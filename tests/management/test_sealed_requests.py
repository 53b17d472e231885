"""Requests about the files of a stream, and file pins, to a broker that seals."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leveret import sync
from leveret.segments.reader import open_segment
from leveret.sync import Channel
from tests.support.broker import LeveretProcess, basic_config, leveret_only
from tests.support.polling import wait_until
from tests.support.requests import Refused, ask

LIMIT = 120.0
CONFIG = (
    basic_config()
    + """
[streams]
segment_size = 1000
grace = "1s"
"""
)


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[Channel]:
    leveret_only("it seals small segments")
    with (
        LeveretProcess(tmp_path, config=CONFIG).start() as process,
        sync.connect(process.url()) as connection,
        connection.channel() as channel,
    ):
        channel.declare_queue("s", durable=True, arguments={"x-queue-type": "stream", "x-stream-max-segments": 3})
        yield channel


def described(channel: Channel, offset: int) -> bool:
    """Whether there are segments from this offset on."""
    return bool(ask(channel, "stream.describe", stream="s", segments=True, first=offset)["segments"])


def fill(channel: Channel, segments: int) -> None:
    """Publish messages for more segments, each sealed before the next one begins."""
    for _ in range(segments):
        end = ask(channel, "stream.describe", stream="s")["next_offset"]
        for _ in range(10):
            channel.publish(bytes(100), "s")
        wait_until(partial(described, channel, end))


@pytest.mark.embedded("seals a stream")
def test_files_and_leases_on_them(channel: Channel) -> None:
    fill(channel, 3)
    described = ask(channel, "stream.describe", stream="s", segments=True)
    found = described["segments"]
    assert (found[0]["first"], found[-1]["last"]) == (0, described["next_offset"] - 1)
    for entry in found:
        with open_segment(entry["path"]) as reader:
            assert (reader.first, reader.last, reader.count) == (entry["first"], entry["last"], entry["count"])
    middle = found[1]["first"]
    assert ask(channel, "stream.describe", stream="s", segments=True, first=middle, last=middle)["segments"] == [found[1]]
    assert ask(channel, "stream.hold", stream="s", holder="h", first=0, last=middle, seconds=3600)["segments"] == found[:2]

    fill(channel, 3)  # retention removes the first three
    held, free = [Path(entry["path"]) for entry in found[:2]], Path(found[2]["path"])
    assert ask(channel, "stream.describe", stream="s")["first_offset"] > found[2]["first"]
    wait_until(lambda: not free.exists())
    assert all(path.exists() for path in held)
    # Some were removed before they were read, and one reader repeats its report.
    for first, stop in ((0, 2), (1, 2), (1, 3), (4, 5)):
        ask(channel, "stream.lost", stream="s", holder="h", first=first, stop=stop)
    end = ask(channel, "stream.describe", stream="s")["next_offset"]
    for first, stop in ((2, 2), (0, end)):
        with pytest.raises(Refused, match="are not lost"):
            ask(channel, "stream.lost", stream="s", holder="h", first=first, stop=stop)
    assert ask(channel, "stream.release", stream="s", holder="other")["lost"] == 0
    for keep in (True, True, False):
        assert ask(channel, "stream.release", stream="s", holder="h", keep_losses=keep)["lost"] == 4
    assert ask(channel, "stream.release", stream="s", holder="h")["lost"] == 0
    wait_until(lambda: not any(path.exists() for path in held))


def test_invalid_leases(channel: Channel) -> None:
    given: dict[str, Any] = {"stream": "s", "holder": "h", "first": 0, "last": 1, "seconds": 1}
    changes: list[dict[str, Any]] = [{"seconds": 0}, {"holder": ""}, {"first": -1}, {"seconds": 1e9}]
    for change in changes:
        with pytest.raises(Refused) as refused:
            ask(channel, "stream.hold", **(given | change))
        assert refused.value.condition == "command-invalid"
    assert ask(channel, "stream.hold", stream="s", holder="h", first=5, last=9, seconds=1)["segments"] == []
