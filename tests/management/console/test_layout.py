"""The layout of all views with long and large values, at the widths of a phone, a tablet and screens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

import pika
import pytest

from leveret import sync
from tests.management.console.test_clients import branch, session
from tests.management.console.test_console import parameters
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until
from tests.support.requests import ask

if TYPE_CHECKING:
    from tests.management.console.browser import Console

# All views take a minute alone, and ten beside other tests.
pytestmark = pytest.mark.timeout(1200)

SIZES = ((390, 844), (768, 1024), (1280, 857), (1920, 1080))
FAULTS = (Path(__file__).parent / "layout.js").read_text("utf-8")


def long(kind: str) -> str:
    """Return a name of 255 characters, in which a line cannot break."""
    return f"{kind}.{'w' * 255}"[:255]


VHOST, QUEUE, STREAM, EXCHANGE, USER, OTHER = map(long, ("vhost", "queue", "stream", "exchange", "user", "other"))
# Makes the numbers of the API large: counts of ten digits, and ids of five. Numbers of pages, times and limits stay.
LARGE = """
const send = window.fetch;
const KEPT = new RegExp(
  "page|count$|time|since|_at$|expires|number|port|offset|status|until|sample|threshold|priority|days|first|last|epoch|level",
);
const grow = (value, key = "") => {
  if (Array.isArray(value)) return value.map((item) => grow(item, key));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, grow(item, name)]));
  }
  if (typeof value !== "number" || KEPT.test(key)) return value;
  return value + (key === "id" ? 12345 : 1234567890);
};
window.pending = 0;
window.fetch = async (...call) => {
  window.pending += 1;
  const answer = await send(...call).finally(() => { window.pending -= 1; });
  const isData = String(call[0]).includes("/api/") && answer.headers.get("content-type")?.includes("json");
  return isData ? new Response(JSON.stringify(grow(await answer.json())), answer) : answer;
};
"""
# Waits until a view has the same layout in three frames that follow each other, and has read what it shows.
SETTLED = """
const [done] = arguments;
let last = "";
let same = 0;
const look = () => {
  const boxes = [...document.querySelectorAll("body *")].map((item) => item.getBoundingClientRect());
  const now = boxes.map(({ x, y, width, height }) => [x, y, width, height].join()).join();
  same = now === last && !window.pending && !/Loading…|Reading/.test(document.body.innerText) ? same + 1 : 0;
  last = now;
  if (same === 3) done(); else requestAnimationFrame(look);
};
look();
"""


@pytest.fixture(scope="module")
def large(api: HttpBroker) -> Iterator[HttpBroker]:
    """Objects with long names, of all kinds."""
    users = [{"name": USER, "tags": "administrator,monitoring,policymaker,management", "password": USER}]
    arguments = {"x-dead-letter-exchange": EXCHANGE, "x-max-length": 2**62, "x-dead-letter-routing-key": long("key")}
    everything = {"configure": f".*|{long('c')}"[:255], "write": ".*", "read": ".*"}
    names = [*(f"deep.{number}.list.{number % 7}" for number in range(300)), QUEUE]
    definitions = {
        "users": users,
        "vhosts": [{"name": VHOST, "description": long("description")}],
        "permissions": [{"user": USER, "vhost": vhost, **everything} for vhost in (VHOST, "/")],
        "topic_permissions": [{"user": USER, "vhost": VHOST, "exchange": "amq.topic", "write": long("w"), "read": ".*"}],
        "queues": [
            *({"vhost": VHOST, "name": name, "durable": True, "arguments": arguments} for name in names),
            {"vhost": VHOST, "name": STREAM, "durable": True, "arguments": {"x-queue-type": "stream"}},
        ],
        "exchanges": [{"vhost": VHOST, "name": EXCHANGE, "type": "topic", "durable": True}],
        "bindings": [
            {"vhost": VHOST, "source": EXCHANGE, "destination": name, "destination_type": "queue", "routing_key": key}
            for name, key in ((QUEUE, long("key")), (STREAM, "#"), *((name, "#") for name in names[:40]))
        ],
        "policies": [
            {
                "vhost": VHOST,
                "name": long("policy"),
                "pattern": f"^{long('queue')}",
                "apply-to": "queues",
                "priority": 7,
                "definition": {"dead-letter-exchange": EXCHANGE, "max-length": 2**60},
            },
        ],
    }
    reply = api("POST", "/definitions", definitions)
    assert reply.status in (200, 204), reply.content[:2000]
    vhost = quote(VHOST, safe="")
    assert api("PUT", f"/vhosts/{vhost}", {"tracing": True}, user=USER).status == 204
    where = {"src-uri": f"amqp://{'h' * 60}.invalid", "src-queue": QUEUE, "dest-uri": "amqp://", "dest-queue": OTHER}
    assert api("PUT", f"/parameters/shovel/{vhost}/{long('shovel')}", {"value": where}).status == 201
    schema = {
        "format": "avro",
        "schema": json.dumps({"type": "record", "name": "n" * 200, "fields": []}),
        "queue": long("q"),
    }
    api("PUT", f"/leveret/payload-schemas/{'s' * 200}", schema)
    rule = {"kind": "depth", "vhost": VHOST, "pattern": long("queue"), "threshold": 1, "seconds": 0}
    assert api("PUT", f"/leveret/alert-rules/{'r' * 200}", rule).status == 201
    headers = {long("header"): long("value"), "depth": {"a": {"b": {"c": [1, 2, {"d": long("deep")}]}}}}
    body = {
        "routing_key": QUEUE,
        "payload_encoding": "string",
        "properties": {"headers": headers, "message_id": long("id")},
    }
    for number in range(60):
        payload = {"payload": json.dumps({"number": number, long("json"): long("value")})}
        assert api("POST", f"/exchanges/{vhost}/amq.default/publish", body | payload, user=USER).status == 200
    yield api
    for path in (f"/leveret/alert-rules/{'r' * 200}", f"/leveret/payload-schemas/{'s' * 200}", f"/users/{USER}"):
        api("DELETE", path)
    api("DELETE", f"/vhosts/{vhost}")


class Clients:
    """Clients that use the objects, and the addresses of the pages of what they have."""

    def __init__(self, api: HttpBroker) -> None:
        self._stack = ExitStack()
        self.api = api

    def __enter__(self) -> Clients:
        api, stack = self.api, self._stack
        settings = parameters(api, VHOST, connection_name=long("client"))
        settings.credentials = pika.PlainCredentials(USER, USER)
        self.connection = stack.enter_context(pika.BlockingConnection(settings))
        channel = self.connection.channel()
        channel.basic_qos(prefetch_count=5)
        channel.basic_consume(QUEUE, lambda *_: None, consumer_tag=long("tag"))
        transaction = self.connection.channel()
        transaction.tx_select()
        transaction.basic_publish("", QUEUE, b"x" * 2000)
        peer = stack.enter_context(session(api, long("container")))
        peer.sender("/exchanges/amq.topic", name=long("link"))
        stack.enter_context(branch(api, "branch"))
        reader = stack.enter_context(sync.connect(api.process.url(user=USER, password=USER, vhost=VHOST))).channel()
        epoch = ask(reader, "lease.acquire", queue=QUEUE, lease=long("lease"))["epoch"]
        ask(reader, "lease.plan", queue=QUEUE, lease=long("lease"), epoch=epoch, after=0, max_messages=10)
        ask(reader, "stream.start", stream=STREAM, consumer=long("consumer"), offset=0)
        for app in (long("sink"), long("sink2")):
            stage = str(uuid4())
            ask(reader, "stage.open", stage=stage, app=app, exchanges=[])
            stack.callback(ask, reader, "stage.discard", stages=[stage])
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            self._stack.close()


def of(kind: str, *parts: str) -> tuple[str, ...]:
    return (kind, VHOST, *parts)


# The locations of all views, with their parameters.
VIEWS: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
    (("overview",), {}),
    (("alerts",), {}),
    (("learn",), {}),
    (("learn", "topics"), {}),
    (("queues",), {"vhost": VHOST}),
    *(
        (of("queues", QUEUE), {"tab": tab})
        for tab in ("state", "messages", "live", "dead-letters", "publish", "playground", "bindings", "consumers")
    ),
    (of("queues", STREAM), {"tab": "segments"}),
    (("streams",), {"vhost": VHOST}),
    *((("pipelines",), {"tab": tab, "vhost": VHOST}) for tab in ("consumers", "leases", "sinks", "transactions")),
    (("pipelines", "lease", VHOST, QUEUE, long("lease")), {}),
    (("pipelines", "stream", VHOST, STREAM, long("consumer")), {}),
    (("exchanges",), {"vhost": VHOST}),
    *((of("exchanges", EXCHANGE), {"tab": tab}) for tab in ("state", "bindings", "publish", "live")),
    (("payload-schemas",), {}),
    (("map",), {"vhost": VHOST}),
    (("map",), {"vhost": VHOST, "node": f"e:{EXCHANGE}", "consumers": "1"}),
    *(((kind,), {}) for kind in ("connections", "channels", "consumers", "links", "transactions")),
    (("transactions",), {"tab": "branches"}),
    (("vhosts",), {}),
    (("vhosts", VHOST), {}),
    (("users",), {}),
    (("users", USER), {}),
    (("permissions",), {}),
    (("sessions",), {}),
    (("sessions",), {"tab": "all"}),
    (("policies",), {"vhost": VHOST}),
    (("shovels",), {}),
    (("audit",), {}),
    (("log",), {}),
    (("definitions",), {}),
    (("nowhere",), {}),
)

# Dialogs: the location of their view, and the button that opens them.
DIALOGS: tuple[tuple[tuple[str, ...], dict[str, str], str], ...] = (
    (("queues",), {"vhost": VHOST}, "Declare queue"),
    (("queues",), {"vhost": VHOST}, "Change listed…"),
    (of("queues", QUEUE), {}, "Copy as…"),
    (of("queues", QUEUE), {}, "Share…"),
    (of("queues", QUEUE), {}, "Delete…"),
    (of("queues", QUEUE), {"tab": "messages"}, "Edit and resend…"),
    (("policies",), {"vhost": VHOST}, "Change…"),
    (of("vhosts"), {}, "Limits…"),
    (("alerts",), {}, "Change…"),
    (("users", USER), {}, "Set permissions"),
)


def pages(api: HttpBroker) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """Return the locations of objects whose names the broker chooses."""
    channel, *_ = wait_until(
        lambda: [row for row in api.get("/channels", USER) if row["vhost"] == VHOST and row["consumer_count"] > 0],
        "the channel to be listed",
    )
    yield ("connections", channel["connection_details"]["name"]), {}
    yield ("channels", channel["name"]), {}
    yield ("links", "/", long("link")), {}
    yield ("overview", api.get("/nodes", USER)[0]["name"]), {}


def test_layout(console: Console, large: HttpBroker, axe: str) -> None:
    """No text overlaps another one or is cut without a title, and all controls can be reached.

    axe-core finds nothing, and no contrast that is too low in dark colours.
    """
    faults = []
    with Clients(large):
        script = console.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": LARGE})
        try:
            console.open()
            console.sign_in(USER)
            console.see_heading()
            for parts, query, button in (*((*view, "") for view in (*VIEWS, *pages(large))), *DIALOGS):
                console.open(*parts, **query)
                console.see_heading()
                if button:
                    console.click(button)
                    console.see_dialog()
                where = " ".join([*(part[:12] for part in (*parts, *query.values())), button])
                for size in SIZES:
                    console.resize(size)
                    console.driver.execute_async_script(SETTLED)
                    faults += [f"{where} at {size[0]}: {fault}" for fault in console.script(f"return {FAULTS}")]
                faults += [f"{where}: {finding}" for finding in console.findings(axe)]
                console.prefer("dark")
                console.see_result("dark", "return document.documentElement.dataset.theme")
                faults += [f"{where} in dark: {finding}" for finding in console.findings(axe, "color-contrast")]
                console.prefer("light")
        finally:
            console.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
            console.leave()
    assert faults == [], "\n".join(faults)
