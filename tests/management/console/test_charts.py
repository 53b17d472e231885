"""Charts in the console: zoom, a second queue, and marks of events."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from selenium.webdriver.common.action_chains import ActionChains

from leveret.management.http.measured import LENGTHS, MESSAGES, Measured, Rates, Window
from leveret.management.http.objects import QUEUE, QUEUE_STATISTICS
from leveret.management.http.statistics import message_stats, queue_totals
from tests.management.console.test_console import IMAGE, declare, delete, publish
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)

# Calls the function that selects and orders events.
_EVENTS = """
const [queue, records, marks, deletions, done] = arguments;
const url = document.querySelector("script[type=module]").src.replace("main.js", "ui/marks.js");
import(url).then(({ eventsOf }) => done(eventsOf(queue, records, marks, deletions)));
"""
# The number of pixels of a chart in the colour of marks, which no axis or line has.
_MARKED = """
const canvas = document.querySelector(".chart canvas");
const plot = document.querySelector(".chart .u-over").getBoundingClientRect();
const left = Math.round((plot.left - canvas.getBoundingClientRect().left) * devicePixelRatio);
const { data, width } = canvas.getContext("2d").getImageData(left, 0, Math.round(plot.width), 100);
const colors = getComputedStyle(document.documentElement).getPropertyValue("--muted").trim().match(/[0-9a-f]{2}/gi);
const [red, green, blue] = colors.map((digits) => parseInt(digits, 16));
let found = 0;
for (let at = 0; at < data.length; at += 4) {
  const distance = Math.abs(data[at] - red) + Math.abs(data[at + 1] - green) + Math.abs(data[at + 2] - blue);
  found += distance < 60 && data[at + 3] > 100;
}
return found;
"""
# Has the page get this answer for a queue.
_ANSWER = """
const [path, answer] = arguments;
const real = window.fetch;
window.fetch = (target, ...rest) =>
  new URL(target).pathname.endsWith(path)
    ? Promise.resolve(new Response(answer, { headers: { "content-type": "application/json" } }))
    : real(target, ...rest);
"""
# The lowest and the highest value of the line of a colour in each column of pixels of a chart, as shares of its height.
_LINE = """
const [label, name] = arguments;
const over = document.querySelector(`[aria-label="${label}"] .u-over`);
if (!over) {
  return [];
}
const canvas = over.parentElement.querySelector("canvas");
const area = over.getBoundingClientRect();
const { left, top } = canvas.getBoundingClientRect();
const pixels = (length) => Math.round(length * devicePixelRatio);
const [x, y] = [pixels(area.left - left), pixels(area.top - top)];
const [width, height] = [pixels(area.width), pixels(area.height)];
const { data } = canvas.getContext("2d").getImageData(x, y, width, height);
const digits = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).match(/[0-9a-f]{2}/gi);
const color = digits.map((two) => parseInt(two, 16));
return Array.from({ length: width }, (_, column) => {
  const shares = [];
  for (let row = 0; row < height; row += 1) {
    const at = 4 * (row * width + column);
    if (data[at + 3] > 200 && color.every((value, index) => Math.abs(value - data[at + index]) < 24)) {
      shares.push(1 - row / height);
    }
  }
  return shares.length > 0 ? [Math.min(...shares), Math.max(...shares)] : null;
});
"""


@pytest.fixture
def queues(api: HttpBroker) -> Iterator[HttpBroker]:
    """Two queues with different numbers of messages."""
    for name, messages in (("left", 3), ("right", 5)):
        declare(api, name)
        for number in range(messages):
            publish(api, name, str(number))
    yield api
    for name in ("left", "right"):
        delete(api, name)
    for mark in api.get("/leveret/marks"):
        api("DELETE", f"/leveret/marks/{quote(mark['name'], safe='')}")


def test_events_of_a_queue(console: Console) -> None:
    known = {"vhost": "/", "kind": "queue", "name": "orders", "user": "ann", "action": "queue.purge"}
    records = [
        known | {"time": 3000},
        known | {"time": 2000, "name": "orders-2"},
        known | {"time": 2000, "vhost": "other"},
        known | {"time": 2000, "kind": "exchange"},
        known | {"time": 1000, "kind": "policy", "action": "policies.set", "name": "limits"},
    ]
    records.append(known | {"time": 90_000, "action": "queue.delete"})
    marks = [{"name": "deployed", "time": 2500}]
    # The second one is in the audit log, too.
    deletions = [50_000, 91_000]
    console.enter()

    def events(queue: dict[str, str] | None) -> list[tuple[float, str]]:
        found = console.driver.execute_async_script(_EVENTS, queue, records, marks, [] if queue is None else deletions)
        return [(event["time"], event["text"]) for event in found]

    expected = [
        (1, "policies.set limits by ann"),
        (2.5, "deployed"),
        (3, "queue.purge orders by ann"),
        (50, "deleted orders"),
        (90, "queue.delete orders by ann"),
    ]
    assert events({"vhost": "/", "name": "orders"}) == expected
    assert events(None) == [(2.5, "deployed")]


def test_a_part_of_a_chart_is_zoomed(console: Console, queues: HttpBroker) -> None:
    console.enter("queues", "/", "left")

    def select() -> None:
        actions = ActionChains(console.driver).move_to_element_with_offset(console.element(".chart .u-over"), -40, 0)
        actions.click_and_hold().move_by_offset(80, 0).release().perform()

    def zoomed() -> bool:
        """Select a part of the chart, which has no times before its first points."""
        console.retry(select, "select a part of the chart")
        return re.search(r"from=\d+&to=\d+", console.location()) is not None

    wait_until(zoomed, console.location)
    console.find("button", "Whole range")
    location = console.location()
    console.driver.refresh()
    console.find("button", "Whole range")
    console.see_location(location)
    console.click("Whole range")
    console.see_no("Whole range")
    console.see_location_without("from=")


def steady(queue: dict[str, Any], windows: dict[str, Window], rate: int) -> dict[str, Any]:
    """Return the answer about a queue to which this many messages per second are published, of which a half is left."""
    now = int(time.time())
    measured = Measured()
    measured.begin(QUEUE)
    for second in range(4000):
        counters = [rate * second] + [0] * (len(QUEUE.counters) - 1)
        measured.measure(QUEUE, now - 4000 + second + 1, (7 + rate * second % 2, 0), counters)
    rates = Rates([measured], QUEUE_STATISTICS, now, windows)
    stats = message_stats({"publish": rate * 3999}, rates)
    return queue | {"message_stats": stats} | queue_totals(measured.gauges[0] if measured.gauges else 0, 0, rates)


@pytest.mark.parametrize("seconds", [60, 600, 3600])
def test_a_steady_rate_is_a_horizontal_line(console: Console, queues: HttpBroker, seconds: int) -> None:
    steps = {60: 1, 600: 5, 3600: 60}
    windows = {family: Window(seconds, steps[seconds]) for family in (LENGTHS, MESSAGES)}
    console.enter("overview")
    console.script(_ANSWER, "/queues/%2F/left", json.dumps(steady(queues.get("/queues/%2F/left"), windows, 13)))
    console.script("location.hash = arguments[0]", f"#/queues/%2F/left?range={seconds}")
    console.see("Publish 13")

    def line() -> list[tuple[float, float]]:
        return [found for found in console.script(_LINE, "Message rates of the queue over time", "publish") if found]

    shares = wait_until(line, "the line")
    # The scale ends at 1.1 times the highest value. A line is up to three pixels wide.
    assert all(abs(share - 1 / 1.1) < 0.03 for ends in shares for share in ends), (min(shares), max(shares))
    assert len(shares) > 200


def test_two_queues_in_a_chart(console: Console, queues: HttpBroker) -> None:
    console.enter("queues", "/", "left", compare="right")
    console.see("Ready of right 5")
    console.see("Publish of right")
    console.fill("Compare with queue", "unknown\n")
    console.see("Not Found")
    console.fill("Compare with queue", "right\n")
    console.see("Ready of right 5")
    console.see_location("compare=right")
    console.use_phone()
    console.see_fit()
    console.see_problem(404)


def test_marks_of_events(console: Console, queues: HttpBroker) -> None:
    console.enter("queues", "/", "left")
    console.see("queue.declare left by guest")
    assert queues("DELETE", "/queues/%2F/left/contents").status == 204
    console.click("Mark…")
    console.fill("Name", IMAGE)
    console.click("Set mark")
    console.see("Set mark")
    console.see("queue.purge left by guest")
    console.find("dt ~ dd", IMAGE)
    wait_until(lambda: console.script(_MARKED) > 0, "the chart to have marks")
    assert console.script("return document.querySelectorAll('main img').length") == 0
    console.open("overview")
    console.find("dt ~ dd", IMAGE)


def test_a_user_who_is_no_administrator_sees_marks_only(console: Console, queues: HttpBroker) -> None:
    assert queues("PUT", "/leveret/marks/deployed", {}).status == 201
    console.open("queues", "/", "left")
    console.sign_in("monitor")
    console.find("dt ~ dd", "deployed")
    assert "queue.declare" not in console.text() and "Mark…" not in console.text()
