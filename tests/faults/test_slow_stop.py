"""SIGTERM while the disk does not respond: the process ends in time, and confirmed messages survive."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from leveret import sync
from tests.support.broker import ROOT, STOP_TIMEOUT, LeveretProcess, leveret_only

SOURCE = Path(__file__).with_name("slow_sync.c")
# Far more than the broker may take, far less than the disk takes.
PATIENCE = 30


@pytest.fixture
def library(tmp_path: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path / "slow_sync.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


def test_stop_during_a_hanging_sync(library: Path, tmp_path: Path) -> None:
    leveret_only("a library is preloaded into it")
    slow = tmp_path / "slow"
    process = LeveretProcess(
        tmp_path / "broker",
        environment={"LD_PRELOAD": str(library), "SLOW_SYNC": str(slow), "LEVERET_SERVER__SHUTDOWN_TIMEOUT": "0.2"},
    ).start()
    try:
        with sync.connect(process.url()) as connection, connection.channel() as channel:
            channel.declare_queue("q", durable=True)
            channel.publish(b"confirmed", "q", persistent=True)
        unconfirmed = sync.connect(process.url(), reconnect=False)
        slow.touch()
        unconfirmed.channel(confirms=False).publish(b"in flight", "q", persistent=True)
        assert process.process is not None
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(PATIENCE) == 1
        assert "the store did not finish within 0.2 seconds ('server.shutdown_timeout')" in process.log()
        unconfirmed.close()
        slow.unlink()
        process.process = None
        process.start()
        with sync.connect(process.url()) as connection, connection.channel() as channel:
            message = channel.get("q")
            assert message is not None and bytes(message.body) == b"confirmed"
        process.stop()
    finally:
        process.kill()
    process.check_log()


def test_a_process_that_something_keeps_ends_all_the_same(tmp_path: Path) -> None:
    """A thread that never ends stands for all that the end of Python waits for."""
    leveret_only("exits")
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    )
    process = LeveretProcess(tmp_path / "broker", environment={"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"})
    process.environment["LEVERET_SERVER__SHUTDOWN_TIMEOUT"] = "0.2"
    process.start()
    assert process.process is not None
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(STOP_TIMEOUT) == 1
    assert "the process did not end within 7.1 seconds ('server.shutdown_timeout'): exiting" in process.log()
