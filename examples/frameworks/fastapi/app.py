"""An HTTP API that takes orders, and confirms them from the replies of a queue.

uvicorn app:app                 in this directory, against the broker of AMQP_URL
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import aio_pika
from aio_pika.abc import AbstractIncomingMessage, AbstractRobustChannel
from aio_pika.exceptions import AMQPError
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel, PositiveInt

PREFETCH = 10
PUBLISH_TIMEOUT = 5.0


class Order(BaseModel):
    id: int
    amount: PositiveInt


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connect before the first request. After a lost connection, aio-pika connects and consumes again."""
    url = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/")
    async with await aio_pika.connect_robust(url, heartbeat=30) as connection:
        # Publishing waits for confirms, and raises if no queue gets the message.
        app.state.channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        app.state.done = set()
        await app.state.channel.declare_queue("fastapi-failed", durable=True)
        consuming = await connection.channel()
        await consuming.set_qos(prefetch_count=PREFETCH)
        queue = await consuming.declare_queue(
            "fastapi-orders",
            durable=True,
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "fastapi-failed"},
        )

        async def handle(message: AbstractIncomingMessage) -> None:
            # Acknowledged at the end of the block; an exception dead-letters the message.
            async with message.process():
                app.state.done.add(Order.model_validate_json(message.body).id)

        tag = await queue.consume(handle)
        yield
        # The broker redelivers what was prefetched to another process.
        await queue.cancel(tag)


app = FastAPI(lifespan=lifespan)


def get_channel(request: Request) -> AbstractRobustChannel:
    return request.app.state.channel


@app.post("/orders", status_code=202)
async def place(order: Order, channel: Annotated[AbstractRobustChannel, Depends(get_channel)]) -> Order:
    """Accept an order when it is on disk."""
    message = aio_pika.Message(
        order.model_dump_json().encode(),
        content_type="application/json",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )
    try:
        async with asyncio.timeout(PUBLISH_TIMEOUT):
            await channel.default_exchange.publish(message, "fastapi-orders", mandatory=True)
    except (AMQPError, ConnectionError, TimeoutError) as error:
        raise HTTPException(503, "the order was not stored, try again") from error
    return order


@app.get("/orders/{number}")
async def show(number: int, request: Request) -> dict[str, bool]:
    return {"done": number in request.app.state.done}
