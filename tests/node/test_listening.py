"""One port on all addresses of a host."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from typing import Any

import pytest

from leveret.node import listening
from leveret.node.errors import StartFailed
from leveret.server.transport import MakeProtocol, SocketProtocol


class FakeServer:
    """A machine with addresses and ports in use. Free ports are assigned in order."""

    def __init__(self, addresses: list[str], taken: set[tuple[str, int]], free: list[int]) -> None:
        self.addresses = addresses
        self.taken = taken
        self.free = free
        self.listeners: list[Any] = []
        self.closed: list[Any] = []

    async def listen(
        self,
        host: str | None,
        port: int,
        tls: ssl.SSLContext | None = None,
        make_protocol: MakeProtocol = SocketProtocol,
    ) -> tuple[str, int]:
        assert host is not None
        if host not in self.addresses:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        port = port or self.free.pop(0)
        if (host, port) in self.taken:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.listeners.append(self.Listener(self, host, port))
        return host, port

    class Listener:
        def __init__(self, server: FakeServer, host: str, port: int) -> None:
            self.server = server
            self.at = (host, port)

        def close(self) -> None:
            self.server.closed.append(self.at)


BOTH = ["127.0.0.1", "::1"]


def listen(server: FakeServer, port: int, tls: bool = False) -> tuple[list[str], int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None
    endpoint = listening.TLS if tls else listening.PLAIN
    return asyncio.run(listening.listen(server, endpoint, "localhost", port, context))


@pytest.fixture(autouse=True)
def localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "addresses_of", lambda host, setting: BOTH)


def test_the_same_port_on_every_address() -> None:
    assert listen(FakeServer(BOTH, set(), []), 7) == (["amqp://127.0.0.1:7", "amqp://[::1]:7"], 7)


def test_a_free_port_that_is_free_everywhere() -> None:
    server = FakeServer(BOTH, {("::1", 7), ("::1", 8)}, [7, 8, 9])
    assert listen(server, 0, tls=True) == (["amqps://127.0.0.1:9", "amqps://[::1]:9"], 9)
    assert server.closed == [("127.0.0.1", 7), ("127.0.0.1", 8)]
    assert [listener.at for listener in server.listeners] == [("127.0.0.1", 9), ("::1", 9)]


@pytest.mark.parametrize("address", BOTH)
def test_an_address_that_the_machine_does_not_have(address: str) -> None:
    bound, port = listen(FakeServer([address], set(), [7]), 0)
    assert (bound, port) == ([f"amqp://{listening.bracketed(address)}:7"], 7)


@pytest.mark.parametrize("address", BOTH)
def test_a_port_in_use_on_one_address_is_refused(address: str) -> None:
    server = FakeServer(BOTH, {(address, 7)}, [])
    with pytest.raises(StartFailed) as caught:
        listen(server, 7)
    assert f"cannot listen on {listening.bracketed(address)}:7: Address already in use" in str(caught.value)
    assert server.listeners == []


def test_no_address_at_all() -> None:
    with pytest.raises(StartFailed, match=r"cannot listen on \[::1\]:7: Cannot assign requested address.*tls\.port"):
        listen(FakeServer([], set(), []), 7, tls=True)


def test_no_port_is_free_everywhere() -> None:
    ports = list(range(1, 100))
    server = FakeServer(BOTH, {("::1", port) for port in ports}, ports)
    with pytest.raises(StartFailed, match="Address already in use"):
        listen(server, 0)
    assert server.listeners == []
