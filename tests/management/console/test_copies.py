"""Objects copied as commands and code: the text is executed against the broker, with names that a client could choose."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.management.console.test_console import IMAGE, SCRIPT, declare, publish
from tests.management.http.client import HttpBroker
from tests.support.broker import ROOT

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)

# Returns the texts of an object by the module of the console.
_COPIES = """
const [kind, object, address, done] = arguments;
const url = document.querySelector("script[type=module]").src.replace("main.js", "copy.js");
import(url).then(({ copies }) => done(Object.fromEntries(copies(kind, object, address).map(([id, , text]) => {
  try {
    return [id, text()];
  } catch (error) {
    return [id, `error: ${error.message}`];
  }
}))));
"""
# Each would execute a command, end the quotation, or be taken for an option if it was not quoted.
HOSTILE = (
    'it\'s "quoted" $(touch attacked) `touch attacked` ;touch attacked',
    "two\nlines\r\n touch attacked\t\\n \\ \\' $'x' ${HOME} %{if true} !! * ~ {a,b} <x >attacked | & #",
    "--help",
    "-rf $(touch attacked)",
    "=ls",
    "\x1b[201~\x03\x15touch attacked\n",
    "\u202egnp.\u2028\u00e9\U0001f407\U000e0041 %2F+",
    "$HOME",
)


@pytest.fixture
def vhost(api: HttpBroker) -> Iterator[str]:
    """Another vhost than the default one, without what the commands declare."""
    yield "interop"
    for name in HOSTILE:
        for kind in ("queues", "exchanges"):
            api("DELETE", path(kind, "interop", name))


class Copier:
    """Copies objects in the console, and executes the texts.

    Args:
        console: The console.
        api: The broker.
        directory: The working directory of the commands, which stays empty.
    """

    def __init__(self, console: Console, api: HttpBroker, directory: Path) -> None:
        self._console = console
        self._api = api
        self._directory = directory
        self._address = {
            "api": f"http://127.0.0.1:{api.port}/api/",
            "amqpHost": "127.0.0.1",
            "amqpPort": api.process.port,
            "user": "guest",
        }

    def copies(self, kind: str, item: dict[str, Any]) -> dict[str, str]:
        """Return the texts of an object by their forms."""
        found: dict[str, str] = self._console.driver.execute_async_script(_COPIES, kind, item, self._address)
        return found

    def run(self, form: str, text: str) -> None:
        """Execute a text."""
        text = text.replace("PASSWORD", "guest").replace("curl -u guest ", "curl -sSf -u guest:guest ")
        if form in ("python", "pika"):
            command = [sys.executable, "-c", text]
        else:
            command = ["bash", "-c", f'leveret() {{ {sys.executable} -m leveret "$@"; }}\n{text}']
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            command,
            cwd=self._directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (form, text, done.stderr.decode())
        assert list(self._directory.iterdir()) == [], text

    def execute(self, kind: str, item: dict[str, Any], forms: tuple[str, ...]) -> Iterator[str]:
        """Execute the texts of an object one by one. Yields the form after each."""
        texts = self.copies(kind, item)
        for form in forms:
            self.run(form, texts[form])
            yield form


@pytest.fixture
def copier(console: Console, api: HttpBroker, tmp_path: Path) -> Copier:
    if shutil.which("curl") is None or shutil.which("bash") is None:
        pytest.skip("curl or bash is not installed")
    console.enter()
    return Copier(console, api, tmp_path)


def path(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)


SHELL = ("curl", "leveret")
ALL = (*SHELL, "python", "pika")


def test_queues_and_exchanges_with_hostile_names(api: HttpBroker, copier: Copier, vhost: str) -> None:
    for number, name in enumerate(HOSTILE):
        given = {"x-max-length": 7, "x-dead-letter-exchange": name}
        item = {"vhost": vhost, "name": name, "durable": True, "auto_delete": False, "arguments": given}
        # Python starts slowly: some names are enough. Over AMQP, declarations drop line breaks from names, as in RabbitMQ.
        forms = SHELL if number > 3 or "\n" in name else ALL
        for form in copier.execute("queue", item, forms):
            found = api.get(path("queues", vhost, name))
            assert (found["arguments"], found["durable"]) == (given, True), form
            assert api("DELETE", path("queues", vhost, name)).status == 204
        exchange = item | {"type": "topic", "internal": True, "arguments": {"alternate-exchange": name}}
        for form in copier.execute("exchange", exchange, forms):
            found = api.get(path("exchanges", vhost, name))
            assert (found["type"], found["internal"], found["arguments"]) == ("topic", True, exchange["arguments"]), form
            assert api("DELETE", path("exchanges", vhost, name)).status == 204


def test_bindings_and_policies_with_hostile_names(api: HttpBroker, copier: Copier, vhost: str) -> None:
    for number, name in enumerate(HOSTILE):
        assert api("PUT", path("queues", vhost, name), {"durable": True}).status == 201
        assert api("PUT", path("exchanges", vhost, name), {"type": "topic", "durable": True}).status == 201
        item = {
            "vhost": vhost,
            "source": name,
            "destination": name,
            "destination_type": "queue",
            "routing_key": name,
            "arguments": {"note": name},
        }
        for form in copier.execute("binding", item, ALL if number < 2 else SHELL):
            [found] = [one for one in api.get(path("queues", vhost, name, "bindings")) if one["source"] == name]
            assert (found["routing_key"], found["arguments"]) == (name, {"note": name}), form
            assert api("DELETE", path("bindings", vhost, "e", name, "q", name, found["properties_key"])).status == 204
        policy = {"vhost": vhost, "name": name, "pattern": "^it's [$]", "apply-to": "queues", "priority": 3}
        for kind, definition in (("policies", {"dead-letter-exchange": name}), ("operator-policies", {"max-length": 5})):
            for form in copier.execute(kind, policy | {"definition": definition}, SHELL):
                found = api.get(path(kind, vhost, name))
                assert (found["definition"], found["pattern"], found["priority"]) == (definition, "^it's [$]", 3), form
                assert api("DELETE", path(kind, vhost, name)).status == 204


def test_messages_with_hostile_contents(api: HttpBroker, copier: Copier, vhost: str) -> None:
    assert api("PUT", path("queues", vhost, HOSTILE[0]), {"durable": True}).status == 201
    whole = bytes(range(256))
    for number, text in enumerate((*HOSTILE, "")):
        binary = number == 0
        item = {
            "vhost": vhost,
            "exchange": "",
            "routing_key": HOSTILE[0],
            "payload": base64.b64encode(whole).decode() if binary else text,
            "payload_encoding": "base64" if binary else "string",
            "properties": {
                "type": text,
                "delivery_mode": 2,
                "expiration": "600000",
                "headers": {"note": text, "list": [1, True, text]},
                "a=1) or __import__('os').abort(": 1,
            },
        }
        for form in copier.execute("message", item, ALL if number < 2 else SHELL):
            get = {"count": 2, "ackmode": "ack_requeue_false", "encoding": "base64"}
            [message] = api("POST", path("queues", vhost, HOSTILE[0], "get"), get).json
            assert base64.b64decode(message["payload"]) == (whole if binary else text.encode()), form
            properties = message["properties"]
            assert properties["headers"] == {"note": text, "list": [1, True, text]}, form
            assert (properties["expiration"], properties.get("type", "")) == ("600000", text), form


def test_users_with_hostile_names(api: HttpBroker, copier: Copier) -> None:
    name = HOSTILE[0].replace(":", "")
    item = {"name": name, "tags": ["management", "it's"]}
    copier.run("curl", copier.copies("user", item)["curl"])
    assert api.get(path("users", name))["tags"] == item["tags"]
    assert api("DELETE", path("users", name)).status == 204


def test_terraform_reads_the_same_texts(copier: Copier) -> None:
    """Terraform evaluates the expressions, none of which is a template."""
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    texts = [*HOSTILE, "%{~ if true ~}", "$${x} \\${x}"]
    found = copier.copies(
        "queue", {"vhost": "/", "name": "x", "durable": True, "auto_delete": False, "arguments": {"x": texts}}
    )
    [line] = [one for one in found["terraform"].splitlines() if "arguments_json" in one]
    done = subprocess.run(
        ["terraform", "console"],
        input=line.partition("=")[2].strip(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    printed = re.sub(r"\\U([0-9a-f]{8})", lambda found: chr(int(found[1], 16)), done.stdout)
    assert json.loads(json.loads(printed)) == {"x": texts}


def test_texts_that_a_form_cannot_express(copier: Copier) -> None:
    message = {
        "vhost": "/",
        "exchange": "",
        "routing_key": "q",
        "payload": "AA==",
        "payload_encoding": "base64",
        "properties": {},
    }
    assert copier.copies("message", message)["rabbitmqadmin"].startswith("error: rabbitmqadmin takes no binary payload")
    queue = {"vhost": "/", "name": "a\0b", "durable": True, "auto_delete": False, "arguments": {}}
    assert copier.copies("queue", queue)["leveret"].startswith("error: a name has the character NUL")
    assert "%00" in copier.copies("queue", queue)["curl"]


def test_copy_as_in_the_views(console: Console, api: HttpBroker, axe: str) -> None:
    for name in (IMAGE, SCRIPT):
        declare(api, name)
    publish(api, IMAGE, SCRIPT, headers={IMAGE: SCRIPT})
    console.enter("queues", "/", IMAGE)
    console.click("Copy as…")
    console.see("curl -u guest")
    assert console.findings(axe) == []
    for form, text in (
        ("leveret", "leveret queues add -- "),
        ("rabbitmqadmin", "rabbitmqadmin --host=127.0.0.1"),
        ("Terraform", 'resource "rabbitmq_queue"'),
        ("Python (leveret)", f"@127.0.0.1:{api.process.port}/%2F"),
        ("Python (pika)", "channel.queue_declare"),
    ):
        console.choose("Copy as", form)
        console.see(text)
    console.press("\ue00c")
    console.see_dialog(False)
    console.open("queues", "/", IMAGE, tab="messages")
    console.click("Copy as…", ".messages button")
    console.see("amq.default/publish")
    console.press("\ue00c")
    console.open("exchanges", "/", "amq.topic")
    console.click("Copy as…")
    console.see("/api/exchanges/%2F/amq.topic")
    console.press("\ue00c")
    console.open("users", "guest")
    console.click("Copy as…")
    console.see("/api/users/guest")
    console.press("\ue00c")
    console.open("queues", "/", SCRIPT, tab="publish")
    console.click("Copy as", "summary")
    console.fill("Payload", IMAGE)
    console.see("payload_encoding")
    assert console.script("return window.attacked") is None
    assert console.script("return document.querySelectorAll('main img, body script').length") == 0
