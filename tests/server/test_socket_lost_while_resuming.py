"""A socket that is lost while the transport resumes its protocol: a write at that moment would close it twice."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from leveret.server.transport import HIGH_WATER
from leveret.wire.amqp0.properties import encode_header
from tests.security.certificates import Authority
from tests.server.test_server import run, serving
from tests.support.polling import wait_until_async

BODY = bytes(100_000)
# The buffers of the two sockets hold some of the messages, and the transport's buffer must fill up after them.
MESSAGES = 20 * HIGH_WATER // len(BODY)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_socket_lost_while_writing_resumes(tmp_path: Path, tls: bool) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    errors: list[dict[str, Any]] = []

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
        async with serving(tls=context) as (server, connect):
            wire = await connect()
            if tls:
                await wire.writer.start_tls(
                    ssl.create_default_context(cafile=str(authority.path)), server_hostname="localhost"
                )
            await wire.open()
            await wire.send(1, "channel.open")
            await wire.expect("channel.open-ok")
            await wire.send(1, "queue.declare", queue="q")
            await wire.expect("queue.declare-ok")
            for _ in range(MESSAGES):
                wire.engine.send_content(1, "basic.publish", {"routing_key": "q"}, encode_header(60, len(BODY), {}), BODY)
                wire.writer.write(wire.engine.to_send())
                await wire.writer.drain()
            queue = server.services.broker.vhosts["/"].queues["q"]
            await wait_until_async(lambda: queue.ready_count >= MESSAGES)

            (accepted,) = server.accepted
            transport = accepted._reader  # the transport of the socket, below TLS
            await wire.send(1, "basic.consume", queue="q", no_ack=True)
            await wait_until_async(lambda: transport._protocol_paused)
            assert queue.ready_count, "the queue must have more to write"
            resume = transport._maybe_resume_protocol

            def lose_socket_and_resume() -> None:
                if transport.get_write_buffer_size() == 0:
                    transport.get_extra_info("socket").shutdown(socket.SHUT_WR)
                resume()

            # The protocol may write only when the buffer is empty, so that it writes to the socket at once.
            transport.set_write_buffer_limits(high=HIGH_WATER, low=0)
            transport._maybe_resume_protocol = lose_socket_and_resume
            await wire.ended()
            await wait_until_async(lambda: not server.accepted)

    run(test)
    assert not errors
