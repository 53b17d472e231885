"""A broker of its own for a test session: nothing to install but Leveret, no fixed port, gone afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel


@pytest.fixture(scope="session")
def amqp_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a broker that keeps everything in memory and runs as long as the session."""
    directory: Path = tmp_path_factory.mktemp("leveret")
    ready = directory / "ready.json"
    command = [sys.executable, "-m", "leveret", "serve", "--host", "127.0.0.1", "--port", "0",
               "--data-dir", str(directory / "data"), "--set", "storage.engine=memory", "--ready-file", str(ready)]
    with (directory / "broker.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 20
        while not ready.exists():  # written, whole, once the broker listens
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail("the broker did not start:\n" + (directory / "broker.log").read_text())
            time.sleep(0.01)
        port = json.loads(ready.read_text())["port"]
        yield f"amqp://guest:guest@127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def channel(amqp_url: str) -> Iterator[BlockingChannel]:
    """A channel with publisher confirms; exclusive queues declared on it go with the test."""
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
