"""A service that charges orders.

faststream run app:app          in this directory, against the broker of AMQP_URL
"""

import os

from faststream import AckPolicy, FastStream, Logger
from faststream.exceptions import RejectMessage
from faststream.rabbit import Channel, ExchangeType, QueueType, RabbitBroker, RabbitExchange, RabbitQueue
from pydantic import BaseModel, PositiveInt

# Publishing waits for confirms. The broker sends at most ten unacked messages to each subscriber.
broker = RabbitBroker(
    os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/"),
    default_channel=Channel(prefetch_count=10),
    graceful_timeout=30,
)
app = FastStream(broker)

exchange = RabbitExchange("faststream-orders", type=ExchangeType.TOPIC, durable=True)
failed = RabbitQueue("faststream-failed", durable=True)
placed = RabbitQueue(
    "faststream-placed",
    queue_type=QueueType.QUORUM,
    durable=True,
    routing_key="order.placed",
    # The third failure is the last.
    arguments={"x-delivery-limit": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": failed.name},
)
charged = RabbitQueue("faststream-charged", durable=True, routing_key="order.charged")


class Order(BaseModel):
    id: int
    amount: PositiveInt


@app.on_startup
async def declare() -> None:
    await broker.connect()
    await broker.declare_queue(failed)


# An exception requeues the message, until its delivery limit. RejectMessage ends the attempts.
@broker.subscriber(placed, exchange, ack_policy=AckPolicy.NACK_ON_ERROR)
@broker.publisher(exchange=exchange, routing_key="order.charged", persist=True)
async def charge(order: Order, logger: Logger) -> Order:
    if order.amount > 1000:
        logger.info("no answer for order %s", order.id)
        raise ConnectionError("the bank does not answer")
    if order.amount == 666:
        raise RejectMessage
    return order


@broker.subscriber(charged, exchange)
async def ship(order: Order, logger: Logger) -> None:
    logger.info("shipped order %s", order.id)


@broker.subscriber("faststream-price")
async def price(item: str) -> int:
    """Answer a request."""
    return len(item) * 10
