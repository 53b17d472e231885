"""Notifications of `leveret serve` to systemd, on a socket of the test."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.broker import ROOT, LeveretProcess, leveret_only
from tests.support.polling import DEADLINE


class Manager:
    """The receiver of notifications."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(DEADLINE)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def next(self) -> dict[str, str]:
        """Return the assignments of the next notification other than the watchdog's."""
        while True:
            found = dict(line.split("=", 1) for line in self._socket.recv(4096).decode().splitlines())
            if "WATCHDOG" not in found:
                return found

    def wait_for_watchdog(self) -> None:
        while self._socket.recv(4096) != b"WATCHDOG=1":
            pass

    def close(self) -> None:
        self._socket.close()


@contextmanager
def managed(directory: Path, address: str, **environment: str) -> Iterator[tuple[Manager, LeveretProcess]]:
    leveret_only("systemd")
    manager = Manager(address)
    process = LeveretProcess(directory, environment={"NOTIFY_SOCKET": address, **environment})
    try:
        with process.start():
            yield manager, process
    finally:
        manager.close()


@pytest.mark.parametrize("is_abstract", [False, True])
def test_ready_reload_and_stop(tmp_path: Path, is_abstract: bool) -> None:
    address = f"@leveret-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with managed(tmp_path / "broker", address) as (manager, process):
        shards = os.environ.get("LEVERET_TEST_SHARDS")
        status = f"listening on amqp://127.0.0.1:{process.port}" + (f" with {shards} shards" if shards else "")
        assert manager.next() == {"READY": "1", "STATUS": status}
        os.kill(process.pid, signal.SIGHUP)
        reloading = manager.next()
        assert reloading["RELOADING"] == "1" and int(reloading["MONOTONIC_USEC"]) > 0
        assert manager.next() == {"READY": "1", "STATUS": status}
        process.config += "\nunknown\n"
        (process.directory / "leveret.toml").write_text(process.config)
        os.kill(process.pid, signal.SIGHUP)
        assert "RELOADING" in manager.next()
        assert manager.next()["READY"] == "1", "a configuration that is refused ends the reload, too"
        process.wait_for_log("configuration not reloaded")
        process.stop()
        assert manager.next() == {"STOPPING": "1", "STATUS": "stopping"}


def test_the_event_loop_notifies_the_watchdog(tmp_path: Path) -> None:
    with managed(tmp_path / "broker", str(tmp_path / "notify"), WATCHDOG_USEC="200000") as (manager, process):
        for _ in range(3):
            manager.wait_for_watchdog()
        process.check_log()


def test_the_watchdog_of_another_process_is_left_alone(tmp_path: Path) -> None:
    environment = {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(os.getpid())}
    with managed(tmp_path / "broker", str(tmp_path / "notify"), **environment) as (manager, process):
        assert "READY" in manager.next()
        process.stop()
        assert "STOPPING" in manager.next()
        manager._socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.wait_for_watchdog()


@pytest.mark.parametrize("address", ["vsock:2:1234", "/nonexistent/notify"])
def test_a_socket_that_cannot_be_used(tmp_path: Path, address: str) -> None:
    leveret_only("systemd")
    with LeveretProcess(tmp_path, environment={"NOTIFY_SOCKET": address}).start() as process:
        assert address in process.wait_for_log("cannot notify the service manager")


def test_the_unit_starts_the_broker_as_documented() -> None:
    unit = (ROOT / "docs/systemd/leveret.service").read_text("utf-8").splitlines()
    assert "Type=notify" in unit and any(line.startswith("WatchdogSec=") for line in unit)
    (command,) = [line.partition("=")[2] for line in unit if line.startswith("ExecStart=")]
    page = (ROOT / "docs/systemd.md").read_text("utf-8")
    for path in ("/opt/leveret", "/etc/leveret/leveret.toml"):
        assert path in command and path in page
