"""Real clients of shards."""

from __future__ import annotations

import gc
import ssl
from asyncio.selector_events import _SelectorSocketTransport  # type: ignore[attr-defined]
from asyncio.sslproto import SSLProtocol
from collections import Counter
from pathlib import Path

import amqp
import pika
import pytest

from leveret.cluster.front_session import FrontSession
from leveret.cluster.openings import Amqp0Opening
from leveret.cluster.relay import Relay, ShardEnd
from leveret.protocols.amqp091.connection.connection import Connection
from leveret.server.transport import AdoptedProtocol, SocketProtocol
from tests.cluster.joined import joined
from tests.security.certificates import Authority
from tests.support.polling import wait_until

TIMES = 3


def contexts(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the server's context, and the client's."""
    authority = Authority(directory)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.issue("server"))
    return server, ssl.create_default_context(cafile=str(authority.path))


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
def test_pika_and_what_is_left_of_it(tmp_path: Path, secured: bool) -> None:
    """Closed connections leave nothing for the garbage collector."""
    server, client = contexts(tmp_path)
    gc.collect()
    gc.disable()
    try:
        with joined(tls=server if secured else None) as cluster:
            for vhost in ("/", "b") * TIMES:
                connection = pika.BlockingConnection(
                    pika.ConnectionParameters(
                        "127.0.0.1",
                        cluster.port,
                        vhost,
                        pika.PlainCredentials("user", "user"),
                        ssl_options=pika.SSLOptions(client, "localhost") if secured else None,
                    )
                )
                channel = connection.channel()
                queue = channel.queue_declare("", exclusive=True).method.queue
                channel.confirm_delivery()
                channel.basic_publish("", queue, b"m" * 100_000, mandatory=True)
                _, _, body = channel.basic_get(queue, auto_ack=True)
                assert body == b"m" * 100_000
                connection.close()
            cluster.wait_empty()
            wait_until(lambda: all(len(shard.ended) == TIMES for shard in cluster.shards.values()))
            kinds = (
                FrontSession,
                Amqp0Opening,
                Relay,
                ShardEnd,
                Connection,
                SocketProtocol,
                AdoptedProtocol,
                _SelectorSocketTransport,
                SSLProtocol,
            )

            def left() -> dict[str, int]:
                counts = Counter(type(one) for one in gc.get_objects())
                return {kind.__name__: counts[kind] for kind in kinds if counts[kind]}

            # The turn of the event loop that ends a connection may not be over.
            wait_until(lambda: not left(), left)
    finally:
        gc.enable()


def test_py_amqp() -> None:
    with joined() as cluster:
        connection = amqp.Connection(f"127.0.0.1:{cluster.port}", userid="user", password="user", virtual_host="b")
        connection.connect()
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_publish(amqp.Message("m"), routing_key="q")
        assert channel.basic_get("q", no_ack=True).body == "m"
        assert cluster.session("b").describe().client_properties.fields["product"] == "py-amqp"
        connection.close()


def test_proton() -> None:
    pytest.importorskip("proton")
    from proton import Message
    from proton.utils import BlockingConnection

    with joined() as cluster:
        for vhost in ("/", "b"):
            connection = BlockingConnection(
                f"127.0.0.1:{cluster.port}",
                user="user",
                password="user",
                allowed_mechs="PLAIN",
                virtual_host=f"vhost:{vhost}",
                timeout=60,
            )
            connection.create_sender("q").send(Message("m"))
            receiver = connection.create_receiver("q")
            assert receiver.receive(timeout=60).body == "m"
            receiver.accept()
            assert len(cluster.shards[vhost].adopted) == 1
            connection.close()
