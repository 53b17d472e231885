"""Changes of many queues, and restored definitions, in the console, in a real browser."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.management.console.test_console import declare, delete, publish, queue
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)


def exists(api: HttpBroker, path: str) -> bool:
    return api("GET", path).status == 200


def test_listed_queues_are_paused_resumed_and_purged(console: Console, api: HttpBroker, axe: str) -> None:
    for name in ("many-1", "many-2", "many-empty"):
        declare(api, name)
    for name in ("many-1", "many-2"):
        publish(api, name, "x")
    console.enter("queues", name="many-")
    console.see("3 queues")
    console.click("Change listed…")
    console.see("3 queues of 3 would be paused")
    assert console.findings(axe) == []
    console.check("/ many-2")
    console.see("2 queues of 3 would be paused")
    console.click("Pause 2 queues")
    console.see("Paused 2 queues")
    assert [queue(api, f"many-{name}")["state"] for name in ("1", "2", "empty")] == ["paused", "running", "paused"]
    console.see_dialog(False)
    console.click("Change listed…")
    console.choose("Change", "Resume")
    console.see("2 queues of 3 would be resumed")
    console.choose("Change", "Purge")
    console.see("2 queues of 3 would be purged, with 2 messages")
    assert queue(api, "many-1")["messages"] == 1
    console.click("Purge 2 queues")
    console.see("Purged 2 queues")
    assert [queue(api, name)["messages"] for name in ("many-1", "many-2")] == [0, 0]


def test_a_deleted_queue_is_restored_with_its_bindings(console: Console, api: HttpBroker) -> None:
    declare(api, "lost", **{"x-overflow": "reject-publish"})
    binding = {"routing_key": "lost.#", "arguments": {"a": 1}}
    assert api("POST", "/bindings/%2F/e/amq.topic/q/lost", binding).status == 201
    delete(api, "lost")
    console.enter("audit", object="lost", action="delete")
    console.wait_for_rows(lambda found: len(found) == 1)
    console.click("queue.delete")
    console.see("Declares the queue again as it was, with 1 binding. Its messages are not restored.")
    console.click("Restore")
    console.see("Restored queue 'lost'")
    assert queue(api, "lost")["arguments"] == {"x-overflow": "reject-publish"}
    restored = [item for item in api.get("/queues/%2F/lost/bindings") if item["source"]]
    assert [(item["source"], item["routing_key"], item["arguments"]) for item in restored] == [
        ("amq.topic", "lost.#", {"a": 1})
    ]


def test_deleted_exchanges_bindings_and_policies_are_restored(console: Console, api: HttpBroker) -> None:
    policy = {"pattern": "^gone", "definition": {"max-length": 5}, "priority": 3, "apply-to": "queues"}
    exchange = {"type": "fanout", "durable": True, "internal": True, "arguments": {}}
    paths = {
        "exchange.delete": "/exchanges/%2F/gone-exchange",
        "policies.delete": "/policies/%2F/gone-policy",
        "binding.delete": "/bindings/%2F/e/amq.direct/q/gone-target/gone-key",
    }
    declare(api, "gone-target")
    api("PUT", paths["exchange.delete"], exchange)
    api("PUT", paths["policies.delete"], policy)
    api("POST", "/bindings/%2F/e/amq.direct/q/gone-target", {"routing_key": "gone-key"})
    for path in paths.values():
        assert api("DELETE", path).status == 204
    console.enter("audit", object="gone-", action="delete")
    for action, path in paths.items():
        console.click(action)
        console.click("Restore")
        console.see_dialog(False)
        wait_until(partial(exists, api, path), path)
    found = api.get(paths["policies.delete"])
    assert {key: found[key] for key in policy} == policy
    assert api.get(paths["exchange.delete"])["internal"] is True


def test_a_definition_with_a_secret_is_not_restored(console: Console, api: HttpBroker) -> None:
    exchange = {"type": "fanout", "arguments": {"x-token": "abc"}}
    assert api("PUT", "/exchanges/%2F/secretive", exchange).status == 201
    assert api("DELETE", "/exchanges/%2F/secretive").status == 204
    console.enter("audit", object="secretive", action="delete")
    console.click("exchange.delete")
    console.see("This object cannot be restored from the log. The log does not keep secrets")
