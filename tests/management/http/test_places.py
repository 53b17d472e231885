"""Limits of which a user and an address have a share: one client cannot use them up for all."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

import pytest

from leveret.management.http.control import MAX_CONNECTIONS, Control
from leveret.management.http.errors import BrokerRefused, HttpError, as_http_error
from leveret.management.http.places import SCRAPES, TAILS, UPLOADS, Kind, Places
from leveret.management.http.table import ROUTES
from leveret.management.socket_path import MAX_REQUEST_SIZE
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

THINGS = Kind("things", 8)
WAITING = Kind("others", 4, waits=True)


async def refused(places: Places, kind: Kind, user: str, address: str) -> tuple[int, object]:
    """Return the status and the reason of a refusal."""
    with pytest.raises(HttpError) as error:
        async with places.take(kind, user, address):
            pass
    return error.value.status, error.value.reason


async def take_all(places: Places, kind: Kind, *clients: tuple[str, str]) -> AsyncExitStack:
    taken = AsyncExitStack()
    for user, address in clients:
        await taken.enter_async_context(places.take(kind, user, address))
    return taken


def test_shares() -> None:
    async def run() -> None:
        places = Places()
        first = await take_all(places, THINGS, ("a", "::1"), ("a", "::2"))
        found = await refused(places, THINGS, "a", "10.0.0.1")
        assert found == (429, "2 things of the user 'a' are in progress, the maximum")
        second = await take_all(places, THINGS, ("b", "::3"), ("", "::4"))
        found = await refused(places, THINGS, "c", "::5")
        assert found == (429, "4 things of the address '::' are in progress, the maximum")
        third = await take_all(places, THINGS, *((name, "10.0.0.1") for name in "cdef"))
        assert await refused(places, THINGS, "g", "10.0.0.2") == (503, "8 things are in progress, the maximum")
        fourth = await take_all(places, TAILS, ("a", "::1"))
        await first.aclose()
        fifth = await take_all(places, THINGS, ("a", "10.0.0.2"), ("a", "10.0.0.3"))
        for taken in (second, third, fourth, fifth):
            await taken.aclose()

    asyncio.run(run())


def test_a_user_waits_for_its_own_share() -> None:
    async def run() -> None:
        places = Places()
        first = await take_all(places, WAITING, ("a", "10.0.0.1"))
        second = asyncio.create_task(take_all(places, WAITING, ("a", "10.0.0.2")))
        await take_all(places, WAITING, ("b", "10.0.0.3"))
        assert not second.done()
        await first.aclose()
        await second

    asyncio.run(run())


def test_every_kind_has_places_for_others() -> None:
    kinds = {route.place for methods in ROUTES.values() for route in methods.values() if route.place is not None}
    for kind in {*kinds, SCRAPES}:
        assert 1 <= kind.of_user < kind.total and 1 <= kind.of_address < kind.total


@contextmanager
def request(api: HttpBroker, text: str, user: str, address: str) -> Iterator[socket.socket]:
    """Send the head of a request from an address of the loopback interface."""
    token = base64.b64encode(f"{user}:{user}".encode()).decode()
    with socket.create_connection(("127.0.0.1", api.port), timeout=60, source_address=(address, 0)) as connection:
        connection.sendall(f"{text}\r\nHost: localhost\r\nAuthorization: Basic {token}\r\n\r\n".encode())
        yield connection


UPLOAD = "POST /api/leveret/vhosts/%2F/messages/import HTTP/1.1\r\nTransfer-Encoding: chunked"
TAIL = "GET /api/leveret/exchanges/%2F/amq.topic/messages/tail HTTP/1.1"


def test_one_user_does_not_use_up_the_uploads(api: HttpBroker) -> None:
    api("PUT", "/users/uploader", {"password": "uploader", "tags": "management"})
    api("PUT", "/permissions/%2F/uploader", {"configure": "", "write": ".*", "read": ""})

    def is_refused() -> bool:
        with request(api, UPLOAD, "guest", "127.0.0.1") as connection:
            connection.sendall(b"0\r\n\r\n")
            return connection.recv(12) == b"HTTP/1.1 429"

    with ExitStack() as opened:
        for _ in range(UPLOADS.of_user):
            opened.enter_context(request(api, UPLOAD, "guest", "127.0.0.1"))
        wait_until(is_refused)
        with request(api, UPLOAD, "uploader", "127.0.0.1") as other:
            other.sendall(b"0\r\n\r\n")
            assert other.recv(12) == b"HTTP/1.1 200"
    wait_until(lambda: not is_refused())
    api("DELETE", "/users/uploader")


def test_one_user_does_not_use_up_the_tails(api: HttpBroker) -> None:
    with ExitStack() as opened:
        for _ in range(TAILS.of_user):
            assert opened.enter_context(request(api, TAIL, "guest", "127.0.0.1")).recv(12) == b"HTTP/1.1 200"
        assert opened.enter_context(request(api, TAIL, "guest", "127.0.0.1")).recv(12) == b"HTTP/1.1 429"
        assert opened.enter_context(request(api, TAIL, "viewer", "127.0.0.1")).recv(12) == b"HTTP/1.1 200"


def test_parallel_requests_share_one_check(api: HttpBroker) -> None:
    """The credentials are right, and not known yet."""
    api("PUT", "/users/parallel", {"password": "parallel", "tags": "management"})
    with ThreadPoolExecutor(40) as threads:
        replies = list(threads.map(lambda _: api("GET", "/whoami", user="parallel").status, range(120)))
    assert set(replies) == {200}
    api("DELETE", "/users/parallel")


def test_requests_that_are_too_large_for_the_broker(tmp_path: Path) -> None:
    with pytest.raises(BrokerRefused, match=f"bytes for the broker; expected at most {MAX_REQUEST_SIZE}") as error:
        asyncio.run(Control(tmp_path / "none").call("queues.declare", {"arguments": "x" * MAX_REQUEST_SIZE}))
    assert as_http_error(error.value).status == 400


def test_one_user_does_not_use_up_the_calls(tmp_path: Path) -> None:
    """The broker answers no call of one user, and those of another."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b'"user":"other"' in await reader.readline():
            writer.write(b'{"result":1}\n')
            await writer.drain()
        await reader.read()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_unix_server(serve, tmp_path / "s")
        control = Control(tmp_path / "s")
        calls = [asyncio.create_task(control.on_behalf_of("one", "test", "").call("x")) for _ in range(MAX_CONNECTIONS)]
        await asyncio.sleep(0)
        assert await control.on_behalf_of("other", "test", "").call("x") == 1
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        server.close()

    asyncio.run(run())
