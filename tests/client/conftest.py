"""The client's tests run against Leveret and, if it is installed, RabbitMQ.

A test that is a coroutine runs in its own event loop, which must end clean: no tasks, sockets or unretrieved errors.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import leveret
from leveret import aio
from tests.support import rabbitmq
from tests.support.broker import CONNECT_TIMEOUT, Broker, LeveretProcess
from tests.support.fixtures import name
from tests.support.proxy import Proxy

__all__ = ["name"]

WITHIN = 240.0
_NEVER = ("never awaited", "unclosed")


@pytest.fixture(scope="session", params=["leveret", "rabbitmq"])
def shared_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run one broker of each kind for the whole session. Tests use `server`, which checks it."""
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "rabbitmq":
        if not rabbitmq.available():
            pytest.skip("RabbitMQ is not installed")
        node = rabbitmq.RabbitProcess(directory).start()
        yield node
        node.stop()
        return
    process = LeveretProcess(directory).start()
    yield process
    process.stop()


@pytest.fixture
def server(shared_server: Broker) -> Iterator[Broker]:
    """The session's broker. The test that kills it, or makes it log an exception, fails."""
    yield shared_server
    if isinstance(shared_server, LeveretProcess):
        if not shared_server.alive():
            log = shared_server.log()
            shared_server.kill()
            shared_server.start()
            raise AssertionError("the broker died:\n" + log[-4000:])
        try:
            shared_server.check_log()
        finally:
            os.truncate(shared_server.log_path, 0)


@pytest.fixture
def proxy(server: Broker) -> Iterator[Proxy]:
    with Proxy(server) as between:
        yield between


class BaseConnect:
    """Opens connections, and closes them at the end of the test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.opened: list[aio.BaseConnection] = []

    async def open(self, protocol: str | None, url: str | list[str] | None = None, **options: Any) -> Any:
        """Return a connection of that protocol."""
        options.setdefault("connect_timeout", CONNECT_TIMEOUT)
        connection = await leveret.connect(url or self.url, protocol=protocol, **options)
        self.opened.append(connection)
        return connection

    async def channel(self, protocol: str, **options: Any) -> aio.BaseChannel:
        """Return a channel of that protocol, on a connection of its own."""
        channel: aio.BaseChannel = await (await self.open(protocol, **options)).open_channel()
        return channel


class Connect(BaseConnect):
    """Opens connections of AMQP 0-9-1."""

    async def __call__(self, url: str | list[str] | None = None, **options: Any) -> aio.Connection:
        connection: aio.Connection = await self.open(None, url, **options)
        return connection


@pytest.fixture
def connect(server: Broker) -> Connect:
    """Connect to the server, unless a URL is given."""
    return Connect(server.url())


@pytest.fixture
def dial() -> Connect:
    """Connect to the URL that is given, without the session's broker."""
    return Connect("amqp://nowhere.invalid")


async def _run(test: Callable[[], Awaitable[None]], connects: list[BaseConnect], faults: list[Any]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: faults.append(context))
    try:
        async with asyncio.timeout(WITHIN):
            await test()
    finally:
        for connect in connects:
            for connection in reversed(connect.opened):
                await connection.close()
            connect.opened.clear()
    for _ in range(3):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks are left: {left}"
    gc.collect()
    await asyncio.sleep(0)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, and fail it for what it leaves behind."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    faults: list[Any] = []
    # Collect what other tests of this process have left.
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        warnings.simplefilter("always", RuntimeWarning)
        connects = [value for value in pyfuncitem.funcargs.values() if isinstance(value, BaseConnect)]
        asyncio.run(_run(lambda: pyfuncitem.obj(**arguments), connects, faults))
        gc.collect()
    assert not faults, f"the loop reported: {faults}"
    left = [str(warning.message) for warning in caught if any(sign in str(warning.message) for sign in _NEVER)]
    assert not left, f"left behind: {left}"
    return True
