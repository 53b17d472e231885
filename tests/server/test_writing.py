"""Large output is written to the socket in pieces. What the socket does not take waits in order."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from leveret.protocols.detect import HEADER_AMQP091
from leveret.protocols.peer import Peer
from leveret.server.transport import HIGH_WATER, MAX_PIECES
from tests.server.test_reading import serving, until


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Peer, socket.socket]]:
    """A client that has sent its protocol header, and the broker's side of its socket."""
    async with serving() as (server, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            client.sendall(HEADER_AMQP091)
            await until(lambda: bool(server.services.sessions))
            (session,) = server.services.sessions
            head = await read(client, 7)  # of connection.start
            await read(client, int.from_bytes(head[3:], "big") + 1)
            yield session.peer, client


async def read(client: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        view = view[await asyncio.get_running_loop().sock_recv_into(client, view) :]
    return bytes(data)


def pieces_of(sizes: Sequence[int]) -> list[bytes | memoryview]:
    chance = random.Random(len(sizes))
    return [memoryview(chance.randbytes(size)) if size % 2 else chance.randbytes(size) for size in sizes]


@pytest.mark.parametrize(
    "sizes",
    [(9000,), (1, 16384, 8, 16384, 1), (30, 3_000_001, 9, 5_000_000, 1), (4001,) * (MAX_PIECES + 500)],
    ids=["one", "small", "more than the socket takes", "many"],
)
def test_pieces_arrive_in_order(sizes: tuple[int, ...]) -> None:
    async def scenario() -> bool:
        pieces = pieces_of(sizes)
        expected = b"".join(pieces) + b"after" + b"".join(pieces)
        async with connected() as (peer, client):
            peer.write_pieces(list(pieces), sum(map(len, pieces)))
            peer.write(b"after")
            peer.write_pieces(list(pieces), sum(map(len, pieces)))
            return await read(client, len(expected)) == expected

    assert asyncio.run(scenario())


def test_output_beyond_the_limit_of_the_buffer_pauses_the_session() -> None:
    async def scenario() -> tuple[bool, bool]:
        async with connected() as (peer, client):
            session = peer._transport.get_protocol().session  # type: ignore[attr-defined]
            pieces = pieces_of((HIGH_WATER,) * 12)
            peer.write_pieces(list(pieces), sum(map(len, pieces)))
            paused = session.output.paused
            await read(client, 12 * HIGH_WATER)
            await until(lambda: not session.output.paused)
            return paused, session.output.paused

    assert asyncio.run(scenario()) == (True, False)


def test_output_for_a_lost_socket_is_discarded() -> None:
    async def scenario() -> None:
        async with connected() as (peer, client):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()  # with a reset
            for _ in range(3):
                peer.write_pieces(pieces_of((20_000, 30_000)), 50_000)
                await asyncio.sleep(0)

    asyncio.run(scenario())
