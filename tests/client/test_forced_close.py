"""A server that closes a connection because the vhost moves: the client goes to the next host at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leveret
from leveret.client.engine.common.backoff import Backoffs
from leveret.client.errors import ConnectionClosed, ConnectionLost, Error
from leveret.client.events import Connected, Event, Reconnecting
from leveret.client.parameters import Parameters
from leveret.management.control_client import call
from tests.support.broker import CONNECT_TIMEOUT, Broker, LeveretProcess
from tests.support.polling import wait_until
from tests.support.proxy import Proxy

PROTOCOLS = ("0-9-1", "1.0", "0-9")


def async_client(urls: list[str], protocol: str, events: list[Event], close: Callable[[], object]) -> None:
    async def run() -> None:
        back = asyncio.Event()

        def note(event: Event) -> None:
            events.append(event)
            if isinstance(event, Connected) and not event.first:
                back.set()

        options: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT, "on_event": note}
        async with leveret.connect(urls, protocol=protocol, **options):
            await asyncio.to_thread(close)
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await back.wait()

    asyncio.run(run())


def sync_client(urls: list[str], protocol: str, events: list[Event], close: Callable[[], object]) -> None:
    options: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT, "on_event": events.append}
    with leveret.sync.connect(urls, protocol=protocol, **options):
        close()
        wait_until(lambda: sum(isinstance(event, Connected) for event in events) == 2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("client", [async_client, sync_client])
def test_the_next_host_without_a_pause(server: Broker, client: Callable[..., None], protocol: str) -> None:
    if not isinstance(server, LeveretProcess):
        pytest.skip("RabbitMQ has no control socket")
    data_dir: Path = server.data_dir
    events: list[Event] = []
    with Proxy(server) as first:
        client(
            [first.url(), server.url()],
            protocol,
            events,
            lambda: call(data_dir, "connections.close_user", {"user": "guest", "reason": "the vhost moves"}),
        )
    tried = [(event.port, event.delay) for event in events if isinstance(event, Reconnecting)]
    assert tried == [(server.port, 0.0)]


def closed(code: int = 0, condition: str = "") -> Error:
    error = ConnectionClosed("closed", reply_code=code)
    error.condition = condition
    return error


def test_pauses() -> None:
    now = 0.0
    backoffs = Backoffs(lambda: now, lambda: 1.0)
    hosts = [Parameters(host=name, reconnect_delay=1.0, reconnect_attempts=5) for name in "abc"]

    def schedule(last: int, error: Error) -> list[tuple[str, float]]:
        return [(attempt.parameters.host, attempt.delay) for attempt in backoffs.begin(hosts, hosts[last], error)]

    in_doubt = [("b", 1.0), ("c", 2.0), ("a", 4.0), ("b", 8.0), ("c", 16.0)]
    at_once = [("c", 0.0), ("a", 0.0), ("b", 0.0), ("c", 1.0), ("a", 2.0)]
    assert schedule(1, closed(320)) == at_once
    now += 0.5  # a server that closes each connection as soon as it is open
    assert schedule(1, closed(320)) == in_doubt
    now += 1.0
    assert schedule(1, closed(condition="amqp:connection:forced")) == at_once
    now += 1.0
    assert schedule(1, ConnectionLost("the socket broke")) == in_doubt
    now += 1.0
    assert schedule(1, closed(541)) == in_doubt
    now += 1.0
    assert schedule(2, closed(320)) == [("a", 0.0), ("b", 0.0), ("c", 0.0), ("a", 1.0), ("b", 2.0)]
