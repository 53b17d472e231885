"""A message that a stream already has, and that is also routed to a queue: the queue keeps it unchanged."""

from __future__ import annotations

from pathlib import Path

from leveret import sync
from tests.support.broker import LeveretProcess, leveret_only


def test_queues_keep_messages_that_a_stream_skips(tmp_path: Path) -> None:
    leveret_only("it is stopped and restarted")
    process = LeveretProcess(tmp_path)
    process.start()
    try:
        with sync.connect(process.url()) as connection, connection.channel() as channel:
            channel.declare_exchange("both", "fanout", durable=True)
            channel.declare_queue("stream", durable=True, arguments={"x-queue-type": "stream"})
            channel.declare_queue("queue", durable=True)
            channel.bind_queue("stream", "both")
            channel.bind_queue("queue", "both")
            with channel.publisher("both", window=1000) as publisher:
                for number in range(300):
                    headers = {"x-stream-publisher": "p", "x-stream-sequence": number // 3}
                    publisher.publish(b"%d" % number, headers=headers, persistent=True)
            assert channel.declare_queue("stream", passive=True).message_count == 100
        process.stop()
        process.start()
        with (
            sync.connect(process.url()) as connection,
            connection.channel() as channel,
            channel.consume("queue", no_ack=True) as consumer,
        ):
            assert [consumer.next(30).body for _ in range(300)] == [b"%d" % number for number in range(300)]
        process.stop()
    finally:
        process.kill()
    process.check_log()
