"""Remote procedure calls with direct reply-to, which needs no reply queue.

The client consumes from the pseudo-queue `amq.rabbitmq.reply-to` (without acknowledgements) and sets it as `reply_to`. The
broker replaces that name with an address of the client's channel, to which the server publishes the reply.

    python examples/rpc.py [amqp://guest:guest@localhost:5672/]
"""

from __future__ import annotations

import sys
import threading
import uuid

import pika

URL = sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@localhost:5672/"
QUEUE = "example.square"
REPLY_TO = "amq.rabbitmq.reply-to"


def serve(ready: threading.Event, calls: int) -> None:
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, auto_delete=True)
        ready.set()
        for method, properties, body in channel.consume(QUEUE):
            answer = str(int(body) ** 2).encode()
            channel.basic_publish(
                "", properties.reply_to, answer, pika.BasicProperties(correlation_id=properties.correlation_id)
            )
            channel.basic_ack(method.delivery_tag)
            calls -= 1
            if not calls:
                channel.cancel()
                return


class Client:
    """Client that makes one call at a time over a channel."""

    def __init__(self, connection: pika.BlockingConnection) -> None:
        self.connection = connection
        self.channel = connection.channel()
        self.answers: dict[str, bytes] = {}
        # The consumer must start before the first call, on the same channel.
        self.channel.basic_consume(REPLY_TO, self._answered, auto_ack=True)

    def _answered(self, channel: object, method: object, properties: pika.BasicProperties, body: bytes) -> None:
        self.answers[properties.correlation_id] = body

    def call(self, number: int) -> int:
        call_id = uuid.uuid4().hex
        self.channel.basic_publish(
            "", QUEUE, str(number).encode(), pika.BasicProperties(reply_to=REPLY_TO, correlation_id=call_id)
        )
        while call_id not in self.answers:
            self.connection.process_data_events(time_limit=10)
        return int(self.answers.pop(call_id))


if __name__ == "__main__":
    numbers = (2, 3, 12)
    ready = threading.Event()
    server = threading.Thread(target=serve, args=(ready, len(numbers)))
    server.start()
    ready.wait(10)
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        client = Client(connection)
        for number in numbers:
            print(f"{number} squared is {client.call(number)}")
    server.join()
