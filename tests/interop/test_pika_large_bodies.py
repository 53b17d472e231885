"""Bodies of all sizes with pika, over TCP and TLS, with a consumer that is slower than the broker."""

from __future__ import annotations

import hashlib
import random
import ssl
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection

from tests.security.certificates import Authority
from tests.support.broker import LeveretProcess, basic_config, leveret_only

# Small ones, ones of several frames, and more than a socket takes at once.
SIZES = (0, 1, 8191, 8192, 16384, 131064, 131065, 300_000, 1 << 20, (1 << 20) + 1, 16384, 16384, 2_000_000)


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
def test_bodies_of_all_sizes_arrive_as_sent(tmp_path: Path, tls: bool) -> None:
    leveret_only("its own certificate")
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    config = basic_config() + f'\n[tls]\nport = 0\ncert = "{cert}"\nkey = "{key}"\n'
    chance = random.Random(1)
    bodies = [chance.randbytes(size) for size in (*SIZES, *SIZES)]
    with LeveretProcess(tmp_path / "broker", config=config) as broker:
        broker.start()
        context = ssl.create_default_context(cafile=str(authority.path)) if tls else None
        parameters = pika.ConnectionParameters(
            "localhost" if tls else broker.host,
            broker.port,
            ssl_options=pika.SSLOptions(context, "localhost") if context is not None else None,
        )
        with BlockingConnection(parameters) as publisher, BlockingConnection(parameters) as consumer:
            sending, receiving = publisher.channel(), consumer.channel()
            receiving.queue_declare("large")
            received = receiving.consume("large", auto_ack=True, inactivity_timeout=30)
            for body in bodies:
                sending.basic_publish("", "large", body)
            digests = [hashlib.sha256(next(received)[2]).digest() for _ in bodies]
            receiving.cancel()
        broker.check_log()
    assert digests == [hashlib.sha256(body).digest() for body in bodies]
