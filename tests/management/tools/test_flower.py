"""Flower, the monitor of Celery: what its page about the broker asks for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.management.http.client import HttpBroker

pytestmark = pytest.mark.interop


def test_flower_shows_queues(api: HttpBroker) -> None:
    flower = pytest.importorskip("flower.utils.broker", reason="Flower is not installed")
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api("PUT", "/vhosts/flower", {}).status == 201
    assert api("PUT", "/permissions/flower/guest", everything).status in (201, 204)
    assert api("PUT", "/queues/flower/celery", {"durable": True}).status == 201
    assert api("PUT", "/queues/flower/other", {"durable": True}).status == 201
    message = {"properties": {}, "routing_key": "celery", "payload": "task", "payload_encoding": "string"}
    assert api("POST", "/exchanges/flower/amq.default/publish", message).json == {"routed": True}

    async def ask() -> list[dict[str, Any]]:
        url = f"http://guest:guest@127.0.0.1:{api.port}/api/"
        found: list[dict[str, Any]] = await flower.Broker(api.process.url(vhost="flower"), http_api=url).queues(["celery"])
        return found

    (queue,) = asyncio.run(ask())
    shown = {key: queue[key] for key in ("name", "messages", "messages_ready", "messages_unacknowledged", "consumers")}
    assert list(shown.values()) == ["celery", 1, 1, 0, 0]
    assert "idle_since" in queue
    assert api("DELETE", "/vhosts/flower").status == 204
