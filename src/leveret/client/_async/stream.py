"""An asyncio protocol that connects a socket to the engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leveret.client.engine.common.socket_errors import socket_error
from leveret.client.parameters import Parameters

if TYPE_CHECKING:
    from leveret.client._async.driver import Driver

# Bytes in the write buffer above which publishers wait.
HIGH_WATER = 1 << 20


class Stream(asyncio.Protocol):
    """One socket of a connection.

    It ignores events after another socket has replaced it. It also ignores events before `begin`, because the server may
    send data before the connecting task resumes.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.transport: asyncio.Transport | None = None
        self._lost = asyncio.get_running_loop().create_future()
        self._error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (`asyncio.Protocol`)."""
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=HIGH_WATER)
        transport.pause_reading()
        self.transport = transport

    def begin(self) -> None:
        """Start reading, because the connection is ready for data."""
        if self._driver.stream is not self or self.transport is None:
            return
        if self._lost.done():
            self._driver.socket_lost(self._error)
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Pass received bytes to the connection (`asyncio.Protocol`)."""
        if self._driver.stream is self:
            self._driver.received(data)

    def pause_writing(self) -> None:
        """Report that the socket is full (`asyncio.Protocol`)."""
        if self._driver.stream is self and self.transport is not None:
            self._driver.core.set_socket_full(True, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Report that the socket accepts data again (`asyncio.Protocol`)."""
        if self._driver.stream is self:
            self._driver.core.set_socket_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss of the socket (`asyncio.Protocol`)."""
        self._error = exc
        if not self._lost.done():
            self._lost.set_result(None)
        if self._driver.stream is self:
            self._driver.socket_lost(exc)

    async def wait_closed(self) -> None:
        """Wait until the socket is closed."""
        await asyncio.shield(self._lost)

    def abort(self) -> None:
        """Close the socket without flushing its write buffer."""
        if self.transport is not None:
            self.transport.abort()


async def open_stream(driver: Driver, parameters: Parameters) -> Stream:
    """Open a socket. Raises `ConnectionFailed` or `TlsFailed`."""
    loop = asyncio.get_running_loop()
    context = parameters.tls_context()
    try:
        _, stream = await loop.create_connection(
            lambda: Stream(driver),
            parameters.host,
            parameters.port,
            ssl=context,
            server_hostname=parameters.tls_name if context is not None else None,
        )
    except OSError as error:
        raise socket_error(parameters, error) from error
    return stream
