"""Roles of users in the console."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import pytest

from leveret import sync
from tests.management.console.test_console import declare, delete, publish
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)

# Users of the vhost `/` with their tags and permissions; None stands for none in any vhost.
USERS: dict[str, tuple[str, tuple[str, str, str] | None]] = {
    "administers": ("administrator", (".*", ".*", ".*")),
    "monitors": ("monitoring", None),
    "makes-policies": ("policymaker", ("^thing$", "", "")),
    "watches-policies": ("policymaker,monitoring", None),
    "publishes": ("management", ("", ".*", r"^(amq\.fanout|thing)$")),
    "consumes": ("management", ("", "", "^thing$")),
    "reads-only": ("administrator,read-only", (".*", ".*", ".*")),
    "reads-no-payloads": ("monitoring,no-payloads", (".*", ".*", ".*")),
}
GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
PUBLISH = {"routing_key": "", "payload": "x", "payload_encoding": "string", "properties": {}}
AVRO = {"format": "avro", "schema": '"int"'}
POLICY = {"pattern": "^none$", "definition": {"max-length": 1}}


class Button(NamedTuple):
    """A button and what it requests. `row` is a text of its row in a list."""

    view: tuple[str, ...]
    query: dict[str, str]
    text: str
    method: str
    path: str
    body: dict[str, Any] | None = None
    row: str = ""


THING = ("queues", "/", "thing")
TOPIC = ("exchanges", "/", "topic")
BUTTONS = [
    Button(THING, {}, "Pause…", "POST", "/leveret/queues/%2F/thing/pause"),
    Button(THING, {}, "Purge…", "DELETE", "/queues/%2F/thing/contents"),
    Button(THING, {}, "Mark…", "PUT", "/leveret/marks/roles", {}),
    Button(THING, {"tab": "bindings"}, "Add binding", "POST", "/bindings/%2F/e/amq.fanout/q/thing", {}),
    Button(THING, {"tab": "messages"}, "Take messages…", "POST", "/queues/%2F/thing/get", GET),
    Button(THING, {"tab": "messages"}, "Import…", "POST", "/leveret/queues/%2F/thing/messages/import", {}),
    Button(THING, {"tab": "messages"}, "Export", "GET", "/leveret/queues/%2F/thing/messages/export"),
    Button(THING, {}, "Delete…", "DELETE", "/queues/%2F/thing"),
    Button(TOPIC, {}, "Delete…", "DELETE", "/exchanges/%2F/topic"),
    Button(("policies",), {}, "Add policy", "PUT", "/policies/%2F/roles", POLICY),
    Button(("policies",), {}, "Delete…", "DELETE", "/policies/%2F/known", row="known"),
    Button(("policies",), {"kind": "operator"}, "Add policy", "PUT", "/operator-policies/%2F/roles", POLICY),
    Button(("alerts",), {}, "Add rule", "PUT", "/leveret/alert-rules/roles", {"kind": "depth", "vhost": "/"}),
    Button(("alerts",), {}, "Delete…", "DELETE", "/leveret/alert-rules/of-vhost", row="of-vhost"),
    Button(("alerts",), {}, "Delete…", "DELETE", "/leveret/alert-rules/of-all", row="of-all"),
    Button(("payload-schemas",), {}, "Add schema", "PUT", "/leveret/payload-schemas/roles", AVRO | {"vhost": "/"}),
    Button(("payload-schemas",), {}, "Delete…", "DELETE", "/leveret/payload-schemas/of-all", row="of-all"),
    Button(("vhosts",), {}, "Add vhost", "PUT", "/vhosts/roles", {}),
    Button(("vhosts",), {}, "Limits…", "PUT", "/vhost-limits/%2F/max-queues", {"value": -1}),
]


@pytest.fixture
def team(api: HttpBroker) -> Iterator[str]:
    """A user without tags and permissions, and two queues with a message each."""
    assert api("PUT", "/users/team", {"password": "team", "tags": ""}).status == 201
    for name in ("team.orders", "invoices"):
        declare(api, name)
        publish(api, name, f"payload of {name}")
    yield "team"
    api("DELETE", "/users/team")
    for name in ("team.orders", "invoices"):
        delete(api, name)


def is_disabled(console: Console, button: str) -> bool | None:
    """Return whether a button is disabled; None if the page does not show it."""
    find = "[...document.querySelectorAll('button')].find((one) => one.innerText.trim() === arguments[0])?.disabled"
    found: bool | None = console.script(f"return {find}", button)
    return found


def test_an_administrator_grants_a_role_and_its_user_sees_what_it_allows(
    team: str, console: Console, api: HttpBroker
) -> None:
    console.enter("users", team)
    console.see("No roles: tags and permissions decide what the user may do.")
    console.click("Grant role")
    console.choose("Role", "operator:")
    console.fill("Names of queues and exchanges", "^team\\.")
    # A role that was granted since the page was read stays.
    observer = {"role": "observer", "vhosts": ".*", "names": ".*"}
    assert api("PUT", f"/leveret/roles/{team}", {"grants": [observer]}).status == 204
    console.click("Grant role", "dialog button")
    console.see_dialog(False)
    wait_until(lambda: len(api.get(f"/leveret/roles/{team}")) == 2, "the roles")
    console.click("Sign out")
    console.see("Sign in")
    console.sign_in(team)
    console.see_heading()

    console.open("queues", "/", "invoices", tab="messages")
    console.see("Your roles do not include viewer for this queue: you may not read payloads.")
    assert "payload of invoices" not in console.text()
    for button in ("Purge…", "Pause…", "Delete…", "Take messages…"):
        wait_until(partial(is_disabled, console, button), button)
    console.open("queues", "/", "team.orders", tab="messages")
    console.see("payload of team.orders")
    wait_until(lambda: is_disabled(console, "Purge…") is False, "the button")
    assert is_disabled(console, "Delete…")
    console.click("Purge…")
    console.click("Purge messages")
    wait_until(lambda: api.get("/queues/%2F/team.orders")["messages"] == 0, "the purge")


def restore(api: HttpBroker) -> None:
    """Set the objects that the buttons change."""
    declare(api, "thing")
    api("POST", "/leveret/queues/%2F/thing/resume")
    publish(api, "thing", "payload")
    api("PUT", "/exchanges/%2F/topic", {"type": "topic"})
    api("POST", "/bindings/%2F/e/amq.fanout/q/thing", {})
    api("PUT", "/policies/%2F/known", POLICY)
    for name, vhost in (("of-vhost", "/"), ("of-all", None)):
        api("PUT", f"/leveret/alert-rules/{name}", {"kind": "depth", "threshold": 1e9, "vhost": vhost})
        api("PUT", f"/leveret/payload-schemas/{name}", AVRO | {"vhost": vhost})


@pytest.fixture
def things(api: HttpBroker) -> Iterator[None]:
    restore(api)
    for user, (tags, permissions) in USERS.items():
        assert api("PUT", f"/users/{user}", {"password": user, "tags": tags}).status in (201, 204)
        if permissions is not None:
            granted = dict(zip(("configure", "write", "read"), permissions, strict=True))
            assert api("PUT", f"/permissions/%2F/{user}", granted).status in (201, 204)
    yield
    for user in USERS:
        api("DELETE", f"/users/{user}")
    for path in (
        *("queues/%2F/thing", "exchanges/%2F/topic", "policies/%2F/known", "policies/%2F/roles", "vhosts/roles"),
        *("operator-policies/%2F/roles", "leveret/marks/roles"),
        *(
            f"leveret/{kind}/{name}"
            for kind in ("alert-rules", "payload-schemas")
            for name in ("of-vhost", "of-all", "roles")
        ),
    ):
        api("DELETE", f"/{path}")


# Whether the button of a row, or of the page, is enabled, once the page is drawn with the rights for its object.
_ENABLED = """
const [text, row, object, done] = arguments;
const rights = performance.getEntriesByType("resource").filter(({ name }) => name.includes(`/leveret/role/%2F/${object}`));
const place = row ? [...document.querySelectorAll("main tr")].find((one) => one.innerText.includes(row)) : document;
if ((object && !rights.some(({ responseEnd }) => responseEnd > 0)) || !place) {
  return done(null);
}
requestAnimationFrame(() => requestAnimationFrame(() => {
  const button = [...place.querySelectorAll("button")].find((one) => one.innerText.trim() === text);
  done(button !== undefined && !button.disabled);
}));
"""


def is_enabled(console: Console, button: Button) -> bool | None:
    """Return whether the page shows an enabled button; None until it is drawn with the rights of the user."""
    target = button.view[-1] if button.view in (THING, TOPIC) else ""
    found: bool | None = console.driver.execute_async_script(_ENABLED, button.text, button.row, target)
    return found


def shows(console: Console, button: Button, enabled: bool) -> bool:
    return is_enabled(console, button) is enabled


@pytest.mark.parametrize("user", USERS)
def test_a_button_is_enabled_if_the_api_accepts_what_it_requests(
    things: None, console: Console, api: HttpBroker, user: str
) -> None:
    # Before the browser shows what the requests delete.
    replies = []
    for button in BUTTONS:
        replies.append(api(button.method, button.path, button.body, user=user))
        restore(api)
    console.open("overview")
    console.sign_in(user)
    console.see_heading()
    console.script("performance.setResourceTimingBufferSize(10_000)")
    shown = None
    for button, reply in zip(BUTTONS, replies, strict=True):
        if (button.view, button.query) != shown:
            target = "/".join(part.replace("/", "%2F") for part in button.view)
            console.script("location.hash = arguments[0]", f"#/{target}?{urlencode(button.query)}")
            shown = (button.view, button.query)
            console.see_heading()
        accepted = reply.status not in (401, 404)
        what = f"'{button.text}' of {button.path} for {user}: {reply.status} {reply.content[:200]!r}"
        wait_until(partial(shows, console, button, accepted), what, 30)


def test_a_user_closes_the_own_connections(things: None, console: Console, api: HttpBroker) -> None:
    with sync.connect(api.process.url()):
        name = wait_until(lambda: next((row["name"] for row in api.get("/connections")), None))
        console.open("connections", name)
        console.sign_in("monitors")
        console.see_enabled("Close…", enabled=False)
        assert api("DELETE", f"/connections/{name.replace(' ', '%20')}", user="monitors").status == 401
        console.click("Sign out")
        console.see("Sign in")
        console.sign_in("administers")
        console.see_enabled("Close…")
