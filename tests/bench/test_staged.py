"""The benchmark of staged files: every byte arrives and is delivered."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from bench import staged
from tests.support.broker import leveret_only, start_broker
from tests.support.peers.engine_amqp09 import Client


@pytest.mark.parametrize("length", [1, 131064, 5_000_001])
def test_a_file_is_staged_and_delivered(tmp_path: Path, length: int) -> None:
    leveret_only("others have no class file")
    with start_broker(tmp_path) as broker:
        client = Client(broker)
        client.call("queue.declare", "queue.declare-ok", queue=staged.QUEUE, durable=True)
        assert staged.send_file(client, "one", length) > 0
        client.call("file.consume", "file.consume-ok", queue=staged.QUEUE, no_ack=True)
        assert client.expect("file.open").arguments["content_size"] == length
        with pytest.raises(SystemExit, match=f"received {length} bytes of a file of {length + 1}"):
            staged.receive_file(client, length + 1)
        client.close()


def test_the_result_is_the_rate_of_the_large_file() -> None:
    small = staged.Result(staged.SMALL, 500, 50, 50, 40, 60, 0.1, 800)
    good = staged.Result(1024, 500, 210, 400, 40, 70, 4, 800)
    greedy = staged.Result(1024, 500, 400, 190, 40, 90, 4, 800)
    console = Console(width=200, record=True)
    console.print(staged.table([small, good], 1024, ""))
    assert ">= 200 MB/s each way: yes; at most 16 MB more memory (+10): yes" in console.export_text()
    console.print(staged.table([small, greedy], 1024, ""))
    assert ">= 200 MB/s each way: NO; at most 16 MB more memory (+30): NO" in console.export_text()
