"""The commands over AMQP 1.0, by the URL."""

from __future__ import annotations

from pika.adapters.blocking_connection import BlockingChannel

from leveret.cli.failed import INCOMPLETE, NO_BROKER
from tests.cli.program import Program
from tests.support.broker import Broker

QUERY = "protocol=1.0"


def test_publish_get_consume_and_purge(server: Broker, program: Program, channel: BlockingChannel, queue: str) -> None:
    url = server.url(query=QUERY)
    if server.kind != "leveret":
        # Without its plugin it has no 1.0.
        done = program.run("publish", queue, input=b"x", url=url)
        assert done.code == NO_BROKER and "0-9-1" in done.err
        return
    done = program.run("publish", queue, "--header", "a=1", input=b"one\ntwo\nthree\nfour", url=url)
    assert done.code == 0 and done.err.startswith("4 messages confirmed in ")
    found = channel.basic_get(queue, auto_ack=True)
    assert found[2] == b"one" and found[1].headers == {"a": 1} and found[1].delivery_mode == 2
    assert program.run("get", queue, url=url).out == b"two\n"
    assert program.run("consume", queue, "--count", "1", url=url).out == b"three\n"
    done = program.run("purge", queue, url=url)
    assert done.code == 0 and "1 message" in (done.err + done.out.decode())
    done = program.run("publish", f"{queue}.none", input=b"lost", url=url)
    assert done.code == INCOMPLETE and "no queue" in done.err
