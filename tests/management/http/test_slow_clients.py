"""Clients that hold connections of the HTTP API without using them."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field

import pytest

from leveret.management.http.slow_clients import FIRST_TIMEOUT, NEXT_TIMEOUT, READ_TIMEOUT, SlowClients
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until


class Pipe(asyncio.Transport):
    """A transport with some unsent bytes."""

    unsent = 0
    aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True


@dataclass(eq=False)
class Exchange:
    response_complete: bool = False


@dataclass(eq=False)
class Connection:
    transport: Pipe = field(default_factory=Pipe)
    cycle: Exchange | None = None
    client: tuple[str, int] | None = ("127.0.0.1", 1)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def closed_after(connection: Connection, clients: SlowClients, clock: Clock) -> float:
    """Look at a connection each second, and return when it is closed."""
    began = clock.now
    while not connection.transport.aborted:
        clients.close([connection])
        clock.now += 1
        assert clock.now < began + 1000
    return clock.now - 1 - began


def test_a_request_that_does_not_arrive() -> None:
    clock = Clock()
    clients = SlowClients(100, clock)
    assert closed_after(Connection(), clients, clock) == FIRST_TIMEOUT
    assert closed_after(Connection(cycle=Exchange(response_complete=True)), clients, clock) == NEXT_TIMEOUT


def test_a_request_in_time() -> None:
    clock = Clock()
    clients = SlowClients(100, clock)
    connection = Connection()
    for _ in range(10):
        clients.close([connection])
        clock.now += FIRST_TIMEOUT - 1
        connection.cycle = Exchange()
        clients.close([connection])
        clock.now += 1000  # the handler is slow
        clients.close([connection])
        connection.cycle.response_complete = True
        clients.close([connection])
        clock.now += FIRST_TIMEOUT
    assert not connection.transport.aborted


def test_an_answer_that_is_not_read() -> None:
    clock = Clock()
    clients = SlowClients(100, clock)
    connection = Connection(cycle=Exchange())
    for unsent in (300, 200, 100):
        connection.transport.unsent = unsent
        clients.close([connection])
        clock.now += READ_TIMEOUT - 1
        clients.close([connection])
    assert not connection.transport.aborted
    assert closed_after(connection, clients, clock) == 1


def test_too_many_connections() -> None:
    """Those that wait for a request the longest are closed."""
    clock = Clock()
    clients = SlowClients(3, clock)
    connections = [Connection(cycle=Exchange())]
    for _ in range(4):
        connections.append(Connection())
        clients.close(connections[:3])
        clock.now += 1
    clients.close(connections)
    assert [connection.transport.aborted for connection in connections] == [False, True, True, False, False]


def test_the_address_with_the_most_connections_loses_some() -> None:
    clock = Clock()
    clients = SlowClients(4, clock)
    other = Connection(client=("10.0.0.1", 1))
    clients.close([other])
    clock.now += 1
    connections = [other, *(Connection(client=(f"2001:db8::{number}", 1)) for number in range(5))]
    clients.close(connections)
    clock.now += 1
    clients.close(connections)
    assert [connection.transport.aborted for connection in connections] == [False, True, True, False, False, False]


def test_a_connection_that_has_just_opened() -> None:
    """Its request may be about to arrive, even if the connections before it are as new to the server."""
    clock = Clock()
    clients = SlowClients(3, clock)
    connections = [Connection() for _ in range(5)]
    clients.close(connections)
    assert not any(connection.transport.aborted for connection in connections)
    clock.now += 1
    connections[0].cycle = Exchange(response_complete=True)
    clients.close([*connections, Connection()])
    assert [connection.transport.aborted for connection in connections] == [False, True, True, True, False]


@pytest.mark.slow
def test_idle_connections_do_not_deny_the_api(api: HttpBroker) -> None:
    idle = []
    try:
        for _ in range(1100):
            connection = socket.create_connection(("127.0.0.1", api.port))
            connection.settimeout(0)
            idle.append(connection)
        wait_until(lambda: is_served(api), "an answer")
        wait_until(lambda: is_closed(idle[0]), "the oldest connection to close")
    finally:
        for connection in idle:
            connection.close()


def is_served(api: HttpBroker) -> bool:
    try:
        return api("GET", "/whoami").status == 200
    except ConnectionResetError:
        # On a busy machine, this client may be among the slow ones.
        return False


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
