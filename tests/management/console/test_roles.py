"""Roles of users in the console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode
from uuid import uuid4

import pytest

from leveret import sync
from leveret.wire.amqp10.messaging import Source
from tests.management.console.test_clients import branch, session
from tests.management.console.test_console import declare, delete, publish
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until
from tests.support.requests import ask

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
SHOVEL = {"src-uri": "amqp://guest:guest@", "src-queue": "from", "dest-uri": "amqp://guest:guest@", "dest-queue": "to"}
LEARN = "learn-roles-"


class Button(NamedTuple):
    """A button and what it requests.

    `row` is a text of its row in a list, and `list` the path of a list that not all users see. Requests of operations name
    nothing, so that the API refuses them with 400 if it allows the operation.
    """

    view: tuple[str, ...]
    query: dict[str, str]
    text: str
    method: str
    path: str
    body: dict[str, Any] | None = None
    row: str = ""
    list: str = ""


THING = ("queues", "/", "thing")
TOPIC = ("exchanges", "/", "topic")
USER = ("users", "seen")
BRANCHES = ("transactions",)
BRANCH = ("kept-branch", "/leveret/branches")
LEASE = ("kept-lease", "/leveret/leases")
SINK = ("kept-sink", "/leveret/sink-transactions")
OPERATIONS = "/leveret/operations/"
BUTTONS = [
    Button(THING, {}, "Pause…", "POST", "/leveret/queues/%2F/thing/pause"),
    Button(THING, {}, "Purge…", "DELETE", "/queues/%2F/thing/contents"),
    Button(THING, {}, "Mark…", "PUT", "/leveret/marks/roles", {}),
    Button(THING, {"tab": "bindings"}, "Add binding", "POST", "/bindings/%2F/e/amq.fanout/q/thing", {}),
    Button(THING, {"tab": "bindings"}, "Remove…", "DELETE", "/bindings/%2F/e/amq.fanout/q/thing/~", row="amq.fanout"),
    Button(THING, {"tab": "bindings"}, "Remove…", "DELETE", "/bindings/%2F/e/amq.direct/q/thing/~", row="amq.direct"),
    Button(THING, {"tab": "messages"}, "Take messages…", "POST", "/queues/%2F/thing/get", GET),
    Button(THING, {"tab": "messages"}, "Import…", "POST", "/leveret/queues/%2F/thing/messages/import", {}),
    Button(THING, {"tab": "messages"}, "Export", "GET", "/leveret/queues/%2F/thing/messages/export"),
    Button(THING, {}, "Delete…", "DELETE", "/queues/%2F/thing"),
    Button(TOPIC, {"tab": "bindings"}, "Remove…", "DELETE", "/bindings/%2F/e/amq.fanout/e/topic/~", row="amq.fanout"),
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
    Button(("vhosts", "/"), {}, "Trace…", "PUT", "/vhosts/%2F", {"description": ""}),
    Button(("shovels",), {}, "Restart…", "DELETE", "/shovels/vhost/%2F/mover/restart", row="mover", list="/shovels"),
    Button(("shovels",), {}, "Delete…", "DELETE", "/shovels/vhost/%2F/mover", row="mover", list="/shovels"),
    Button(("links",), {}, "Release…", "POST", f"{OPERATIONS}links.release", {}, "kept-link", "/leveret/links"),
    Button(("links",), {}, "Delete…", "POST", f"{OPERATIONS}links.delete", {}, "kept-link", "/leveret/links"),
    Button(BRANCHES, {"kind": "branches"}, "Roll back…", "POST", f"{OPERATIONS}dtx.rollback", {}, *BRANCH),
    Button(("pipelines",), {"tab": "leases"}, "Release…", "POST", f"{OPERATIONS}leases.release", {}, *LEASE),
    Button(("pipelines",), {"tab": "transactions"}, "Abort…", "POST", f"{OPERATIONS}stages.discard", {}, *SINK),
    Button(("users",), {}, "Add user", "PUT", "/users/roles", {"password": "x", "tags": ""}),
    Button(USER, {}, "Change…", "PUT", "/users/roles", {"password": "x", "tags": ""}),
    Button(USER, {}, "Limits…", "PUT", "/user-limits/seen/max-channels", {"value": -1}),
    Button(USER, {}, "Set permissions", "PUT", "/permissions/%2F/roles", {"configure": "", "write": "", "read": ""}),
    Button(USER, {}, "Clear…", "DELETE", "/permissions/%2F/seen", row="^seen$", list="/permissions"),
    Button(USER, {}, "Grant role", "PUT", "/leveret/roles/roles", {"grants": []}),
    Button(USER, {}, "Delete…", "DELETE", "/users/seen"),
    Button(("permissions",), {}, "Clear…", "DELETE", "/permissions/%2F/seen", row="^seen$", list="/permissions"),
    Button(("definitions",), {}, "Download definitions", "GET", "/definitions"),
    Button(("learn", "first-message"), {}, "Declare the queue", "PUT", f"/queues/%2F/{LEARN}hello", {}),
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
    for source in ("amq.fanout", "amq.direct"):
        api("POST", f"/bindings/%2F/e/{source}/q/thing", {})
    api("POST", "/bindings/%2F/e/amq.fanout/e/topic", {})
    api("PUT", "/policies/%2F/known", POLICY)
    for name, vhost in (("of-vhost", "/"), ("of-all", None)):
        api("PUT", f"/leveret/alert-rules/{name}", {"kind": "depth", "threshold": 1e9, "vhost": vhost})
        api("PUT", f"/leveret/payload-schemas/{name}", AVRO | {"vhost": vhost})
    api("PUT", "/parameters/shovel/%2F/mover", {"value": SHOVEL})
    api("PUT", "/users/seen", {"password": "x", "tags": ""})
    api("PUT", "/permissions/%2F/seen", {"configure": "^seen$", "write": "", "read": ""})


@pytest.fixture
def things(api: HttpBroker) -> Iterator[None]:
    restore(api)
    for user, (tags, permissions) in USERS.items():
        assert api("PUT", f"/users/{user}", {"password": user, "tags": tags}).status in (201, 204)
        if permissions is not None:
            granted = dict(zip(("configure", "write", "read"), permissions, strict=True))
            assert api("PUT", f"/permissions/%2F/{user}", granted).status in (201, 204)
    yield
    for user in (*USERS, "seen", "roles"):
        api("DELETE", f"/users/{user}")
    for path in (
        *("queues/%2F/thing", "exchanges/%2F/topic", "policies/%2F/known", "policies/%2F/roles", "vhosts/roles"),
        *("operator-policies/%2F/roles", "leveret/marks/roles", "parameters/shovel/%2F/mover"),
        *(f"queues/%2F/{name}" for name in ("from", "to", f"{LEARN}hello")),
        *(
            f"leveret/{kind}/{name}"
            for kind in ("alert-rules", "payload-schemas")
            for name in ("of-vhost", "of-all", "roles")
        ),
    ):
        api("DELETE", f"/{path}")


# Whether the button of a row, or of the page, is enabled, once the page is drawn with the rights for its object.
_ENABLED = """
const [text, row, path, done] = arguments;
const rights = performance.getEntriesByType("resource").filter(({ name }) => name.endsWith(path));
const place = row ? [...document.querySelectorAll("main tr")].find((one) => one.innerText.includes(row)) : document;
if ((path && !rights.some(({ responseEnd }) => responseEnd > 0)) || !place) {
  return done(null);
}
requestAnimationFrame(() => requestAnimationFrame(() => {
  const button = [...place.querySelectorAll("button")].find((one) => one.innerText.trim() === text);
  done(button !== undefined && !button.disabled);
}));
"""


def is_enabled(console: Console, button: Button) -> bool | None:
    """Return whether the page shows an enabled button; None until it is drawn with the rights of the user."""
    path = ""
    if button.view in (THING, TOPIC):
        path = "/leveret/role/%2F" if button.text == "Remove…" else f"/leveret/role/%2F/{button.view[-1]}"
    found: bool | None = console.driver.execute_async_script(_ENABLED, button.text, button.row, path)
    return found


def shows(console: Console, button: Button, enabled: bool) -> bool:
    return is_enabled(console, button) is enabled


@pytest.fixture
def clients(api: HttpBroker, things: None) -> Iterator[None]:
    """A suspended link, a branch, a lease and a sink transaction."""
    with ExitStack() as stack:
        peer = stack.enter_context(session(api, "kept"))
        source = Source("/queues/thing", durable=2, expiry_policy="never")
        peer.receiver(name="kept-link", source=source).detach(closed=False)
        link = {"name": "kept-link", "vhost": "/", "user": "guest", "container": "kept", "role": "sender"}
        stack.callback(api, "POST", f"{OPERATIONS}links.delete", link)
        stack.enter_context(branch(api, "kept-branch"))
        declare(api, "leased")
        stack.callback(delete, api, "leased")
        channel = stack.enter_context(sync.connect(api.process.url())).channel()
        ask(channel, "lease.acquire", queue="leased", lease="kept-lease")
        stage = str(uuid4())
        ask(channel, "stage.open", stage=stage, app="kept-sink", exchanges=[])
        stack.callback(ask, channel, "stage.discard", stages=[stage])
        yield


@pytest.mark.parametrize("user", USERS)
def test_a_button_is_enabled_if_the_api_accepts_what_it_requests(
    clients: None, console: Console, api: HttpBroker, user: str
) -> None:
    # Before the browser shows what the requests delete.
    expected = []
    for button in BUTTONS:
        is_seen = not button.list or button.row.encode() in api("GET", button.list, user=user).content
        reply = api(button.method, button.path, button.body, user=user)
        restore(api)
        expected.append((button if is_seen else button._replace(row=""), is_seen and reply.status not in (401, 404), reply))
    console.open("overview")
    console.sign_in(user)
    console.see_heading()
    console.script("performance.setResourceTimingBufferSize(10_000)")
    shown = None
    for button, accepted, reply in expected:
        if (button.view, button.query) != shown:
            target = "/".join(part.replace("/", "%2F") for part in button.view)
            console.script("location.hash = arguments[0]", f"#/{target}?{urlencode(button.query)}")
            shown = (button.view, button.query)
            console.see_heading()
        what = f"'{button.text}' of {button.path} for {user}: {reply.status} {reply.content[:200]!r}"
        wait_until(partial(shows, console, button, accepted), what, 30)


@pytest.mark.parametrize(("role", "allowed"), [("operator", False), ("administrator", True)])
def test_listed_queues_are_deleted_by_administrators_by_role(
    team: str, console: Console, api: HttpBroker, role: str, allowed: bool
) -> None:
    grants = [{"role": role, "vhosts": "^/$", "names": "^team"}, {"role": "observer", "vhosts": "^/$", "names": ".*"}]
    assert api("PUT", f"/leveret/roles/{team}", {"grants": grants}).status == 204
    console.open("queues")
    console.sign_in(team)
    console.see("2 queues")
    console.see_enabled("Delete listed…", enabled=allowed)
    if allowed:
        console.click("Delete listed…")
        console.check("Keep queues with messages")
        console.see("1 queue of 2 would be deleted, with 1 message. Your user lacks the role for 1 queue more.")
    assert api("DELETE", "/queues/%2F/invoices", user=team).status == 401
    assert api("DELETE", "/queues/%2F/team.orders", user=team).status == (204 if allowed else 401)


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
        console.leave()  # the connection ends before the page


def test_a_bulk_change_leaves_out_what_the_user_may_not_change(things: None, console: Console, api: HttpBroker) -> None:
    for name in ("thing-1", "thing-2"):
        declare(api, name)
        publish(api, name, "x")
    assert api("PUT", "/permissions/%2F/consumes", {"configure": "", "write": "", "read": "^thing-1$"}).status == 204
    console.open("queues", name="thing-")
    console.sign_in("consumes")
    console.see("2 queues")
    console.click("Change listed…")
    console.see("0 queues of 2 would be paused")
    console.see("Your user lacks the permission for 2 queues more.")
    console.see_enabled("Pause 0 queues", enabled=False)
    console.choose("Change", "Purge")
    console.see("1 queue of 2 would be purged, with 1 message. Your user lacks the permission for 1 queue more.")
    console.click("Purge 1 queue")
    console.see("Purged 1 queue")
    assert [api.get(f"/queues/%2F/{name}")["messages"] for name in ("thing-1", "thing-2")] == [0, 1]


def test_a_policymaker_by_role_sets_policies_in_the_vhosts_of_the_role(console: Console, api: HttpBroker) -> None:
    grants = [{"role": "policymaker", "vhosts": "^/$"}, {"role": "observer", "vhosts": "^other$"}]
    try:
        assert api("PUT", "/vhosts/other", {}).status == 201
        assert api("PUT", "/users/partly", {"password": "partly", "tags": "monitoring"}).status == 201
        assert api("PUT", "/leveret/roles/partly", {"grants": grants}).status == 204
        for vhost, status in (("%2F", 201), ("other", 401)):
            assert api("PUT", f"/policies/{vhost}/partly", POLICY, user="partly").status == status
            api("PUT", f"/policies/{vhost}/in-{vhost}", POLICY)
            value = {"value": SHOVEL | {"src-uri": f"amqp://guest:guest@/{vhost}"}}
            assert api("PUT", f"/parameters/shovel/{vhost}/in-{vhost}", value).status == 201
        console.open("policies", vhost="other")
        console.sign_in("partly")
        console.wait_for_rows(lambda found: [row[0] for row in found] == ["in-other"] and "Delete…" not in found[0][-1])
        console.click("Add policy")
        options = "return [...document.querySelectorAll('dialog [aria-label=Vhost] option')].map(({ value }) => value)"
        console.see_result(["/"], options)
        console.open("policies", vhost="/", name="partly")
        console.wait_for_rows(lambda found: [row[0] for row in found] == ["partly"] and "Delete…" in found[0][-1])
        console.open("shovels")
        shown = {"in-other": False, "in-/": True}
        console.wait_for_rows(lambda found: {row[0]: "Delete…" in row[-1] for row in found} == shown)
        for view in ("alerts", "payload-schemas"):
            console.open(view)
            console.see_heading()
            for button in ("Add rule", "Add schema"):  # the API asks for the tag
                assert is_disabled(console, button) is None
    finally:
        console.leave()
        for path in (
            "users/partly",
            "vhosts/other",
            "policies/%2F/partly",
            "policies/%2F/in-%2F",
            "parameters/shovel/%2F/in-%2F",
        ):
            api("DELETE", f"/{path}")
        for name in ("from", "to"):
            delete(api, name)


def test_an_open_page_follows_changes_of_the_own_rights(things: None, console: Console, api: HttpBroker) -> None:
    console.open("policies")
    console.sign_in("watches-policies")
    console.wait_for_rows(lambda found: [row[0] for row in found] == ["known"] and "Delete…" not in found[0][-1])
    granted = {"configure": "", "write": "", "read": ""}
    assert api("PUT", "/permissions/%2F/watches-policies", granted).status == 201
    # Resuming refreshes what is otherwise read twice a minute.
    for _ in range(2):
        console.script("document.querySelector('.live').click()")
    console.wait_for_rows(lambda found: "Delete…" in found[0][-1])
    assert api("DELETE", "/permissions/%2F/watches-policies").status == 204
    for _ in range(2):
        console.script("document.querySelector('.live').click()")
    console.wait_for_rows(lambda found: "Delete…" not in found[0][-1])
