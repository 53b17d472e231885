"""Handlers in the process of pytest, and a service as a process."""

from __future__ import annotations

import asyncio

import pytest
from faststream.rabbit import RabbitBroker, TestApp, TestRabbitBroker


@pytest.fixture(scope="module")
def shop(url):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMQP_URL", url)
        import app
    return app


@pytest.fixture
def publish(shop, url):
    def publish_orders(*orders: dict) -> None:
        async def main() -> None:
            async with RabbitBroker(url) as client:
                for order in orders:
                    await client.publish(
                        order, exchange=shop.exchange, routing_key="order.placed", mandatory=True, persist=True
                    )

        asyncio.run(main())

    return publish_orders


@pytest.fixture(scope="module")
def service(start):
    process = start("faststream", "run", "app:app")
    process.wait_for("FastStream app started successfully!")
    return process


def test_handlers_in_pytest(shop):
    """With a real broker, and mocks that record what the handlers got."""

    async def main() -> None:
        async with TestRabbitBroker(shop.broker, with_real=True) as test, TestApp(shop.app):
            await test.publish({"id": 1, "amount": 20}, exchange=shop.exchange, routing_key="order.placed")
            await shop.ship.wait_call(timeout=60)
            shop.ship.mock.assert_called_once_with({"id": 1, "amount": 20})

    asyncio.run(main())


def test_an_order_is_charged_and_shipped(service, publish):
    publish({"id": 2, "amount": 20})
    service.wait_for("shipped order 2")


def test_failing_orders_are_dead_lettered(shop, service, publish, url):
    """After three attempts, or at once if another attempt does not help."""
    publish({"id": 3, "amount": 5000}, {"id": 4, "amount": 666})

    async def main() -> dict[int, str]:
        async with RabbitBroker(url) as client:
            queue = await client.declare_queue(shop.failed)
            reasons = {}
            async with asyncio.timeout(60), queue.iterator() as messages:
                async for message in messages:
                    await message.ack()
                    order = shop.Order.model_validate_json(message.body)
                    reasons[order.id] = message.headers["x-death"][0]["reason"]
                    if len(reasons) == 2:
                        return reasons
        raise AssertionError

    assert asyncio.run(main()) == {3: "delivery_limit", 4: "rejected"}
    service.wait_for("no answer for order 3", times=3)


def test_a_request(service, url):
    async def main() -> None:
        async with RabbitBroker(url) as client:
            answer = await client.request("tea", "faststream-price", timeout=60)
            assert await answer.decode() == 30

    asyncio.run(main())


def test_orders_wait_for_the_next_service(service, publish, start):
    service.stop()
    publish({"id": 5, "amount": 1})
    start("faststream", "run", "app:app").wait_for("shipped order 5")
