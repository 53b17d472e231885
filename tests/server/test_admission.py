"""Sockets whose clients have not opened a connection: their limit, and which ones are closed."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from leveret.protocols.detect import HEADER_AMQP091
from leveret.protocols.ingress_throttle import FIRST_READ
from leveret.protocols.login_queue import MAX_RUNNING
from leveret.server import admission as module
from leveret.server import transport, waiting_room
from leveret.server.admission import CHECK_GRACE, GRACE, Admission, network_of
from leveret.server.tls import TlsProtocol
from leveret.server.transport import READ_SIZE_BEFORE_OPEN
from leveret.server.waiting_room import WaitingRoom
from tests.security.certificates import Authority
from tests.server.test_server import run, serving
from tests.support.polling import wait_until_async

HELLO = b"\x16\x03\x01\x02\x00" + b"\x01" * 512


class Waiting:
    def __init__(self, admission: Admission, host: str) -> None:
        self.admission = admission
        self.host = host
        self.aborted = False
        self.busy = False

    def is_waiting_for_broker(self) -> bool:
        return self.busy

    def abort(self) -> None:
        self.aborted = True


class World:
    """An admission whose clock the test moves."""

    def __init__(self, total: int, per_address: int) -> None:
        self.now = 100.0
        self.admission = Admission(total, per_address, lambda: self.now)

    def connect(self, host: str = "192.0.2.1") -> Waiting | None:
        if not self.admission.admit(host):
            return None
        waiting = Waiting(self.admission, host)
        self.admission.enter(waiting, host)
        return waiting


def test_a_socket_whose_proxy_names_another_address() -> None:
    world = World(4, 2)
    admission = world.admission
    first, second, third = (world.connect(host) for host in ("192.0.2.1", "192.0.2.1", "192.0.2.2"))
    assert first and second and third
    assert admission.move(first, "198.51.100.1")
    assert admission.move(second, "198.51.100.1")
    # The limit of the other address; the socket stays counted.
    assert not admission.move(third, "198.51.100.1")
    assert len(admission) == 3
    assert world.connect("192.0.2.2") and world.connect("192.0.2.2") is None
    # It does not count twice at the total limit.
    assert admission.move(third, "198.51.100.2")
    assert not any(waiting.aborted for waiting in (first, second, third))
    # One of that address that is old is replaced.
    world.now += GRACE + 0.1
    assert admission.move(third, "198.51.100.1")
    assert first.aborted and not second.aborted
    # A closed one is not counted again.
    assert admission.move(first, "198.51.100.3")
    assert len(admission) == 3


def test_a_new_socket_is_refused_while_the_others_are_young() -> None:
    world = World(0, 2)
    first, second = world.connect(), world.connect()
    assert first and second
    assert world.connect() is None
    assert world.connect("192.0.2.2") is not None
    assert not first.aborted and not second.aborted
    world.admission.leave(second)
    assert world.connect() is not None
    assert (world.admission.refused, world.admission.evicted) == (1, 0)


@pytest.mark.parametrize(("total", "per_address"), [(2, 0), (0, 2)])
def test_the_oldest_makes_room_after_a_while(total: int, per_address: int) -> None:
    world = World(total, per_address)
    first = world.connect()
    world.now += 1
    second = world.connect()
    assert first and second
    world.now += GRACE - 1
    assert world.connect() is not None
    assert first.aborted and not second.aborted
    assert world.connect() is None
    assert len(world.admission) == 2


@pytest.mark.parametrize(("total", "per_address"), [(3, 0), (0, 3)])
def test_a_burst_does_not_end_handshakes_as_long_as_others_succeed(total: int, per_address: int) -> None:
    world = World(total, per_address)
    first, second, third = world.connect(), world.connect(), world.connect()
    assert first and second and third
    world.now += 2 * GRACE
    world.admission.leave(third, opened=True)
    assert world.connect() is not None
    assert not world.admission.admit("192.0.2.1", may_wait=True)
    assert not first.aborted and not second.aborted
    # One that cannot wait replaces the oldest.
    assert world.admission.admit("192.0.2.1")
    assert first.aborted and not second.aborted
    fourth = Waiting(world.admission, "192.0.2.1")
    world.admission.enter(fourth, "192.0.2.1")
    world.now += GRACE
    assert world.admission.admit("192.0.2.1", may_wait=True)
    assert second.aborted


def test_one_whose_password_is_being_checked_stays() -> None:
    world = World(2, 0)
    first, second = world.connect(), world.connect()
    assert first and second
    first.busy = True
    world.now += GRACE
    assert world.connect() is not None
    assert second.aborted and not first.aborted


def test_a_flood_of_logins_does_not_keep_its_places() -> None:
    world = World(200, 0)
    flood = [world.connect() for _ in range(200)]
    for one in flood:
        assert one is not None
        one.busy = True
    world.now += CHECK_GRACE - 0.5
    assert world.connect() is None
    world.now += 0.5
    for _ in range(200):
        assert world.connect() is not None
    assert all(one is not None and one.aborted for one in flood)


def test_a_socket_whose_password_is_queued_stays() -> None:
    """The check of another client occupies all threads."""

    async def test() -> None:
        async with serving() as (server, connect):
            queue = server.services.logins
            queue.running = MAX_RUNNING
            wire = await connect()
            wire.writer.write(HEADER_AMQP091)
            await wire.reader.readexactly(7)
            [protocol] = server.accepted
            assert not protocol.is_waiting_for_broker()
            session: Any = protocol.session
            session.handshake.login.start_ok("PLAIN", b"\0guest\0wrong")
            assert queue.waiting == 1
            assert protocol.is_waiting_for_broker()
            queue.running = 0
            queue._start()
            while protocol.is_waiting_for_broker():
                await asyncio.sleep(0)
            assert queue.waiting == 0

    run(test)


def test_the_total_holds_over_all_addresses(caplog: pytest.LogCaptureFixture) -> None:
    world = World(3, 2)
    assert [world.connect(f"192.0.2.{number}") is not None for number in range(5)] == [True] * 3 + [False] * 2
    assert caplog.messages == [
        "3 sockets have not opened a connection ('limits.unauthenticated'): closed the new one,"
        " 1 times since the last report"
    ]


@pytest.mark.parametrize("busy", [False, True])
def test_the_network_with_the_most_sockets_makes_room_at_once(busy: bool) -> None:
    """Even if all its passwords are queued; until the others have as many but one."""
    world = World(6, 0)
    flood = [world.connect(f"2001:db8::{number}") for number in range(6)]
    for one in flood:
        assert one is not None
        one.busy = busy
    others = [world.connect(f"192.0.2.{number}") for number in (1, 2, 3, 2)]
    assert [one is not None and one.aborted for one in flood] == [True] * 4 + [False] * 2
    assert all(one is not None and not one.aborted for one in others)
    assert world.connect("192.0.2.3") is None
    assert world.connect("2001:db8::1") is None
    # from the network with the most sockets, not the oldest of all
    assert world.connect("192.0.2.4") is not None
    assert sum(one is not None and one.aborted for one in [*flood, *others]) == 5
    assert len(world.admission) == 6


def test_silent_sockets_of_the_largest_network_are_closed_first() -> None:
    world = World(3, 0)
    first, second, third = (world.connect() for _ in range(3))
    assert first and second and third
    first.busy = True
    assert world.connect("192.0.2.2") is not None
    assert [first.aborted, second.aborted, third.aborted] == [False, True, False]


def test_closed_sockets_leave_no_state() -> None:
    world = World(10, 10)
    waiting = [world.connect(f"192.0.2.{number}") for number in range(5)]
    for one in waiting:
        assert one is not None
        world.admission.leave(one, opened=True)
        world.admission.leave(one)
    assert len(world.admission) == 0
    assert not world.admission._by_address and not world.admission._addresses and not world.admission._opened
    assert not world.admission._by_count and world.admission._max_count == 0


def test_addresses_that_count_as_one() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:2") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") != network_of("192.0.2.2")
    assert network_of("fe80::1%eth0") == network_of("fe80::2%eth1")


def test_anonymous_sockets_take_no_place_of_users() -> None:
    async def test() -> None:
        async with serving() as (server, connect):
            server.services.settings.connections = 2
            silent = [await connect() for _ in range(5)]
            for wire in silent[2:]:
                wire.writer.write(HEADER_AMQP091)
                await wire.reader.readexactly(7)
            first, second, third = await connect(), await connect(), await connect()
            await first.open()
            await second.open()
            assert len(server.admission) == 6
            with pytest.raises(AssertionError, match=r"the connection ended before connection\.open-ok"):
                await third.open()

    run(test)


def test_a_server_refuses_and_evicts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with serving() as (server, connect):
            server.admission.per_address = 2
            first, second = await connect(), await connect()
            first.writer.write(HEADER_AMQP091)
            await first.reader.readexactly(7)
            monkeypatch.setattr(waiting_room, "MAX_WAITING", 0)
            assert await (await connect()).ended() == b""
            assert server.admission.refused == 1
            monkeypatch.setattr(module, "GRACE", 0.0)
            third = await connect()
            await third.open()
            await first.ended()
            assert len(server.admission) == 1
            fourth = await connect()
            await fourth.open()
            assert not second.reader.at_eof()

    run(test)


def test_a_burst_waits_for_the_handshakes_before_it() -> None:
    async def test() -> None:
        async with serving() as (server, connect):
            server.admission.per_address = 2
            wires = [await connect() for _ in range(20)]
            await wait_until_async(lambda: len(server.waiting_room) == 18)
            for wire in wires:
                await wire.open()
            assert (server.admission.refused, server.admission.evicted) == (0, 0)
            assert not server.waiting_room

    run(test)


def test_silent_sockets_are_replaced_by_waiting_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with serving() as (server, connect):
            server.admission.per_address = 2
            silent = [await connect(), await connect()]
            wire = await connect()
            await wait_until_async(lambda: len(server.waiting_room) == 1)
            monkeypatch.setattr(module, "GRACE", 0.0)
            await wire.open()
            await silent[0].ended()

    run(test)


class Room:
    """A waiting room over an admission, whose clock the test moves."""

    def __init__(self, total: int, per_address: int) -> None:
        self.world = World(total, per_address)
        self.room = WaitingRoom(self.world.admission, 10.0, lambda: self.world.now)
        self.served: list[str] = []

    def take(self, host: str) -> socket.socket:
        accepted = socket.socket()
        assert self.room.take(accepted, host, lambda: self._serve(accepted, host))
        return accepted

    def _serve(self, accepted: socket.socket, host: str) -> None:
        accepted.close()
        self.served.append(host)
        self.world.admission.enter(Waiting(self.world.admission, host), host)


def test_networks_take_turns_in_the_waiting_room() -> None:
    room = Room(4, 3)
    for host in ["192.0.2.1"] * 3 + ["192.0.2.2"] * 2 + ["192.0.2.3"]:
        room.take(host)
    while room.room.admit():
        pass
    assert room.served == ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.1"]
    assert len(room.room) == 2
    room.room.close()


def test_a_full_network_does_not_keep_others_in_the_waiting_room() -> None:
    room = Room(0, 1)
    for host in ["192.0.2.1"] * 3 + ["192.0.2.2"]:
        room.take(host)
    while room.room.admit():
        pass
    assert room.served == ["192.0.2.1", "192.0.2.2"]
    assert room.room.has("192.0.2.1") and not room.room.has("192.0.2.2")
    room.room.close()


def test_sockets_leave_the_waiting_room_after_a_while() -> None:
    room = Room(0, 1)
    first = room.take("192.0.2.1")
    room.world.now += 5
    second = room.take("192.0.2.1")
    room.world.now += 5
    room.room.expire()
    assert first.fileno() < 0 <= second.fileno()
    assert len(room.room) == 1
    room.room.close()
    assert second.fileno() < 0
    assert len(room.room) == 0


def test_the_waiting_room_keeps_file_descriptors_free(monkeypatch: pytest.MonkeyPatch) -> None:
    room = WaitingRoom(Admission(), 10.0)
    with socket.socket() as accepted:
        monkeypatch.setattr(waiting_room, "highest_descriptor", lambda: 2 * accepted.fileno())
        assert not room.take(accepted, "192.0.2.1", lambda: None)
        monkeypatch.setattr(waiting_room, "highest_descriptor", lambda: 2 * accepted.fileno() + 2)
        assert room.take(accepted, "192.0.2.1", lambda: None)


def test_buffers_grow_when_the_connection_is_open() -> None:
    async def test() -> None:
        async with serving() as (server, connect):
            wire = await connect()
            wire.writer.write(HEADER_AMQP091)
            await wire.reader.readexactly(7)
            [protocol] = server.accepted
            assert len(protocol.get_buffer(-1)) == READ_SIZE_BEFORE_OPEN
            wire = await connect()
            await wire.open()
            assert sorted(len(one.get_buffer(-1)) for one in server.accepted) == [READ_SIZE_BEFORE_OPEN, FIRST_READ]
            assert len(server.admission) == 1

    run(test)


def test_no_tls_state_is_created_before_the_hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[TlsProtocol] = []

    class Counted(TlsProtocol):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(transport, "TlsProtocol", Counted)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority(tmp_path).issue("server"))

    async def test() -> None:
        async with serving(handshake_timeout=2) as (server, _):
            host, port = await server.listen("127.0.0.1", 0, context)
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(HELLO[:-1])
            while not any(protocol._first == HELLO[:-1] for protocol in server.accepted):
                await asyncio.sleep(0)
            assert not made
            writer.write(HELLO[-1:])
            await reader.read()
            assert len(made) == 1
            writer.close()
            made.clear()

    run(test)


@pytest.mark.parametrize(
    "first",
    [HEADER_AMQP091, b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x40\x01", b"AMQP\x02\x01\x00\x00"],
    ids=["AMQP", "HTTP", "a record that is too large", "a header that asks for TLS"],
)
def test_the_tls_port_accepts_tls_only(first: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority(tmp_path).issue("server"))

    async def test() -> None:
        async with serving() as (server, _):
            host, port = await server.listen("127.0.0.1", 0, context)
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(first)
            assert await reader.read() == b""
            assert "TLS failed: expected a ClientHello" in caplog.text
            writer.close()

    run(test)
