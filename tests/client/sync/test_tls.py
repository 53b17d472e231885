"""TLS with the sync API: both directions share OpenSSL's state, and threads use both."""

from __future__ import annotations

import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from leveret.client.errors import ConnectionFailed, TlsFailed
from tests.client.sync.conftest import Open
from tests.client.tls import authority, secure, tls_url
from tests.security.certificates import Authority
from tests.support.broker import Broker, LeveretProcess

__all__ = ["authority", "secure"]


def test_large_bodies_both_ways(dial: Open, secure: LeveretProcess, authority: Authority) -> None:
    """One thread publishes what the other consumes over one connection: both directions are busy."""
    connection = dial(tls_url(secure), tls=ssl.create_default_context(cafile=str(authority.path)))
    channel, other = connection.channel(), connection.channel()
    queue = channel.declare_queue(exclusive=True)
    bodies = [bytes([number]) * 700_000 for number in range(60)]
    taken: list[bytes] = []

    def consume() -> None:
        consumer = other.consume(queue.name, prefetch=5)
        while len(taken) < len(bodies):
            message = consumer.next(timeout=60)
            taken.append(message.body)
            message.ack()

    thread = threading.Thread(target=consume)
    thread.start()
    with channel.publisher(routing_key=queue.name, window=10) as publisher:
        for body in bodies:
            publisher.publish(body)
    thread.join(60)
    assert taken == bodies


def test_threads(dial: Open, secure: LeveretProcess, authority: Authority) -> None:
    connection = dial(tls_url(secure), cafile=str(authority.path), heartbeat=1)
    queue = connection.channel().declare_queue(exclusive=True)

    def work(number: int) -> int:
        channel = connection.channel()
        for step in range(60):
            channel.publish(f"{number}.{step}", queue.name)
        return sum(channel.get(queue.name, no_ack=True) is not None for _ in range(60))

    with ThreadPoolExecutor(12) as threads:
        assert sum(threads.map(work, range(12))) == 720
    assert connection.driver.core.generation == 1


def test_untrusted_certificate(dial: Open, secure: LeveretProcess, authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(TlsFailed, match="certificate"):
        dial(tls_url(secure))
    with pytest.raises(TlsFailed, match="server_name"):
        dial(tls_url(secure), cafile=str(authority.path), server_name="example.org")
    # Signed by an untrusted authority; in TLS 1.3 the server reports it after the handshake.
    certificate, key = Authority(tmp_path, "other").issue("client")
    with pytest.raises(ConnectionFailed):
        dial(tls_url(secure), cafile=str(authority.path), certfile=str(certificate), keyfile=str(key))


def test_tls_on_a_plain_port_and_the_reverse(dial: Open, secure: LeveretProcess, server: Broker) -> None:
    with pytest.raises(TlsFailed, match="TLS"):
        dial(f"amqps://guest:guest@{server.host}:{server.port}/", verify=False)
    with pytest.raises(ConnectionFailed):
        dial(f"amqp://guest:guest@localhost:{secure.tls_port}/")  # type: ignore[attr-defined]
