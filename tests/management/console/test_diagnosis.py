"""Why consumers are idle and publishers are stopped: the sentences of the console, and the facts that they come from."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest

from tests.management.console.test_clients import session
from tests.management.console.test_console import clients, declare, delete, publish
from tests.management.http.client import HttpBroker
from tests.support.broker import LeveretProcess, basic_config
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)

# Calls a function of the console's module.
_CALL = """
const [name, cases, done] = arguments;
const url = document.querySelector("script[type=module]").src.replace("main.js", "diagnosis.js");
import(url).then((module) => done(cases.map((values) => module[name](...values))));
"""
MINUTE = 60_000


def call(console: Console, name: str, *cases: list[Any]) -> list[Any]:
    return list(console.driver.execute_async_script(_CALL, name, list(cases)))


def acks(*samples: int) -> dict[str, Any]:
    """Statistics of a queue whose acknowledgements were counted each minute, the newest first."""
    found = [{"sample": count, "timestamp": MINUTE * (100 - at)} for at, count in enumerate(samples)]
    return {"publish": 9, "ack_details": {"samples": found}}


def test_sentences_about_consumers(console: Console) -> None:
    queue = {"type": "classic", "state": "running", "messages_ready": 4, "message_stats": acks(7, 7, 7, 3)}
    single = queue | {"single_active_consumer_tag": "first"}
    full = {"prefetch_count": 5, "unacked": 5}
    limited = {"channel": {"state": "running", "unacked": 30, "prefetch": 30, "credit": None}}
    cases: list[tuple[dict[str, Any], dict[str, Any], str | None]] = [
        (queue, {}, None),
        (queue, {"ack_required": False, "prefetch_count": 5, "unacked": 5}, None),
        (queue | {"state": "paused"}, full, "The queue is paused"),
        (single, {"active": False}, "a single active consumer, first"),
        (single, {}, None),
        (queue, {"connection": {"state": "blocked"}, "unacked": 1}, "An alarm blocks the connection"),
        (queue, {"connection": {"state": "blocked"}}, None),
        (queue, {"channel": {"state": "flow off", "unacked": 0, "prefetch": 0, "credit": None}}, "channel.flow"),
        (queue, full, "limit of 5 is reached: 5 messages are unacked. The queue's last acknowledgement was 3 min ago."),
        (queue | {"message_stats": acks(7, 7)}, full, "The queue got no acknowledgement in the last 1 min."),
        (queue | {"message_stats": acks(7)}, full, "5 messages are unacked."),
        (queue, limited, "The channel's prefetch limit of 30 is reached"),
        (queue, full | {"oldest_unacked_age": 93}, "3 min ago. The oldest has been unacked for 1 min 33 s."),
        (queue, {"channel": {"state": "running", "unacked": 0, "prefetch": 0, "credit": 0}}, "no credit"),
        (queue | {"messages_ready": 0}, {}, "no ready message"),
        (queue | {"messages_ready": 0, "message_stats": {"publish": 0}}, {}, "check its bindings"),
        (queue | {"messages_ready": 0, "type": "stream"}, {}, None),
    ]
    known = {"consumer_tag": "c", "active": True, "ack_required": True, "prefetch_count": 0, "unacked": 0}
    console.enter()
    found = call(console, "diagnoseConsumers", *([queue, [known | consumer]] for queue, consumer, _ in cases))
    for (_, consumer, expected), findings in zip(cases, found, strict=True):
        if expected is None:
            assert findings == [], consumer
        else:
            assert expected in findings[0]["text"] and findings[0]["tags"] == ["c"], findings


def test_consumers_with_the_same_reason_share_a_sentence(console: Console) -> None:
    queue = {"type": "classic", "state": "paused", "messages_ready": 1}
    console.enter()
    full = {"active": True, "ack_required": True, "prefetch_count": 5, "unacked": 5}
    limited = [full | {"consumer_tag": tag, "oldest_unacked_age": age} for tag, age in (("a", 3), ("b", 9), ("c", 5))]
    [paused, stuck] = call(
        console,
        "diagnoseConsumers",
        [queue, [{"consumer_tag": "a"}, {"consumer_tag": "b"}]],
        [queue | {"state": "running"}, limited],
    )
    assert [finding["tags"] for finding in paused] == [["a", "b"]]
    [finding] = stuck
    assert finding["tags"] == ["a", "b", "c"] and finding["text"].endswith("The oldest has been unacked for 9 s.")


def test_sentences_about_publishers(console: Console) -> None:
    connection = {"channels": 1, "channel_max": 10}
    nothing = {"reasons": [], "alarm": ""}
    unconfirmed = {"messages_unconfirmed": 3, "message_stats": {"confirm_details": {"rate": 0}}}
    confirmed = {"messages_unconfirmed": 3, "message_stats": {"confirm_details": {"rate": 5}}}
    lost = {"messages_unconfirmed": 0, "message_stats": {"return_unroutable_details": {"rate": 2}}}
    cases: list[tuple[list[Any], list[str]]] = [
        ([connection, [], nothing], []),
        ([connection, [], {"reasons": ["turn", "login"], "alarm": ""}], []),
        ([connection, [], {"reasons": ["alarm"], "alarm": "memory"}], ["The memory alarm blocks this connection"]),
        ([connection, [], {"reasons": [], "alarm": "disk"}], ["as soon as it publishes"]),
        ([connection, [], {"reasons": ["commit"], "alarm": ""}], ["The disk is slower"]),
        ([connection, [], {"reasons": ["behind"], "alarm": ""}], ["The broker is behind"]),
        ([connection, [], {"reasons": ["backlog", "output"], "alarm": ""}], ["Commands of a channel", "does not read"]),
        ([connection | {"channels": 10}, [], nothing], ["The limit of 10 channels"]),
        ([connection, [unconfirmed], nothing], ["3 published messages are not confirmed"]),
        ([connection, [confirmed], nothing], []),
        ([connection, [lost], nothing], ["Messages reach no queue: 2/s"]),
    ]
    console.enter()
    found = call(console, "diagnosePublisher", *(values for values, _ in cases))
    for (values, expected), sentences in zip(cases, found, strict=True):
        assert len(sentences) == len(expected), (values, sentences)
        assert all(part in sentence for part, sentence in zip(expected, sentences, strict=True)), sentences


def test_a_consumer_whose_prefetch_limit_is_reached(console: Console, api: HttpBroker) -> None:
    declare(api, "billing")
    for number in range(6):
        publish(api, "billing", str(number))
    with clients(api):
        console.enter("queues", "/", "billing", tab="consumers")
        console.see("The prefetch limit of 5 is reached: 5 messages are unacked.")
        console.see("The oldest has been unacked for")
        console.open("queues", "/", "billing", tab="messages", state="unacked")
        console.see("unacked for")
        console.see("at least")
        console.see("consumer ctag1.")
        console.open("queues", "/", "billing")
        console.see("oldest ")


def test_a_consumer_that_has_granted_no_credit_and_one_without_messages(console: Console, api: HttpBroker) -> None:
    declare(api, "credit")
    with session(api) as peer:
        receiver = peer.receiver("/queues/credit", credit=1)
        console.enter("queues", "/", "credit", tab="consumers")
        console.see("No message has reached the queue yet: check its bindings.")
        for number in range(2):
            publish(api, "credit", str(number))
        receiver.get()
        console.see("The client has granted no credit.")
        consumers = api.get("/leveret/queues/%2F/credit/consumers", user="monitor")
        assert [consumer["channel"]["credit"] for consumer in consumers] == [0]
        assert [consumer["unacked"] for consumer in consumers] == [1]


def test_users_see_the_channels_of_their_own_connections_only(api: HttpBroker) -> None:
    declare(api, "channels")
    parameters = pika.ConnectionParameters("127.0.0.1", api.process.port)
    with pika.BlockingConnection(parameters) as connection:
        connection.channel().basic_consume("channels", lambda *_: None)
        path = "/leveret/queues/%2F/channels/consumers"
        wait_until(lambda: [consumer["channel"] for consumer in api.get(path)] != [None], "the channel is listed")
        (consumer,) = api.get(path, user="manager")
        assert consumer["channel"] is None and consumer["connection"] is None
        (consumer,) = [row for row in api.get("/consumers") if row["queue"]["name"] == "channels"]
        name = consumer["channel_details"]["connection_name"]
        path = f"/leveret/connections/{name.replace(' ', '%20').replace('>', '%3E')}/throttling"
        assert api("GET", path, user="manager").status == 401
        assert api.get(path) == {"reasons": [], "alarm": ""}
    assert api("GET", "/leveret/queues/%2F/unknown/consumers").status == 404
    delete(api, "channels")


@pytest.mark.slow
def test_a_publisher_that_an_alarm_blocks(driver: Chrome, tmp_path: Path) -> None:
    from tests.management.console.browser import Console

    config = f"{basic_config()}[management]\nport = 0\n[limits]\nmemory_high_watermark = 1000\n"
    process = LeveretProcess(tmp_path, config=config, environment={"LEVERET_MANAGEMENT__ENABLED": "true"})
    with process.start():
        api = HttpBroker(process)
        wait_until(lambda: "memory" in api("GET", "/health/checks/alarms").content.decode(), "the alarm to be raised")
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.port))
        connection.channel().basic_publish("", "anything", b"x")
        name = wait_until(
            lambda: next((row["name"] for row in api.get("/connections") if row["state"] == "blocked"), None),
            "the connection to be blocked",
        )
        console = Console(driver, f"http://127.0.0.1:{api.port}/")
        try:
            console.enter("connections", name)
            console.see("The memory alarm blocks this connection")
        finally:
            console.leave()
            driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        assert console.reported == []
    with suppress(pika.exceptions.AMQPError):  # the broker has stopped
        connection.close()
