"""Rates of messages from exchanges to queues."""

from __future__ import annotations

import time
from typing import Any

import pytest

from leveret import sync
from leveret.management.http.objects import Flows
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until


def test_rates_are_increases_in_the_last_seconds() -> None:
    flows = Flows()
    flows.set(100, {"a": 10, "b": 0})
    assert flows.rates(100) == {}
    flows.set(103, {"a": 20, "b": 5})
    flows.set(103, {"a": 30, "b": 5})
    assert flows.rates(103) == {"a": 4.0, "b": 1.0}
    flows.set(107, {"a": 35, "b": 5})
    assert flows.rates(107) == {"a": 5.0, "b": 1.0}
    assert flows.rates(108) == {"a": 1.0}
    assert flows.rates(112) == {}


@pytest.mark.parametrize("kind", ["topic", "headers"])
def test_messages_count_for_the_exchange_that_they_were_published_to(api: HttpBroker, kind: str) -> None:
    entry, queue = f"flows-{kind}", f"flows-to-{kind}"
    api("PUT", f"/exchanges/%2F/{entry}", {"type": kind})
    api("PUT", "/exchanges/%2F/flows-next", {"type": "fanout"})
    api("PUT", f"/queues/%2F/{queue}", {"durable": True})
    arguments = {"x-match": "all"} if kind == "headers" else {}
    api("POST", f"/bindings/%2F/e/{entry}/e/flows-next", {"routing_key": "#", "arguments": arguments})
    api("POST", f"/bindings/%2F/e/flows-next/q/{queue}", {})

    def flows() -> dict[str, Any]:
        found = api.get("/leveret/flows/%2F")
        return {item["exchange"]: item["rate"] for item in found if item["queue"] == queue}

    api.get("/queues?page=1")
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()

        def are_shown() -> bool:
            """Publish, and wait for the rates, which end after five seconds."""
            wait_until(lambda: flows() == {}, lambda: f"rates are {flows()}")
            for _ in range(10):
                channel.publish("x", "key", entry)
            for _ in range(5):
                channel.publish("x", queue)
            end = time.monotonic() + 5
            while time.monotonic() < end:
                if flows() == {entry: 2.0, "": 1.0}:
                    return True
            return False

        wait_until(are_shown, lambda: f"rates are {flows()}")
    wait_until(lambda: flows() == {}, lambda: f"rates are {flows()}")
    api("DELETE", f"/queues/%2F/{queue}")
    for name in (entry, "flows-next"):
        api("DELETE", f"/exchanges/%2F/{name}")


def test_flows_of_a_vhost_that_the_user_does_not_see(api: HttpBroker) -> None:
    assert api("GET", "/leveret/flows/interop", user="manager").status == 404
