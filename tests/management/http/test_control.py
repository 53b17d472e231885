"""The control socket, as the HTTP API calls it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from leveret.management.http import control
from leveret.management.http.errors import BrokerUnavailable


@pytest.mark.parametrize("sent", [b"x" * 2000, b'{"v":1,"part":[1,2,3]}\n' * 100], ids=["line", "parts"])
def test_an_answer_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(control, "MAX_ANSWER", 10_000)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for _number in range(10_000):
                writer.write(sent)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    async def run() -> None:
        async with await asyncio.start_unix_server(serve, tmp_path / "socket"):
            with pytest.raises(BrokerUnavailable, match=r"its answer has more than|exceed the limit"):
                await control.Control(tmp_path / "socket").call("status")

    asyncio.run(run())
