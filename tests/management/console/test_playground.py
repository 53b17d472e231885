"""The playground of a queue, shared states, segments of streams, and durations, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.management.console.conftest import downloaded
from tests.management.console.test_console import IMAGE, SCRIPT, declare, delete, publish, queue
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)


@pytest.fixture
def sandbox(api: HttpBroker) -> Iterator[str]:
    declare(api, "sandbox")
    yield "sandbox"
    delete(api, "sandbox")


def test_publish_and_consume_in_one_view(console: Console, api: HttpBroker, sandbox: str, axe: str) -> None:
    console.enter("queues", "/", sandbox, tab="playground")
    console.fill("Payload", '{"number": 1}')
    console.click("Publish message")
    console.see("the message reached at least one queue")
    console.click("Look")
    console.see("Look: 1 message")
    console.see('"number": 1')
    message = api.get(f"/leveret/queues/%2F/{sandbox}/messages")["messages"][0]
    assert (message["redelivered"], message["deliveries"]) == (False, 0)
    assert console.findings(axe) == []
    console.choose("Mode", "Get and requeue")
    console.click("Get and requeue")
    console.see("Get and requeue: 1 message")
    assert api.get(f"/leveret/queues/%2F/{sandbox}/messages")["messages"][0]["redelivered"] is True
    console.choose("Mode", "Get and acknowledge")
    console.see("Messages leave the queue. This cannot be undone.")
    console.click("Get and remove")
    console.see("Get and remove: 1 message")
    wait_until(lambda: queue(api, sandbox)["messages"] == 0, "the message to be removed")
    console.click("Get and remove")
    console.see("No message is ready")
    console.use_phone()
    console.see_fit()


def test_a_stream_is_read_by_its_offsets(console: Console, api: HttpBroker) -> None:
    declare(api, "sandbox-stream", **{"x-queue-type": "stream"})
    for number in range(3):
        publish(api, "sandbox-stream", f"text {number}")
    console.enter("queues", "/", "sandbox-stream", tab="playground")
    console.fill("Number of messages", "2")
    console.click("Look")
    console.see("text 0")
    console.see_value("From offset", "2")
    console.click("Look")
    console.see("text 2")
    console.click("Segments")
    console.see("No segment is sealed yet.")
    console.see("0 to 2")
    console.open("overview")
    console.see("Longest turns")
    console.see("Commits")


def test_a_snapshot_has_no_messages(console: Console, api: HttpBroker, sandbox: str, downloads: Path, axe: str) -> None:
    publish(api, sandbox, "secret payload")
    policy = {"pattern": "^sandbox$", "definition": {"max-length": 100}, "apply-to": "queues"}
    assert api("PUT", "/policies/%2F/sandbox", policy).status == 201
    console.enter("queues", "/", sandbox, tab="bindings")
    console.click("Share…")
    console.see_value("Link to this view", "tab=bindings")
    assert console.findings(axe) == []
    console.click("Download snapshot")
    target = downloads / "queue-sandbox.json"
    saved = downloaded(target)
    found = json.loads(saved)
    assert (found["queue"]["messages"], found["policy"]["definition"]) == (1, {"max-length": 100})
    assert found["bindings"][0]["routing_key"] == sandbox
    assert found["findings"] and found["broker"]["product_name"] == "Leveret"
    assert b"secret payload" not in saved


def test_scripts_in_the_playground_are_inert(console: Console, api: HttpBroker, downloads: Path) -> None:
    declare(api, IMAGE)
    publish(api, IMAGE, SCRIPT, headers={IMAGE: SCRIPT}, type=IMAGE)
    console.enter("queues", "/", IMAGE, tab="playground")
    console.click("Look")
    console.see(SCRIPT)
    console.choose("Mode", "Get and acknowledge")
    console.click("Get and remove")
    console.see("Get and remove: 1 message")
    console.click("Share…")
    console.click("Download snapshot")
    target = downloads / "queue-_img_src_x_onerror_window.attacked_true_.json"
    assert downloaded(target)
    console.press("\ue00c")
    assert console.script("return window.attacked") is None
    assert console.script("return document.querySelectorAll('main img, body script').length") == 0
