"""Processes that are forked by a process which has everything imported."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.node.forked import CAN_FORK
from leveret.node.nursery import MAX_REQUEST, Nursery, NurseryProcess

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="the system has no pidfd_open")


def serve(request: bytes, descriptor: int) -> int:
    """Answer with the request and the id of the process, and exit with the code that the socket gets."""
    with socket.socket(fileno=descriptor) as link:
        link.sendall(request + b" %d" % os.getpid())
        return int(link.recv(100) or b"7")


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    made = Nursery(serve)
    yield made
    made.close()


async def start(nursery: Nursery, request: bytes = b"hello") -> tuple[NurseryProcess, socket.socket]:
    """Start a process, and wait until it serves."""
    near, far = socket.socketpair()
    pids: list[int] = []
    process = nursery.start(request, far, pids.append)
    assert process is not None
    far.close()
    near.setblocking(False)
    answer = await asyncio.get_running_loop().sock_recv(near, 1000)
    while not pids:
        await asyncio.sleep(0.001)
    assert answer == request + b" %d" % process.pid
    assert pids == [process.pid]
    return process, near


def test_processes_get_their_requests_and_report_their_ends(nursery: Nursery) -> None:
    async def scenario() -> None:
        started = [await start(nursery, b"%d" % number) for number in range(3)]
        for code, (process, link) in enumerate(started):
            link.send(b"%d" % code)
            assert await process.wait() == code
            assert not Path(f"/proc/{process.pid}").exists()
        process, link = await start(nursery)
        process.kill()
        assert await process.wait() == -signal.SIGKILL
        # The process was the only one that had the other end.
        assert await asyncio.get_running_loop().sock_recv(link, 1) == b""

    asyncio.run(scenario())


def test_a_process_notices_that_its_link_is_closed(nursery: Nursery) -> None:
    async def scenario() -> None:
        first, link = await start(nursery)
        await start(nursery)
        link.close()
        assert await first.wait() == 7

    asyncio.run(scenario())


def test_what_a_nursery_cannot_start_is_left_to_others(nursery: Nursery) -> None:
    async def scenario() -> None:
        process, _ = await start(nursery)
        near, far = socket.socketpair()
        with near, far:
            assert nursery.start(bytes(MAX_REQUEST + 1), far, print) is None
            # Without the nursery, its processes are not watched.
            os.kill(nursery._process.pid, signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL
            assert not nursery.is_alive
            assert nursery.start(b"", far, print) is None

    asyncio.run(scenario())


def test_a_nursery_ends_if_its_owner_was_killed_before_it_had_read_the_answers() -> None:
    nursery = Nursery(serve)

    async def scenario() -> int:
        _, link = await start(nursery)
        asyncio.get_running_loop().remove_reader(nursery._socket)
        link.close()
        # The end of the process is not read.
        await asyncio.to_thread(select.select, [nursery._socket], [], [], 30)
        nursery.close()
        return await nursery._process.wait()

    assert asyncio.run(scenario()) == 0
