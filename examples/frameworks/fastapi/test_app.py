"""The application in the process of pytest, and under uvicorn."""

from __future__ import annotations

import re
import time

import aio_pika
import anyio
import httpx
import pytest
from app import app
from fastapi.testclient import TestClient

TIMEOUT = 60.0


def wait_until_done(client: httpx.Client, number: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not client.get(f"/orders/{number}").json()["done"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def client(leveret_url, monkeypatch):
    monkeypatch.setenv("AMQP_URL", leveret_url)
    with TestClient(app) as client:
        yield client


def test_an_order_is_done(client):
    assert client.post("/orders", json={"id": 1, "amount": 20}).status_code == 202
    wait_until_done(client, 1)


def test_an_order_that_no_queue_gets_is_refused(client, leveret_url):
    async def delete() -> None:
        async with await aio_pika.connect(leveret_url) as connection:
            await (await connection.channel()).queue_delete("fastapi-orders")

    anyio.run(delete)
    answer = client.post("/orders", json={"id": 2, "amount": 20})
    assert (answer.status_code, answer.json()["detail"]) == (503, "the order was not stored, try again")


def test_a_message_that_is_no_order_is_dead_lettered(client, leveret_url):
    async def dead_letter() -> bytes:
        async with await aio_pika.connect(leveret_url) as connection:
            channel = await connection.channel()
            await channel.default_exchange.publish(aio_pika.Message(b"tea?"), "fastapi-orders")
            with anyio.fail_after(TIMEOUT):
                async with (await channel.get_queue("fastapi-failed")).iterator(no_ack=True) as messages:
                    async for message in messages:
                        return message.body
        raise AssertionError

    assert anyio.run(dead_letter) == b"tea?"


def test_under_uvicorn(start):
    server = start("uvicorn", "app:app", "--port", "0")
    server.wait_for("Uvicorn running on")
    address = re.search(r"running on (http://[\d.:]+)", server.log.read_text())[1]
    with httpx.Client(base_url=address) as client:
        assert client.post("/orders", json={"id": 3, "amount": 20}).status_code == 202
        wait_until_done(client, 3)
    server.stop(-15)
    assert "Application shutdown complete." in server.log.read_text()
