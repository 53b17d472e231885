"""A listener that runs out of file descriptors waits, and resumes by itself."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret import sync
from leveret.server import listener as module
from leveret.server.listener import MAX_PER_TURN, Listener
from tests.cli.runner import Commands
from tests.support.broker import LeveretProcess, leveret_only


class Loop:
    """An event loop that only records what it reads."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], None]] = {}

    def add_reader(self, descriptor: int, callback: Callable[[], None]) -> None:
        self.readers[descriptor] = callback

    def remove_reader(self, descriptor: int) -> None:
        self.readers.pop(descriptor, None)

    def turn(self) -> None:
        for callback in list(self.readers.values()):
            callback()


class Socket:
    """A listening socket that always has a client, or an error."""

    def __init__(self) -> None:
        self.real = socket.socket()
        self.accepts = 0
        self.error: OSError | None = None

    def getsockname(self) -> Any:
        return ("127.0.0.1", 5672)

    def fileno(self) -> int:
        return self.real.fileno()

    def setblocking(self, flag: bool) -> None:
        """Do nothing: it never blocks."""

    def listen(self, backlog: int) -> None:
        """Raise an error: there is no connection."""

    def accept(self) -> Any:
        self.accepts += 1
        if self.error is not None:
            raise self.error
        return self.real, ("127.0.0.1", 1)


@pytest.fixture
def listening() -> Iterator[Socket]:
    one = Socket()
    yield one
    one.real.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_it_tries_once_and_then_on_request(listening: Socket, number: int, caplog: pytest.LogCaptureFixture) -> None:
    loop, taken = Loop(), []
    listener = Listener(loop, listening, lambda *arguments: taken.append(arguments))  # type: ignore[arg-type]
    listener.start(10)
    listening.error = OSError(number, os.strerror(number))
    for _ in range(100):
        loop.turn()
    assert (listening.accepts, taken, listener.paused) == (1, [], True)
    for _ in range(3):
        listener.check()
        loop.turn()
    assert listening.accepts == 4
    assert len(caplog.records) == 1 and "paused accepting sockets on 127.0.0.1:5672" in caplog.text
    listening.error = None
    listener.check()
    loop.turn()
    assert len(taken) == MAX_PER_TURN


def test_reserved_descriptors_are_kept(listening: Socket, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, taken = Loop(), []
    listener = Listener(loop, listening, lambda *arguments: taken.append(arguments))  # type: ignore[arg-type]
    listener.start(10)
    monkeypatch.setattr(module, "highest_descriptor", lambda: 0)
    for _ in range(3):
        loop.turn()
        listener.check()
    assert len(taken) == 1 and listener.paused
    monkeypatch.undo()
    listener.check()
    loop.turn()
    assert not listener.paused and len(taken) == 1 + MAX_PER_TURN


def test_a_broker_out_of_descriptors_can_be_operated_and_recovers(tmp_path: Path) -> None:
    leveret_only("its log and control socket")
    config = "[limits]\nmemory_high_watermark = 1_000_000_000_000\n"
    process = LeveretProcess(tmp_path, config=config, wrapper=["prlimit", "--nofile=128:128"]).start()
    sockets: list[socket.socket] = []
    try:
        commands = Commands(process.data_dir)
        sockets.extend(socket.create_connection(("127.0.0.1", process.port)) for _ in range(150))
        process.wait_for_log("paused accepting sockets on 127.0.0.1")
        assert json.loads(commands.ok("status", "--json"))["alarm"] == ""
        for one in sockets:
            one.close()
        sockets.clear()
        with sync.connect(process.url()) as connection, connection.channel() as channel:
            channel.declare_queue("q")
        assert process.log().count("paused accepting sockets") == 1
    finally:
        for one in sockets:
            one.close()
        process.stop()
    process.check_log()
