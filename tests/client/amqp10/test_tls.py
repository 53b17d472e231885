"""AMQP 1.0 over TLS with both APIs, and logins by certificate."""

from __future__ import annotations

import threading

import pytest

from leveret import sync
from leveret.client import AuthenticationFailed, TlsFailed
from tests.client.conftest import Connect
from tests.client.tls import authority, secure, tls_url
from tests.security.certificates import Authority
from tests.support.broker import LeveretProcess

__all__ = ["authority", "secure"]


async def test_external(dial: Connect, secure: LeveretProcess, authority: Authority, name: str) -> None:
    certificate, key = authority.issue("client")
    own = {"cafile": str(authority.path), "certfile": str(certificate), "keyfile": str(key)}
    connection = await dial.open("1.0", tls_url(secure), mechanism="EXTERNAL", **own)
    session = await connection.session()
    await session.declare_queue(name, exclusive=True)
    await session.publish(b"x", name, user_id="client")
    certificate, key = authority.issue("stranger")
    own |= {"certfile": str(certificate), "keyfile": str(key)}
    with pytest.raises(AuthenticationFailed):
        await dial.open("1.0", tls_url(secure), mechanism="EXTERNAL", **own)
    with pytest.raises(TlsFailed, match="certificate"):
        await dial.open("1.0", tls_url(secure))


def test_large_bodies_both_ways(secure: LeveretProcess, authority: Authority, name: str) -> None:
    """One thread sends what the other receives over one connection: both directions are busy."""
    bodies = [bytes([number]) * 700_000 for number in range(30)]
    taken: list[bytes] = []
    with sync.connect(tls_url(secure), protocol="1.0", cafile=str(authority.path)) as connection:
        with connection.session() as session:
            session.declare_queue(name)

        def receive() -> None:
            with connection.receiver(f"/queues/{name}", prefetch=5) as receiver:
                while len(taken) < len(bodies):
                    delivery = receiver.next(60)
                    taken.append(delivery.body)
                    delivery.accept()

        thread = threading.Thread(target=receive)
        thread.start()
        with connection.sender(f"/queues/{name}", window=10) as sender:
            for body in bodies:
                sender.publish(body)
        thread.join(60)
    assert taken == bodies
