"""The web console in a real browser, by what a person does."""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pika
import pytest

from tests.management.console.conftest import Screenshot, downloaded
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)

SCRIPT = "<script>window.attacked = true</script>"
IMAGE = "<img src=x onerror='window.attacked = true'>"


def declare(api: HttpBroker, name: str, vhost: str = "/", **arguments: Any) -> None:
    path = f"/queues/{quote(vhost, safe='')}/{quote(name, safe='')}"
    assert api("PUT", path, {"durable": True, "arguments": arguments}).status in (201, 204)


def delete(api: HttpBroker, name: str, vhost: str = "/") -> None:
    assert api("DELETE", f"/queues/{quote(vhost, safe='')}/{quote(name, safe='')}").status in (204, 404)


def publish(api: HttpBroker, key: str, payload: str, exchange: str = "amq.default", **properties: Any) -> None:
    body = {"routing_key": key, "payload": payload, "payload_encoding": "string", "properties": properties}
    assert api("POST", f"/exchanges/%2F/{quote(exchange, safe='')}/publish", body).status == 200


def queue(api: HttpBroker, name: str) -> Any:
    return api.get(f"/queues/%2F/{quote(name, safe='')}")


@pytest.fixture(scope="module")
def shop(api: HttpBroker) -> Iterator[HttpBroker]:
    """Queues and exchanges of a shop, with messages."""
    for name, kind in (("orders", "topic"), ("audit", "fanout"), ("dead", "direct")):
        assert api("PUT", f"/exchanges/%2F/{name}", {"type": kind, "durable": True}).status == 201
    names = ("orders.new", "orders.paid", "billing", "audit.log", "dead.letters")
    for name in names:
        declare(api, name, **({"x-dead-letter-exchange": "dead"} if name.startswith("orders") else {}))
    declare(api, "order-events", **{"x-queue-type": "stream"})
    for source, kind, destination, key in (
        ("orders", "q", "orders.new", "order.*.new"),
        ("orders", "q", "orders.paid", "order.*.paid"),
        ("orders", "q", "billing", "order.*.paid"),
        ("orders", "e", "audit", "#"),
        ("audit", "q", "audit.log", ""),
        ("audit", "q", "order-events", ""),
        ("dead", "q", "dead.letters", "orders.new"),
    ):
        assert api("POST", f"/bindings/%2F/e/{source}/{kind}/{destination}", {"routing_key": key}).status == 201
    for number in range(60):
        body = json.dumps({"order": number, "items": [{"sku": f"A-{number}", "count": 2}], "total": 19.9})
        key = f"order.{number % 7}.{'paid' if number % 4 == 0 else 'new'}"
        headers = {"tenant": "acme", "attempt": number % 3}
        publish(api, key, body, "orders", delivery_mode=2, content_type="application/json", headers=headers)
    yield api
    for name in (*names, "order-events"):
        delete(api, name)
    for name in ("orders", "audit", "dead"):
        api("DELETE", f"/exchanges/%2F/{name}")


@contextmanager
def clients(api: HttpBroker) -> Iterator[pika.BlockingConnection]:
    """A consumer that stalls with unacked messages."""
    connection = pika.BlockingConnection(parameters(api, connection_name="billing-service"))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=5)
    channel.basic_consume("billing", lambda *_: None)
    try:
        yield connection
    finally:
        with suppress(pika.exceptions.AMQPError):  # closed by the test
            connection.close()


def parameters(api: HttpBroker, vhost: str = "/", **properties: str) -> pika.ConnectionParameters:
    """Return the parameters of a connection that does nothing while the test looks at the console."""
    return pika.ConnectionParameters(
        "127.0.0.1", api.process.port, vhost, heartbeat=0, client_properties=properties or None
    )


def connection_named(api: HttpBroker, name: str) -> str:
    """Return the address of the connection with a name."""
    found = api.get("/connections?columns=name,user_provided_name")
    return next(str(row["name"]) for row in found if row["user_provided_name"] == name)


def test_sign_in_and_out(console: Console) -> None:
    console.open("queues")
    console.sign_in("guest", "wrong")
    console.see("Login failed")
    console.see_problem(401)
    console.sign_in()
    console.see_heading("Queues")
    console.driver.refresh()
    console.see_heading("Queues")
    console.script(
        "const send = window.fetch;"
        "window.fetch = (path, options) => { window.kept ||= options.keepalive; return send(path, options); };"
    )
    console.click("Sign out")
    console.field("User name")
    console.see_result(True, "return window.kept")  # a page that is closed at once ends the session, too
    console.see_result(0, "return sessionStorage.length")
    console.driver.refresh()
    console.field("User name")


def test_a_user_without_a_tag(console: Console) -> None:
    console.open()
    console.sign_in("plain")
    console.see("Not management user")
    console.see_problem(401)


def test_a_user_who_is_not_an_administrator(console: Console) -> None:
    console.open()
    console.sign_in("manager")
    console.see_heading("Overview")
    console.see("Connections")
    assert "Users" not in console.text() and "Permissions" not in console.text()
    console.open("users")
    console.see("your user may not see it")


def test_a_read_only_user_sees_why_nothing_can_be_changed(console: Console) -> None:
    console.open("queues")
    console.sign_in("viewer")
    console.see_heading("Queues")
    console.see("viewer (read-only)")
    console.see("Export CSV")
    assert "Declare queue" not in console.text()
    console.open("learn")
    console.see("Your user has the tag read-only and may change nothing.")


def test_all_tabs_share_the_session(console: Console, api: HttpBroker) -> None:
    """A new tab needs no new sign-in, a session that ends in one of them ends in all, and scripts cannot read it."""
    api("PUT", "/users/tabs", {"password": "tabs", "tags": "monitoring"})
    console.open("queues")
    console.sign_in("tabs")
    console.see_heading("Queues")
    console.see_result("[{},{}]", "return document.cookie + JSON.stringify([{...sessionStorage}, {...localStorage}])")
    first = console.driver.current_window_handle
    console.driver.switch_to.new_window("tab")
    console.open("exchanges")
    console.see_heading("Exchanges")
    console.click("Sign out")
    console.field("User name")
    console.driver.close()
    console.driver.switch_to.window(first)
    console.see("You signed out in another tab.")
    console.sign_in("tabs")
    console.see_heading("Queues")
    api("DELETE", "/users/tabs")
    console.see("the session has ended; sign in again")
    console.see_problem(401)
    # The other tab's message may come later than the refusal of a request.
    console.script("new BroadcastChannel(`leveret-session ${location.pathname}`).postMessage('closed')")
    console.see("You signed out in another tab.")


def test_other_tabs_end_their_requests_before_the_session_ends(console: Console) -> None:
    console.enter("queues")
    first = console.driver.current_window_handle
    console.driver.switch_to.new_window("tab")
    second = console.driver.current_window_handle
    console.open("exchanges")
    console.see_heading("Exchanges")
    console.script("window.fetch = () => new Promise(() => {})")
    console.click("Sign out")
    console.driver.switch_to.window(first)
    console.see("You signed out in another tab.")
    console.driver.switch_to.window(second)
    console.driver.close()
    console.driver.switch_to.window(first)


@pytest.fixture
def visitor(api: HttpBroker) -> Iterator[str]:
    """A user without other sessions."""
    assert api("PUT", "/users/visitor", {"password": "visitor", "tags": "monitoring"}).status in (201, 204)
    yield "visitor"
    api("DELETE", "/users/visitor")


def open_session(api: HttpBroker, user: str, agent: str) -> dict[str, str]:
    """Sign in as a browser, and return the headers of its requests."""
    body = {"username": user, "password": user}
    opened = api("POST", "/leveret/session", body, user=None, headers={"User-Agent": agent})
    return {"Cookie": opened.headers["set-cookie"].partition(";")[0], "X-Leveret-Console": "1"}


def test_a_user_ends_other_sessions(console: Console, api: HttpBroker, visitor: str, axe: str) -> None:
    lost, others = open_session(api, visitor, f"{IMAGE} Browser"), open_session(api, visitor, "curl")
    console.open("sessions")
    console.sign_in(visitor)
    expected = {"Chrome on Linux this one", f"{IMAGE} Browser", "curl"}
    console.wait_for_rows(lambda found: {row[0] for row in found} == expected)
    assert console.findings(axe) == []
    console.fill("Filter your sessions", "<img")
    console.wait_for_rows(lambda found: [row[0] for row in found] == [f"{IMAGE} Browser"])
    console.click("End…")
    console.see("Signs you out of <img")
    console.click("End session", "dialog button")
    console.see("No session matches.")
    assert api("GET", "/whoami", user=None, headers=lost).status == 401
    assert api("GET", "/whoami", user=None, headers=others).status == 200
    console.click("End other sessions…")
    console.click("End other sessions", "dialog button")
    console.see("Ended all other sessions")
    assert api("GET", "/whoami", user=None, headers=others).status == 401
    console.fill("Filter your sessions", "Chrome")
    console.wait_for_rows(lambda found: [row[0] for row in found] == ["Chrome on Linux this one"])
    assert console.script("return window.attacked") is None
    console.click("Sign out", "td button")
    console.field("User name")


def test_a_read_only_user_ends_own_sessions(console: Console, api: HttpBroker) -> None:
    other = open_session(api, "viewer", "curl")
    console.open("sessions")
    console.sign_in("viewer")
    console.fill("Filter your sessions", "curl")
    console.wait_for_rows(lambda found: [row[0] for row in found] == ["curl"])
    console.click("End…")
    console.click("End session", "dialog button")
    console.see("Ended the session")
    assert api("GET", "/whoami", user=None, headers=other).status == 401
    console.click("Sessions of all users")
    console.see_heading("Sessions of all users")


def test_an_administrator_ends_sessions_of_other_users(console: Console, api: HttpBroker, visitor: str, axe: str) -> None:
    other = open_session(api, visitor, f"{IMAGE} Browser")
    console.enter("sessions")
    console.click("Sessions of all users")
    console.see_heading("Sessions of all users")
    console.see_location("tab=all")
    console.fill("Filter sessions of all users", visitor)
    console.wait_for_rows(lambda found: [row[:2] for row in found] == [[visitor, f"{IMAGE} Browser"]])
    assert console.findings(axe) == []
    console.click("End…")
    console.click("End session", "dialog button")
    console.see(f"Ended the session of user '{visitor}'")
    assert api("GET", "/whoami", user=None, headers=other).status == 401
    assert console.script("return window.attacked") is None
    console.click("Your sessions", "main button")
    console.see_heading("Your sessions")


def test_a_session_that_is_ended_elsewhere_shows_the_sign_in_form(console: Console, api: HttpBroker, visitor: str) -> None:
    console.open("queues")
    console.sign_in(visitor)
    console.see_heading("Queues")
    console.see("Live")
    other = open_session(api, visitor, "curl")
    assert api("DELETE", "/leveret/sessions", user=None, headers=other).status == 204
    console.see("the session has ended; sign in again")
    console.see_problem(401)


def test_from_a_growing_queue_to_its_end(console: Console, api: HttpBroker) -> None:
    declare(api, "growing")
    declare(api, "quiet")
    for number in range(25):
        publish(api, "growing", json.dumps({"number": number}), headers={"tenant": "acme"})
    console.enter()
    console.click("Queues")
    console.see_heading("Queues")
    console.click("Messages", "th button")
    console.wait_for_rows(lambda found: bool(found) and found[0][0] == "growing" and "25" in found[0])
    console.click("growing")
    console.see("25 messages wait, and the queue has no consumer.")

    console.click("Publish")
    console.fill("Payload", '{"number": 99}')
    console.click("Publish message")
    console.see("the message reached at least one queue")
    assert queue(api, "growing")["messages"] == 26

    console.click("Messages")
    console.see('"number": 0')
    console.see("tenant")
    console.click("Hex")
    console.see("7b 22 6e 75 6d 62 65 72")
    assert queue(api, "growing")["messages"] == 26

    console.click("Take messages…")
    console.fill("Number of messages", "3")
    console.click("Take messages")
    wait_until(lambda: queue(api, "growing")["messages"] == 23, "the messages to be removed")
    console.press("\ue00c")
    console.see_dialog(False)

    console.click("Purge…")
    console.see("Removes 23 ready messages")
    console.click("Purge messages")
    wait_until(lambda: queue(api, "growing")["messages"] == 0, "the purge")

    console.click("Delete…")
    console.click("Delete queue")
    console.see_heading("Queues")
    assert api("GET", "/queues/%2F/growing").status == 404


def test_declare_and_bind(console: Console, api: HttpBroker) -> None:
    console.enter("queues")
    console.click("Declare queue")
    console.fill("Name", "made by hand")
    console.fill("Arguments", "{broken")
    console.click("Declare queue", "dialog button")
    console.see("Arguments is not valid JSON")
    console.fill("Arguments", '{"x-note": "ours"}')
    console.see_no("Arguments is not valid JSON")
    console.choose("Add argument", "x-overflow")
    console.choose("x-overflow", "reject-publish")
    console.choose("Add argument", "x-expires")
    console.fill("x-expires", "100000")
    console.choose("Type", "sorted")
    console.fill("x-sort-key", "price")  # which the type needs
    console.click("Remove x-expires")
    console.choose("Add argument", "x-max-length")
    console.fill("x-max-length", "7")
    console.click("Declare queue", "dialog button")
    console.see("Declared queue 'made by hand'")
    expected = {"x-max-length": 7, "x-overflow": "reject-publish", "x-note": "ours", "x-sort-key": "price"}
    assert queue(api, "made by hand")["arguments"] == {**expected, "x-queue-type": "sorted"}
    console.click("made by hand")
    console.click("Bindings")
    console.click("Add binding")
    console.fill("From exchange", "amq.topic")
    console.fill("Routing key", "a.*")
    console.click("Add binding", "dialog button")
    console.see("a.*")
    console.click("Remove…")
    console.click("Remove binding")
    wait_until(lambda: len(api.get("/queues/%2F/made%20by%20hand/bindings")) == 1, "the binding to be removed")
    console.see_no("a.*")


@pytest.mark.parametrize(("kind", "argument", "known"), [
    ("queue", "x-max-lenght", "x-max-length"),
    ("exchange", "x-cache-sizes", "x-cache-size"),
])  # fmt: skip
def test_misspelt_arguments(console: Console, api: HttpBroker, kind: str, argument: str, known: str) -> None:
    label = f"Declare {kind}"
    console.enter(f"{kind}s")
    console.click(label)
    console.fill("Name", "misspelt")
    console.fill("Arguments", f'{{"{argument}": 7}}')
    console.click(label, "dialog button")
    console.see(f"Declared {kind} 'misspelt': unknown argument '{argument}' has no effect; did you mean '{known}'?")
    assert api("DELETE", f"/{kind}s/%2F/misspelt").status == 204


def test_an_error_of_the_api_is_shown_as_it_is(console: Console, api: HttpBroker) -> None:
    declare(api, "fixed")
    console.enter("queues")
    console.click("Declare queue")
    console.fill("Name", "fixed")
    console.check("Durable")
    console.click("Declare queue", "dialog button")
    console.see("inequivalent arg 'durable' for queue 'fixed' in vhost '/'")
    console.see_value("Name", "fixed")
    console.see_problem(400)


def test_users_and_permissions(console: Console, api: HttpBroker) -> None:
    console.enter("users")
    console.click("Add user")
    console.fill("Name", "carla")
    console.fill("Password", "secret")
    console.fill("Tags", "monitoring, management")
    console.click("Add user", "dialog button")
    console.see("Added user 'carla'")
    console.click("carla")
    console.click("Set permissions")
    console.fill("Write", "^carla")
    console.click("Set permissions", "dialog button")
    console.see("^carla")
    [permission] = api.get("/users/carla/permissions")
    assert (permission["configure"], permission["write"]) == (".*", "^carla")
    assert set(api.get("/users/carla")["tags"]) == {"monitoring", "management"}
    console.click("Delete…")
    console.click("Delete user")
    console.see_heading("Users")
    assert api("GET", "/users/carla").status == 404


def test_a_view_does_not_read_what_is_being_deleted(console: Console, api: HttpBroker) -> None:
    """The end of the test fails if the browser has reported a missing object."""
    assert api("PUT", "/users/dora", {"password": "secret", "tags": ""}).status == 201
    console.enter("users", "dora")
    console.see_heading("dora")
    # The event about the deletion arrives long before its reply.
    console.script(
        "const send = window.fetch;"
        "window.fetch = async (...call) => {"
        "  const reply = await send(...call);"
        "  if (call[1]?.method === 'DELETE') await new Promise((done) => setTimeout(done, 3000));"
        "  return reply;"
        "};"
    )
    console.click("Delete…")
    console.click("Delete user")
    console.see_heading("Users")
    assert api("GET", "/users/dora").status == 404


def test_a_view_does_not_read_on_when_a_change_begins(console: Console, api: HttpBroker) -> None:
    """The end of the test fails if the browser has reported a missing object."""
    assert api("PUT", "/users/emma", {"password": "secret", "tags": ""}).status == 201
    console.enter("users", "emma")
    console.see_heading("emma")
    # Reads that were begun before the deletion reach the broker after it.
    console.script(
        "const send = window.fetch; const reads = [];"
        "window.held = 0;"
        "window.fetch = async (path, options) => {"
        "  if (options.method === 'GET' && String(path).includes('/users/emma')) {"
        "    window.held += 1;"
        "    await new Promise((go) => reads.push(go));"
        "  }"
        "  const reply = await send(path, options);"
        "  if (options.method === 'DELETE') {"
        "    reads.forEach((go) => go());"
        "    await new Promise((done) => setTimeout(done, 200));"
        "  }"
        "  return reply;"
        "};"
    )
    console.press("r")
    console.see_result(3, "return window.held")
    console.click("Delete…")
    console.click("Delete user")
    console.see_heading("Users")
    assert api("GET", "/users/emma").status == 404


def test_a_dialog_that_is_opened_during_a_change_stays(console: Console, api: HttpBroker) -> None:
    declare(api, "slow change")
    console.enter("queues", "/", "slow change")
    console.see_heading("slow change")
    console.script(
        "const send = window.fetch;"
        "window.fetch = (path, options) => options.method !== 'DELETE' ? send(path, options)"
        " : new Promise((answer) => { window.answer = answer; });"
    )
    for status, text in ((204, "Purged queue 'slow change'"), (500, "the disk is full")):
        console.click("Purge…")
        console.click("Purge messages", "dialog button")
        console.press("\ue00c")  # Escape
        console.see_dialog(False)
        console.click("Copy as…")
        console.see("curl -u guest")
        body = None if status == 204 else json.dumps({"error": "error", "reason": text})
        console.script("window.answer(new Response(arguments[0], { status: arguments[1] }))", body, status)
        console.see(text)
        console.see_dialog()
        console.press("\ue00c")
        console.see_dialog(False)
    # Nor does the end of a change leave a view that the user has gone to.
    console.click("Delete…")
    console.click("Delete queue", "dialog button")
    console.press("\ue00c")
    console.click("Exchanges", "nav a")
    console.see_heading("Exchanges")
    console.script("window.answer(new Response(null, { status: 204 }))")
    console.see("Deleted queue 'slow change'")
    console.see_heading("Exchanges")


def test_a_filter_is_not_that_of_the_next_view(console: Console) -> None:
    console.enter("queues")
    console.see_heading("Queues")
    # The filter takes effect after a while, and the address changes before the view.
    found = console.driver.execute_async_script(
        "const [done] = arguments; const field = document.querySelector('[data-filter]');"
        "field.value = 'orders';"
        "field.dispatchEvent(new InputEvent('input', { bubbles: true }));"
        "location.hash = '#/exchanges';"
        "document.querySelector('th button').click();"
        "setTimeout(() => done(location.hash), 400);"
    )
    assert found.startswith("#/exchanges?") and "name=" not in found
    console.see_heading("Exchanges")


def test_the_matches_of_a_policy_are_those_of_its_last_pattern(console: Console, api: HttpBroker) -> None:
    declare(api, "matching")
    console.enter("policies")
    console.click("Add policy")
    console.script(
        "const send = window.fetch;"
        "window.fetch = (path, options) => !String(path).includes('name=%5Eearlier') ? send(path, options)"
        " : new Promise((answer, refuse) => {"
        "  window.answer = () => answer(new Response('{\"filtered_count\": 7}'));"
        "  options.signal.addEventListener('abort', () => refuse(options.signal.reason));"
        "});"
    )
    console.fill("Pattern", "^earlier")
    console.see_result(True, "return 'answer' in window")
    console.fill("Pattern", "^matching$")
    console.see("Matches 1 queue now")
    console.driver.execute_async_script("window.answer(); setTimeout(arguments[0], 200)")
    console.see("Matches 1 queue now")
    assert "Matches 7 queues now" not in console.text()


def test_topic_permissions(console: Console, api: HttpBroker, axe: str) -> None:
    assert api("PUT", "/users/tomas", {"password": "tomas", "tags": "management"}).status == 201
    console.enter("users", "tomas")
    console.see("No topic permissions: routing keys are not restricted.")
    console.click("Set topic permissions")
    console.fill("Write", "(")
    console.click("Set topic permissions", "dialog button")
    console.see("regular expression")
    console.see_problem(400)
    console.fill("Write", "^{username}[.]")
    console.click("Set topic permissions", "dialog button")
    console.see("Set the topic permissions of 'tomas'")
    [found] = api.get("/users/tomas/topic-permissions")
    assert (found["exchange"], found["write"], found["read"]) == ("amq.topic", "^{username}[.]", ".*")
    console.open("permissions", kind="topic", name="tomas")
    console.wait_for_rows(lambda rows: len(rows) == 1 and "^{username}[.]" in rows[0])
    assert console.findings(axe) == []
    console.click("Change…")
    console.see_value("Write", "^{username}[.]")
    console.fill("Read", "^news")
    console.click("Set topic permissions", "dialog button")
    console.wait_for_rows(lambda rows: len(rows) == 1 and "^news" in rows[0])
    console.click("Clear…")
    console.see("may use all routing keys with amq.topic")
    console.click("Clear topic permissions", "dialog button")
    console.see("Cleared the topic permissions of 'tomas' for 'amq.topic'")
    assert api.get("/topic-permissions") == []


def test_a_vhost(console: Console, api: HttpBroker) -> None:
    console.enter("vhosts")
    console.click("Add vhost")
    console.fill("Name", "team a/b")
    console.click("Add vhost", "dialog button")
    console.see("Added vhost 'team a/b'")
    console.click_in_row("team a/b", "Trace")
    console.click("Trace messages", "dialog button")
    console.see("Tracing vhost 'team a/b'")
    assert api.get("/vhosts/team%20a%2Fb")["tracing"] is True
    console.click_in_row("team a/b", "Stop tracing")
    console.click("Stop tracing", "dialog button")
    console.see("Stopped tracing vhost 'team a/b'")
    assert api.get("/vhosts/team%20a%2Fb")["tracing"] is False
    console.click_in_row("team a/b", "Delete")
    console.fill("Repeat the name", "another")
    console.click("Delete vhost", "dialog button")
    console.see("expected 'team a/b'")
    console.fill("Repeat the name", "team a/b")
    console.click("Delete vhost", "dialog button")
    console.see("Deleted vhost 'team a/b'")
    assert "team a/b" not in [item["name"] for item in api.get("/vhosts")]


def test_a_policy(console: Console, api: HttpBroker) -> None:
    if api("GET", "/policies").status == 404:
        pytest.skip("the API has no policies")
    declare(api, "limited by policy")
    console.enter("policies")
    console.click("Add policy")
    console.fill("Name", "limit")
    console.fill("Pattern", "^limited by")
    console.see("Matches 1 queue now")
    console.choose("Add key", "overflow")
    console.fill("Definition", '{"max-length": 3}')
    console.click("Set policy", "dialog button")
    console.see("Set policy 'limit'")
    console.click("Change…")
    console.see_value("max-length", "3")
    console.choose("overflow", "drop-head")
    console.click("Set policy", "dialog button")
    console.see_dialog(False)
    assert api.get("/policies/%2F/limit")["definition"] == {"max-length": 3, "overflow": "drop-head"}
    for number in range(5):
        publish(api, "limited by policy", str(number))
    console.open("queues", "/", "limited by policy")
    console.see("policy limit")
    console.see("The length limit of 3 is reached")


def test_a_stalled_consumer_and_its_connection(console: Console, shop: HttpBroker) -> None:
    with clients(shop) as connection:
        console.enter("queues", "/", "billing")
        console.see("5 are unacked")
        console.click("Consumers", ".tabs a")
        console.see("manual")
        console.click("Connections", "nav a")
        console.wait_for_rows(lambda found: any("billing-service" in row for row in found))
        console.click(connection_named(shop, "billing-service"))
        console.see_heading("billing-service")
        console.see("AMQP 0-9-1")
        console.click("Close…")
        console.fill("Reason", "closed by a test")
        console.click("Close connection", "dialog button")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="closed by a test"):
            wait_until(lambda: connection.process_data_events(0), "the connection to be closed")
        wait_until(lambda: shop.get("/connections") == [], "the connection to be closed")


def test_a_deep_link(console: Console, api: HttpBroker) -> None:
    for name in ("deep-1", "deep-2", "other"):
        declare(api, name, "interop")
    console.enter("queues", name="^deep-.$", regex="1", vhost="interop", sort="name", desc="1")
    console.wait_for_rows(lambda found: [row[0] for row in found] == ["deep-2", "deep-1"])
    console.see_value("Filter queues", "^deep-.$")
    console.fill("Filter queues", "deep-1")
    console.wait_for_rows(lambda found: [row[0] for row in found] == ["deep-1"])
    console.see_location("name=deep-1")


def test_a_missing_object(console: Console) -> None:
    console.open("queues", "/", "no such queue")
    console.sign_in()
    console.see("Not Found")
    console.see_problem(404)
    console.open("nonsense", "a", "b")
    console.see("This location does not exist")


def test_names_that_a_browser_cannot_address(console: Console, api: HttpBroker) -> None:
    declare(api, "bystander")
    console.open("queues", "/", "..")
    console.sign_in()
    console.see("a browser cannot address an object named '..'")
    assert queue(api, "bystander")["name"] == "bystander"


@pytest.mark.slow
def test_stored_scripts_are_inert(console: Console, api: HttpBroker) -> None:
    for name in (SCRIPT, IMAGE, "javascript:window.attacked=true"):
        declare(api, name)
        path = f"/exchanges/%2F/{quote(name, safe='')}"
        assert api("PUT", path, {"type": "topic", "durable": True}).status in (201, 204)
        body = {"routing_key": name, "arguments": {IMAGE: SCRIPT}}
        binding = f"/bindings/%2F/e/{quote(name, safe='')}/q/{quote(name, safe='')}"
        assert api("POST", binding, body).status == 201
        publish(api, name, SCRIPT, content_type=IMAGE, message_id=SCRIPT, headers={IMAGE: {SCRIPT: [IMAGE]}})
    assert api("PUT", f"/users/{quote(IMAGE, safe='')}", {"password": "x", "tags": f"{SCRIPT},management"}).status == 201
    permission = {"configure": ".*", "write": "", "read": ""}
    assert api("PUT", f"/permissions/%2F/{quote(IMAGE, safe='')}", permission).status == 201
    topic = {"exchange": IMAGE, "write": SCRIPT, "read": ""}
    assert api("PUT", f"/topic-permissions/%2F/{quote(IMAGE, safe='')}", topic).status == 201
    vhost = f"/vhosts/{quote(IMAGE, safe='')}"
    assert api("PUT", vhost, {"description": SCRIPT, "tags": [IMAGE]}).status in (201, 204)
    policy = {"pattern": f"{SCRIPT}|{IMAGE}", "definition": {"dead-letter-exchange": IMAGE}, "apply-to": "queues"}
    for kind in ("policies", "operator-policies"):
        found = policy if kind == "policies" else policy | {"definition": {"max-length": 100}}
        assert api("PUT", f"/{kind}/%2F/{quote(IMAGE, safe='')}", found).status == 201
    with pika.BlockingConnection(parameters(api, connection_name=IMAGE, product=SCRIPT)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(IMAGE, lambda *_: None, consumer_tag=SCRIPT)
        see_no_script(console, api)
        console.leave()


def see_no_script(console: Console, api: HttpBroker) -> None:
    """Look at all views, whose names and contents are scripts."""
    console.enter()
    for name in (SCRIPT, IMAGE):
        for tab in ("state", "bindings", "consumers", "publish"):
            console.open("queues", "/", name, tab=tab)
            console.see_heading(name)
        console.open("exchanges", "/", name)
        console.see_heading(name)
    console.open("queues", "/", SCRIPT, tab="messages")
    for text in (SCRIPT, IMAGE):
        console.see(text)
    console.click("Edit and publish…")
    for view in ("queues", "exchanges", "consumers", "users", "permissions", "connections", "vhosts", "policies"):
        console.open(view)
        console.see("<img src=x")
    for view, kind in (("policies", "operator"), ("permissions", "topic")):
        console.open(view, kind=kind)
        console.see("<img src=x")
    console.open("connections", connection_named(api, IMAGE))
    console.see_heading(IMAGE)
    console.open("map", vhost="/", node=f"e:{SCRIPT}")
    console.see("Test message")
    console.press("/")
    assert console.script("return window.attacked") is None
    assert console.script("return document.querySelectorAll('main img, body script').length") == 0


def test_ten_thousand_queues(console: Console, api: HttpBroker) -> None:
    with pika.BlockingConnection(parameters(api, "interop")) as connection:
        channel = connection.channel()
        for number in range(10_000):
            channel.queue_declare(f"many-{number:05}", exclusive=True)
        console.enter("queues", vhost="interop")
        console.see("10,000 queues")
        rows = console.wait_for_rows(lambda found: bool(found) and found[0][0] == "many-00000")
        assert len(rows) < 100
        console.script("const table = document.querySelector('.table'); table.scrollTop = table.scrollHeight")
        rows = console.wait_for_rows(lambda found: bool(found) and found[-1][0] == "many-09999")
        assert len(rows) < 100
        console.script("document.querySelector('.table').scrollTop = 5000 * 32")
        console.wait_for_rows(lambda found: ["many-05000"] in [row[:1] for row in found])
        console.fill("Filter queues", "09123")
        console.wait_for_rows(lambda found: [row[0] for row in found] == ["many-09123"])


def test_bulk_delete(console: Console, api: HttpBroker) -> None:
    for name in ("bulk-1", "bulk-2", "bulk-full", "spared"):
        declare(api, name)
    publish(api, "bulk-full", "kept")
    console.enter("queues", name="bulk-")
    console.see("3 queues")
    console.click("Delete listed…")
    console.see("2 queues of 3 would be deleted")
    console.check("Keep queues with messages")
    console.see("3 queues of 3 would be deleted")
    console.check("Keep queues with messages")
    console.click("Delete 2 queues")
    console.see("Deleted 2 queues")
    left = [item["name"] for item in api.get("/queues/%2F?columns=name")]
    assert "bulk-full" in left and "spared" in left and "bulk-1" not in left


def test_export(console: Console, api: HttpBroker, downloads: Path) -> None:
    for name in ("=1+1", 'export "quoted", with comma', "plain export"):
        declare(api, name)
    console.enter("queues", vhost="/", sort="name")
    console.see("plain export")
    console.click("Export CSV")
    path = downloads / "queues.csv"
    rows = list(csv.DictReader(StringIO(downloaded(path).decode("utf-8-sig"), newline="")))
    names = [row["Name"] for row in rows]
    assert "'=1+1" in names and 'export "quoted", with comma' in names
    assert {row["Vhost"] for row in rows} == {"/"}


def test_the_keyboard(console: Console, api: HttpBroker) -> None:
    declare(api, "keyed-1")
    declare(api, "keyed-2")
    console.enter()
    console.press("?")
    console.see("Next and previous row")
    console.press("\ue00c")  # Escape
    console.see_no("Next and previous row")
    console.press("g", "q")
    console.see_heading("Queues")
    console.see("keyed-1")
    console.press("/")
    console.press("keyed-")
    console.see_location("name=keyed-")
    console.wait_for_rows(lambda found: [row[0] for row in found] == ["keyed-1", "keyed-2"])
    console.press("\ue00c")
    console.press("j", "j", "\ue007")  # Enter
    console.see_heading("keyed-2")
    console.script("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'k', ctrlKey: true, bubbles: true}))")
    console.see_dialog()
    console.see_result("INPUT", "return document.activeElement.tagName")
    console.press("keyed-1")
    console.find("dialog li", "keyed-1", exact=False)
    console.script("window.fetch = () => new Promise(() => {})")
    console.press("x")  # what was found for the earlier text does not match
    console.see_result(0, "return document.querySelectorAll('dialog li').length")
    console.press("\ue003")  # Backspace
    console.find("dialog li", "keyed-1", exact=False)
    console.press("\ue007")
    console.see_location("queues/%2F/keyed-1")


def test_light_and_dark(console: Console) -> None:
    def background() -> str:
        return str(console.script("return getComputedStyle(document.documentElement).backgroundColor"))

    console.enter()
    light = background()
    console.prefer("dark")
    wait_until(lambda: background() != light, "the dark theme of the system")
    dark = background()
    console.click("Light")
    wait_until(lambda: background() == light, "the light theme")
    console.driver.refresh()
    console.see_heading("Overview")
    wait_until(lambda: background() == light, "the light theme after the page is read again")
    console.click("Dark")
    wait_until(lambda: background() == dark, "the dark theme")


VIEWS = (
    ("overview",),
    ("alerts",),
    ("learn",),
    ("learn", "topics"),
    ("queues",),
    ("queues", "/", "orders.new"),
    ("exchanges",),
    ("exchanges", "/", "orders"),
    ("map",),
    ("streams",),
    ("pipelines",),
    ("connections",),
    ("channels",),
    ("consumers",),
    ("links",),
    ("transactions",),
    ("shovels",),
    ("vhosts",),
    ("users",),
    ("audit",),
    ("users", "guest"),
    ("permissions",),
    ("sessions",),
)


def test_a_phone(console: Console, shop: HttpBroker, screenshot: Screenshot) -> None:
    console.use_phone()
    console.enter()
    for view in VIEWS:
        console.open(*view)
        console.see_heading()
        console.see_fit()
    console.open("queues", "/", "orders.new", tab="messages")
    console.see("Headers")
    console.see_fit()
    console.click("Menu")
    console.click("Exchanges", "nav a")
    console.see_heading("Exchanges")
    console.open("queues", "/", "orders.new")
    console.see("messages wait")
    screenshot("phone")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(console: Console, shop: HttpBroker, axe: str, scheme: str) -> None:
    console.prefer(scheme)
    console.open()
    console.field("User name")
    assert console.findings(axe) == []
    console.sign_in()
    console.see_heading()
    with clients(shop):
        for view in VIEWS:
            console.open(*view)
            console.see_heading()
            assert console.findings(axe) == [], view
        console.open("queues", "/", "orders.new", tab="messages")
        console.see("Headers")
        assert console.findings(axe) == []
        for button in ("Edit and resend…", "Edit and publish…", "Purge…", "Delete…"):
            console.click(button)
            console.see_dialog()
            assert console.findings(axe) == [], button
            console.press("\ue00c")
            console.see_dialog(False)
        console.open("map", vhost="/", node="e:orders")
        console.see("Test message")
        assert console.findings(axe) == []


def test_keys_and_dropped_duplicates(console: Console, api: HttpBroker) -> None:
    arguments: dict[str, Any] = {"x-deduplication-window": 60_000, "x-deduplication-header": "id"}
    declare(api, "unique", **arguments)
    body = {"type": "fanout", "durable": True, "arguments": arguments}
    assert api("PUT", "/exchanges/%2F/unique", body).status == 201
    assert api("POST", "/bindings/%2F/e/unique/q/unique", {}).status == 201
    for key in ("a", "b", "a"):
        publish(api, "unique", "x", "unique", headers={"id": key})
    publish(api, "unique", "x", headers={"id": "b"})
    console.enter("exchanges", "/", "unique")
    for kind in ("exchanges", "queues"):
        console.open(kind, "/", "unique")
        console.see_result([["Deduplication keys", "2"], ["Dropped duplicates", "1"]], FIGURES)
    console.open("exchanges", "/", "amq.topic")
    console.see_heading("amq.topic")
    console.see("Messages in")
    console.see_result([], FIGURES)


# The figures of deduplication.
FIGURES = """
const terms = [...document.querySelectorAll("main dt")];
const found = terms.filter((term) => /^(Deduplication|Dropped)/.test(term.textContent));
return found.map((term) => [term.textContent, term.nextElementSibling.textContent]);
"""


def test_the_topology_map(console: Console, shop: HttpBroker) -> None:
    console.enter("map", vhost="/")
    console.find(".node.queue", "orders.new", exact=False)
    console.click("orders", ".node.exchange", exact=False)
    console.see("Test message")
    before = queue(shop, "billing")["messages"]
    console.fill("Routing key", "order.7.paid")
    lit = """
      const titles = [...document.querySelectorAll(".map .node.on title")];
      return titles.map((title) => title.textContent.split("\\n")[0]).sort();
    """
    expected = ["audit", "audit.log", "billing", "order-events", "orders", "orders.paid"]
    console.see_result(expected, lit)
    busy = "return [...document.querySelectorAll('.map .edge.busy title')].map((title) => title.textContent)"
    # The messages of the shop count in the rates for some seconds.
    console.see_result([], busy)
    console.click("Publish message")
    console.see("reached at least one queue")
    assert queue(shop, "billing")["messages"] == before + 1
    rated = "return [...document.querySelectorAll('.map .label.rate')].map((label) => label.textContent)"

    def lights_up() -> bool:
        # An edge is busy for some seconds only, which a slow view may miss.
        publish(shop, "order.7.paid", "{}", "orders")
        return "order.*.paid" in console.script(busy) and any(label.endswith("/s") for label in console.script(rated))

    wait_until(lights_up, lambda: console.script(busy))
    console.fill("Filter topology", "dead")
    wait_until(lambda: "dead.letters" in (found := console.script(lit.replace(".on", ""))) and "billing" not in found)


def test_live_updates(console: Console, api: HttpBroker) -> None:
    declare(api, "live")
    console.enter("queues", name="live")
    console.wait_for_rows(lambda found: bool(found) and found[0][0] == "live")
    publish(api, "live", "new")
    console.wait_for_rows(lambda found: bool(found) and "1" in found[0])
    console.see("Live")
    console.click("Live")
    console.see("Paused")
    publish(api, "live", "unseen")
    console.press("r")
    console.wait_for_rows(lambda found: bool(found) and "2" in found[0])


def test_a_broker_that_does_not_answer(console: Console) -> None:
    console.enter("queues")
    console.see("Live")
    console.script("window.send = window.fetch; window.fetch = () => Promise.reject(new TypeError('dead'))")
    console.press("r")
    console.see("No answer since")
    console.see("the broker does not answer")
    console.script("window.fetch = window.send")
    console.press("r")
    console.see_no("No answer since")
    console.see_no("the broker does not answer")


def test_pages_of_a_vhost_and_of_a_node(console: Console, api: HttpBroker) -> None:
    declare(api, "sized")
    publish(api, "sized", "x")
    console.enter("vhosts")
    console.click("/", "td a")
    console.see_heading("/")
    console.see("Queue type")
    console.find("[role=img]", "Messages of the vhost over time")
    console.find("td a", "guest")
    console.open("overview")
    console.click("Memory", "a")
    console.see("publishers are blocked above")
    console.find("[role=img]", "Memory of the node over time")
    console.see("Queues and their messages")
    console.open("exchanges", "/", "amq.topic")
    console.find("[role=img]", "Message rates of the exchange over time")


def test_messages_are_found_and_moved(console: Console, api: HttpBroker) -> None:
    for name in ("look", "elsewhere"):
        declare(api, name)
    for number in range(12):
        publish(
            api, "look", json.dumps({"order": number}), delivery_mode=2, headers={"tenant": "acme" if number % 3 else "b"}
        )
    console.enter("queues", "/", "look", tab="messages")
    console.see("12 messages")
    console.choose("Search in", "a header")
    console.fill("Header", "tenant")
    console.choose("Condition", "is")
    console.fill("Text", "b")
    console.click("Search")
    console.see("4 messages of 12 messages that were looked at")
    console.driver.refresh()  # the location holds the search
    console.see("4 messages of 12 messages that were looked at")
    second = "const input = document.querySelectorAll('.choice input')[1]; input?.click(); return Boolean(input)"
    wait_until(lambda: console.script(second), "the choices")
    console.see("1 selected message")
    console.click("Move messages…")
    console.fill("Queue", "elsewhere")
    console.click("Move messages")
    console.see("Moved 1 message")
    assert (queue(api, "look")["messages"], queue(api, "elsewhere")["messages"]) == (11, 1)
    console.see("3 messages of 11 messages that were looked at")

    console.click("Delete messages…")
    console.see("Deletes all messages that match")
    console.click("Delete messages", "dialog button")
    console.see("Deleted 3 messages")
    console.see("No message matches.")
    assert queue(api, "look")["messages"] == 8
    assert queue(api, "look")["message_stats"]["redeliver"] == 0


def test_a_dead_letter_is_changed_and_sent_again(console: Console, api: HttpBroker) -> None:
    declare(api, "graves")
    declare(api, "work", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"})
    publish(api, "work", "wrong", delivery_mode=2)
    reject = {"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto"}
    assert api("POST", "/queues/%2F/work/get", reject).status == 200
    console.enter("queues", "/", "graves", tab="messages")
    console.see("rejected in")
    console.click("Edit and resend…")
    console.fill("Payload", "right")
    console.click("Resend message")
    console.see("Sent the changed message")
    console.see("No message is here.")
    (message,) = api.get("/leveret/queues/%2F/work/messages")["messages"]
    assert message["payload"] == "right"


def test_unacked_messages_and_a_cancelled_consumer(console: Console, shop: HttpBroker) -> None:
    with clients(shop):
        wait_until(lambda: queue(shop, "billing")["messages_unacknowledged"] == 5, "the consumer has messages")
        console.enter("queues", "/", "billing", tab="messages", state="unacked")
        console.see("5 messages")
        console.see("of connection")
        console.click("Consumers", "nav.tabs a")
        console.click("Cancel…")
        console.click("Cancel consumer")
        wait_until(lambda: queue(shop, "billing")["consumers"] == 0, "the consumer is cancelled")
        console.see("No consumers.")


def test_a_queue_is_paused_and_resumed(console: Console, api: HttpBroker) -> None:
    declare(api, "holiday")
    console.enter("queues", "/", "holiday")
    console.click("Pause…")
    console.click("Pause queue")
    console.see("Paused queue 'holiday'")
    assert queue(api, "holiday")["state"] == "paused"
    console.click("Resume")
    console.see("Resumed queue 'holiday'")
    assert queue(api, "holiday")["state"] == "running"


def test_the_audit_log(console: Console, api: HttpBroker) -> None:
    declare(api, "watched")
    delete(api, "watched")
    console.enter("audit", object="watched")
    console.see_heading("Audit log")
    rows = console.wait_for_rows(lambda found: [row[2] for row in found] == ["queue.delete", "queue.declare"])
    assert rows[0][1] == "guest"
    console.click("queue.declare")
    console.see_dialog()
    console.see("durable")
    console.press("\ue00c")
    console.fill("Object", "nothing like that\n")
    console.see("No change matches.")


def test_tabs_share_one_stream_of_events(console: Console, api: HttpBroker) -> None:
    declare(api, "shared")
    console.enter("queues", name="shared")
    console.see("Live")
    first = console.driver.current_window_handle
    console.driver.switch_to.new_window("tab")
    second = console.driver.current_window_handle
    console.open("queues", name="shared")
    console.see("Live")
    # One tab holds the lock and receives the events; this one waits for it.
    locks = "return navigator.locks.query().then(({ held, pending }) => [held.length, pending.length])"
    console.see_result([1, 1], locks)
    publish(api, "shared", "new")
    console.wait_for_rows(lambda found: bool(found) and "1" in found[0])
    console.driver.switch_to.window(first)
    console.driver.close()
    console.driver.switch_to.window(second)
    publish(api, "shared", "newer")  # this tab takes over
    console.wait_for_rows(lambda found: bool(found) and "2" in found[0])


def test_routing_in_the_browser(console: Console) -> None:
    """The prediction of destinations agrees with the broker's rules."""
    console.enter()
    topics = [
        ("#", "", True),
        ("#", "a.b", True),
        ("a.#", "a", True),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.x.y.b", True),
        ("a.*.b", "a.b", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("#.#", "a", True),
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("*.#", "", True),
    ]
    headers = [
        ({"x-match": "all", "a": 1, "b": None}, {"a": 1, "b": 2}, True),
        ({"a": 1, "x-other": 2}, {"a": 1}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1}, {}, False),
        ({"x-match": "all-with-x", "x-other": 2}, {}, False),
    ]
    for function, cases in (("matchesTopic", topics), ("matchesHeaders", headers)):
        found = console.driver.execute_async_script(_CALL, function, cases)
        assert found == [expected for *_, expected in cases], function


# Calls a function of the module that predicts destinations, for each case.
_CALL = """
const [name, cases, done] = arguments;
const url = document.querySelector("script[type=module]").src.replace("main.js", "routing.js");
import(url).then((module) => done(cases.map(([one, other]) => module[name](one, other))));
"""


def test_a_binary_message(console: Console, api: HttpBroker) -> None:
    declare(api, "binary")
    payload = base64.b64encode(bytes(range(256))).decode()
    body = {"routing_key": "binary", "payload": payload, "payload_encoding": "base64", "properties": {}}
    assert api("POST", "/exchanges/%2F/amq.default/publish", body).status == 200
    console.enter("queues", "/", "binary", tab="messages")
    console.see("00000010  10 11 12 13")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screens(console: Console, shop: HttpBroker, screenshot: Screenshot, scheme: str) -> None:
    """Every view that the documentation shows renders."""
    console.prefer(scheme)
    console.enter()
    with clients(shop):
        console.see("Top queues")
        console.see("orders.new")
        screenshot(f"overview-{scheme}")
        console.open("queues", vhost="/", sort="messages", desc="1")
        console.see("audit.log")
        screenshot(f"queues-{scheme}")
        console.open("queues", "/", "billing")
        console.see("are unacked")
        screenshot(f"queue-{scheme}")
        console.open("queues", "/", "orders.new", tab="messages")
        console.see("Headers")
        screenshot(f"messages-{scheme}")
        console.open("map", vhost="/", node="e:orders")
        console.fill("Routing key", "order.7.paid")
        console.see("billing")
        screenshot(f"map-{scheme}")
