"""The lessons of the console, in a real browser, and their code, executed against the broker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.management.console.conftest import Screenshot
from tests.management.console.test_console import queue
from tests.management.console.test_copies import Copier
from tests.management.console.test_roles import PUBLISH
from tests.management.http.client import HttpBroker
from tests.support.broker import ROOT
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)

ID = "testid"
PREFIX = f"learn-{ID}-"
# Number of queues in all lessons.
QUEUES = 14
LESSONS = ("first-message", "work-queue", "publish-subscribe", "topics", "dead-letters", "streams")
# The steps of all lessons with their questions, and their code.
_LESSONS = """
const [prefix, address, done] = arguments;
const main = document.querySelector("script[type=module]").src;
const load = (name) => import(main.replace("main.js", name));
const name = (short) => prefix + short;
Promise.all([load("learn/lessons.js"), load("copy.js")]).then(([{ LESSONS }, { copies }]) => done(
  Object.fromEntries(LESSONS.map((lesson) => [lesson.id, lesson.steps.map(({ id, title, label, ask, operations }) => {
    const steps = operations(name, ask?.example);
    const code = copies("program", { vhost: "/", steps }, address).map(([form, , text]) => [form, text()]);
    const question = ask && { kind: ask.kind, label: ask.label, example: ask.example, options: ask.options?.() ?? [] };
    return { id, title, label, ask: question, kinds: steps.map(([kind]) => kind), code: Object.fromEntries(code) };
  })]))));
"""


def steps_of(console: Console, api: HttpBroker) -> dict[str, list[dict[str, Any]]]:
    address = {
        "api": f"http://127.0.0.1:{api.port}/api/",
        "amqpHost": "127.0.0.1",
        "amqpPort": api.process.port,
        "user": "guest",
    }
    found: dict[str, list[dict[str, Any]]] = console.driver.execute_async_script(_LESSONS, PREFIX, address)
    return found


def enter(console: Console, *parts: str, user: str = "guest", **query: str) -> None:
    """Sign in and open a view of lessons whose names of objects are known."""
    console.open()
    console.field("User name")
    state = json.dumps({"vhost": "/", "prefix": "", "id": ID, "done": []})
    console.script("localStorage.setItem('leveret.learn', arguments[0])", state)
    console.driver.refresh()
    console.open("learn", *parts, **query)
    console.sign_in(user)
    console.see_heading()


def names(api: HttpBroker, kind: str) -> list[str]:
    return [item["name"] for item in api.get(f"/{kind}/%2F") if item["name"].startswith(PREFIX)]


def answer(console: Console, ask: dict[str, Any] | None) -> None:
    if ask is None:
        return
    if ask["kind"] in ("text", "number"):
        console.fill(ask["label"], ask["example"])
        return
    chosen = ask["example"] if ask["kind"] == "many" else [ask["example"]]
    for value, text in ask["options"]:
        if value in chosen:
            console.click(text, "label.check")


@contextmanager
def working(api: HttpBroker, code: str) -> Iterator[None]:
    """Run a worker as the lesson shows it, and wait until it has a message."""
    script = f'leveret() {{ exec {sys.executable} -m leveret "$@"; }}\n{code.replace("PASSWORD", "guest")}'
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    worker = subprocess.Popen(["bash", "-c", script], env=environment, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: queue(api, f"{PREFIX}tasks")["messages_unacknowledged"] == 1, "the worker to have a task")
        yield
    finally:
        worker.terminate()
        worker.wait(20)


@pytest.mark.parametrize("lesson", LESSONS)
def test_each_step_agrees_with_the_broker(console: Console, api: HttpBroker, axe: str, lesson: str) -> None:
    enter(console)
    console.see_heading("Learn")
    steps = steps_of(console, api)[lesson]
    console.open("learn", lesson)
    for number, step in enumerate(steps, 1):
        console.find("h2", f"{number}. {step['title']}")
        answer(console, step["ask"])
        is_worker = step["kinds"] == ["worker"]
        with working(api, step["code"]["leveret"]) if is_worker else nullcontext():
            console.click(step["label"], "form button")
            console.find("[role=status] .note", "Right." if step["ask"] else "", exact=False)
        console.find(".tabs a", f"{number}. {step['title']} ✓", exact=False)
        if number > 1:
            console.see_location(f"step={step['id']}")
        assert console.findings(axe) == []
        if number < len(steps):
            console.click(f"Next: {steps[number]['title']}")
    console.see("The lesson is done.")
    assert names(api, "queues")
    console.click("Clean up…")
    console.click("Delete objects")
    console.see("Cleaned up")
    assert names(api, "queues") == names(api, "exchanges") == []
    console.open("learn")
    console.see(f"{len(steps)} steps")


def test_a_wrong_expectation_is_explained(console: Console, api: HttpBroker) -> None:
    enter(console)
    console.click("First message")
    console.click("Declare the queue")
    console.see("The queue exists and has 0 messages.")
    console.click("Next: Publish a message")
    console.fill("Your message", "<b>hello</b>")
    console.click("Publish")
    console.see("Right. The message reached the queue.")
    console.click("Next: Look at the message")
    console.fill("How many messages are ready afterwards?", "0")
    console.click("Look")
    console.see("Not what you expected. The queue has: <b>hello</b>. 1 message is ready.")
    console.see_no("Next: Take the message")
    console.fill("How many messages are ready afterwards?", "1")
    console.click("Look")
    console.see("Right. The queue has: <b>hello</b>.")
    console.wait_for_rows(lambda rows: rows == [[f"{PREFIX}hello", "1", "0", "0"]])
    console.open("learn")
    console.see("3 of 4 steps are done")


def test_a_link_to_a_step_prepares_it(console: Console, api: HttpBroker) -> None:
    enter(console)
    console.open("learn", "topics", step="own-key")
    console.find("h2", "5. Find a routing key")
    console.fill("Routing key", "order.eu")
    console.click("Publish")
    console.see("Not Found")
    console.see_problem(404)
    console.click("Prepare this step")
    console.see("The steps before were run")
    console.click("Publish", "form button")
    console.see("Right. The message reached all, europe, orders.")
    console.fill("Routing key", "order.paid.eu")
    console.click("Publish", "form button")
    console.see("Not what you expected. The message reached all, europe, paid.")
    console.open("learn", "no-such-lesson")
    console.see("There is no lesson")


def test_users_who_may_not_run_lessons(console: Console, api: HttpBroker) -> None:
    enter(console, "first-message", step="look", user="viewer")
    console.see("You can read the lessons, but not run them.")
    console.see_enabled("Look", "form button", enabled=False)
    console.see("leveret")
    console.click("Sign out")
    console.sign_in("operator")
    console.see("this step reads messages")
    console.see_enabled("Look", "form button", enabled=False)
    console.click("Sign out")
    console.sign_in("manager")
    console.see("1. Declare a queue")
    console.open("learn", "first-message", step="declare")
    console.see("the permissions configure, write and read for names that begin with learn-")
    console.see_enabled("Declare the queue", enabled=False)
    console.see("Choose a vhost and a prefix")
    console.open("learn")
    console.fill("Prefix of names", "mine-")
    console.see(f"The names begin with mine-{PREFIX}")
    console.open("learn", "first-message", step="declare")
    console.click("Declare the queue")
    console.see("The queue exists and has 0 messages.")
    # Other steps publish to the default exchange.
    console.see("and the permission write for the default exchange, amq.default")
    console.click("Next: Publish a message")
    console.see_enabled("Publish", "form button", enabled=False)
    assert api("POST", "/exchanges/%2F/amq.default/publish", PUBLISH, user="manager").status == 401
    console.open("learn", "first-message", step="take")
    console.fill("How many messages are ready after the acknowledgement?", "1")
    console.click("Get and acknowledge", "form button")
    console.see("Not what you expected.")
    console.see_enabled("Prepare this step", "button.link", enabled=False)
    assert api("DELETE", f"/queues/%2F/mine-{PREFIX}hello").status == 204


def test_the_code_of_lessons_runs(console: Console, api: HttpBroker, tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    enter(console)
    console.see_heading("Learn")
    copier = Copier(console, api, tmp_path)
    for form in ("python", "leveret"):
        for steps in steps_of(console, api).values():
            copier.run(form, "\n".join(step["code"][form] for step in steps if step["kinds"] != ["worker"]))
        wait_until(lambda: len(names(api, "queues")) == QUEUES, "the queues of all lessons")
        counts = {name: queue(api, name)["messages"] for name in names(api, "queues")}
        assert counts[f"{PREFIX}hello"] == 0 and counts[f"{PREFIX}tasks"] == 2
        assert counts[f"{PREFIX}mail"] == 2 and counts[f"{PREFIX}late"] == 1
        assert counts[f"{PREFIX}orders"] == 2 and counts[f"{PREFIX}history"] == 5
        wait_until(lambda: queue(api, f"{PREFIX}invoices")["messages"] == 1, "the retry")
        if form == "python":
            worker = next(step for step in steps_of(console, api)["work-queue"] if step["kinds"] == ["worker"])
            command = [sys.executable, "-c", worker["code"][form].replace("PASSWORD", "guest")]
            environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
            ended = subprocess.run(
                command, env=environment, input="\n", capture_output=True, text=True, timeout=60, check=False
            )
            assert "task 2" in ended.stdout and "EOFError" in ended.stderr  # it acknowledges one task, and its input ends
            wait_until(lambda: queue(api, f"{PREFIX}tasks")["messages"] == 1, "the acknowledgement")
        for kind in ("queues", "exchanges"):
            for name in names(api, kind):
                api("DELETE", f"/{kind}/%2F/{name}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lessons_are_accessible_and_fit_a_phone(
    console: Console, api: HttpBroker, axe: str, scheme: str, screenshot: Screenshot
) -> None:
    console.prefer(scheme)
    enter(console)
    console.see_heading("Learn")
    assert console.findings(axe) == []
    console.open("learn", "topics", step="two-words")
    console.find("h2", "2. Route order.paid")
    screenshot(f"learn-{scheme}")
    console.use_phone()
    for lesson in LESSONS:
        console.open("learn", lesson)
        console.find("h2", "1. ", exact=False)
        console.see_fit()
    console.open("learn", "topics", step="two-words")
    console.find("h2", "2. Route order.paid")
    console.see_fit()
    assert console.findings(axe) == []
    console.open("learn")
    console.see("Where lessons run")
    console.see_fit()
