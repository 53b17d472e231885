"""The topology that the shop and its workers share, and a function that places orders."""

import os

from kombu import Connection, Exchange, Queue
from kombu.pools import producers

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672//")

exchange = Exchange("kombu-orders", type="topic")
failed = Queue("kombu-orders-failed")
orders = Queue(
    "kombu-orders",
    exchange,
    routing_key="order.*",
    # The third failure is the last: a quorum queue counts them, and sends the order to `failed`.
    queue_arguments={
        "x-queue-type": "quorum",
        "x-delivery-limit": 2,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": failed.name,
    },
)


def connect(url: str = URL) -> Connection:
    """Return a connection whose publishers wait for confirms."""
    return Connection(url, heartbeat=30, transport_options={"confirm_publish": True})


def place(connection: Connection, order: dict) -> None:
    """Publish an order; return when it is on disk. Connects again if the broker was restarted."""
    with producers[connection].acquire(block=True, timeout=10) as producer:
        producer.publish(
            order,
            exchange=exchange,
            routing_key="order.placed",
            serializer="json",
            declare=[failed, orders],
            retry=True,
            retry_policy={"max_retries": 10, "interval_start": 0.1, "interval_step": 0.5, "interval_max": 5},
        )
