"""Alerts in the console, in a real browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.management.console.conftest import Screenshot, downloaded
from tests.management.console.test_console import IMAGE, SCRIPT, declare, delete, publish
from tests.management.http.client import HttpBroker
from tests.management.http.mail_server import MailServer
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)

# Records notifications instead of showing them.
_NOTIFICATIONS = """
window.notified = [];
window.Notification = class extends EventTarget {
  static permission = "default";
  static async requestPermission() { return Notification.permission = "granted"; }
  constructor(title, { body }) { super(); window.notified.push(`${title}: ${body}`); }
};
"""


@pytest.fixture
def backlog(api: HttpBroker) -> Iterator[str]:
    """A queue with three messages."""
    declare(api, "backlog")
    for number in range(3):
        publish(api, "backlog", str(number))
    yield "backlog"
    delete(api, "backlog")
    for rule in api.get("/leveret/alert-rules"):
        api("DELETE", f"/leveret/alert-rules/{quote(rule['name'], safe='')}")
    wait_until(lambda: api.get("/leveret/alerts") == [], "the alerts to be cleared")


def test_a_rule_raises_an_alert_until_it_is_changed(console: Console, api: HttpBroker, backlog: str) -> None:
    console.enter("alerts")
    console.see("No alert is raised.")
    console.script(_NOTIFICATIONS)
    console.click("Notify me")
    console.see("Notifications are on")
    console.click("Add rule")
    console.fill("Name", "long queue")
    console.fill("Pattern of names", "(")
    console.fill("More than", "2")
    console.click("Set rule")
    console.see("regular expression '('")
    console.see_problem(400)
    console.fill("Pattern of names", "^back")
    console.click("Set rule")
    console.see("Set rule 'long queue'")
    text = "3 messages; the threshold is 2"
    expected = [["long queue", backlog, text]]
    console.wait_for_rows(lambda found: [[*row[:2], *row[3:4]] for row in found] == expected)
    console.find("header a", "1 alert")
    console.see_result([f"long queue: {backlog}: {text}"], "return window.notified")
    console.click(backlog)
    console.see_heading(backlog)
    console.click("1 alert")
    console.click("long queue")
    console.see_location("rule=long+queue")
    console.click("Change…")
    console.fill("More than", "5")
    console.click("Set rule")
    console.see("No alert is raised.")
    console.see_no("1 alert")
    console.click("Delete…")
    console.click("Delete rule")
    console.see("No rules.")


def test_a_rule_is_silenced_and_saved_for_prometheus(
    console: Console, api: HttpBroker, backlog: str, downloads: Path
) -> None:
    rule = {"kind": "depth", "pattern": "^backlog$", "threshold": 1}
    assert api("PUT", "/leveret/alert-rules/deep", rule).status == 201
    console.enter("alerts")
    console.wait_for_rows(lambda found: bool(found))
    console.click("Silence…")
    console.choose("For", "8 hours")
    console.click("Silence rule")
    console.see("Silenced rule 'deep' until")
    console.see("No alert is raised.")
    (silenced,) = api.get("/leveret/alert-rules")
    assert 7.9 * 3600 < silenced["silenced_until"] / 1000 - time.time() < 8.1 * 3600
    assert silenced["pattern"] == "^backlog$" and silenced["threshold"] == 1
    console.click("Silence…")
    console.choose("For", "not at all")
    console.click("Silence rule")
    console.wait_for_rows(lambda found: bool(found) and found[0][0] == "deep")
    console.click("Prometheus rules")
    path = downloads / "leveret-rules.yml"
    assert b"^backlog$" in downloaded(path)


# Holds answers about alerts until `held` is called, and notes the requests for rules.
_HOLD = """
const real = window.fetch;
window.held = [];
window.asked = 0;
window.fetch = async (url, options) => {
  window.asked += String(url).endsWith("/leveret/alert-rules");
  const answer = await real(url, options);
  if (window.held && String(url).endsWith("/leveret/alerts")) {
    await new Promise((go) => window.held.push(go));
  }
  return answer;
};
"""


def test_a_change_during_a_read_is_shown(console: Console, api: HttpBroker, backlog: str) -> None:
    console.enter("alerts")
    console.see("No alert is raised.")
    console.see("Live")
    console.script(_HOLD)
    console.press("r")
    console.see_result(1, "return window.held.length")
    asked = console.script("return window.asked")
    assert api("PUT", "/leveret/alert-rules/deep", {"kind": "depth", "pattern": "^backlog$"}).status == 201
    console.find("header a", "1 alert")
    wait_until(lambda: console.script("return window.asked") > asked, "the view to be refreshed")
    console.click("Live")
    console.see("Paused")  # no further refresh reads the alerts
    console.script("const held = window.held; window.held = null; held.forEach((go) => go())")
    console.wait_for_rows(lambda found: bool(found) and found[0][:2] == ["deep", backlog])


def test_a_rule_sends_mails(console: Console, api: HttpBroker, mail_server: MailServer, backlog: str, axe: str) -> None:
    mail_server.refused = {"gone@example.com"}
    console.enter("alerts")
    console.click("Add rule")
    console.fill("Name", "mailed")
    console.fill("Pattern of names", "^back")
    console.fill("More than", "2")
    console.see("Allowed: example.com")
    console.fill("Mail to", "ops@example.net")
    console.click("Set rule")
    console.see("management.mail.recipients")
    console.see_problem(400)
    console.fill("Mail to", "ops@example.com, gone@example.com")
    console.click("Set rule")
    console.see("Set rule 'mailed'")
    wait_until(lambda: mail_server.received, "the mail")
    assert mail_server.received[0]["To"] == "ops@example.com"
    console.see("no such mailbox")  # in the panel of deliveries
    console.see(f"127.0.0.1:{mail_server.port}")
    assert console.findings(axe) == []
    console.use_phone()
    console.see_fit()


def test_alerts_of_a_user_who_sets_no_rules(console: Console, api: HttpBroker, backlog: str) -> None:
    rule = {"kind": "no_consumers", "pattern": "^backlog$"}
    assert api("PUT", "/leveret/alert-rules/unattended", rule).status == 201
    console.open("alerts", rule="unattended")
    console.sign_in("monitor")
    console.wait_for_rows(lambda found: bool(found) and found[0][3:4] == ["3 messages and no consumer"])
    assert "Add rule" not in console.text() and "Deliveries" not in console.text() and "Delete…" not in console.text()
    console.click("Rule unattended ×")
    console.see_no("Rule unattended ×")
    console.see_location_without("rule=")


def test_scripts_in_names_of_alerts_are_inert(console: Console, api: HttpBroker, backlog: str) -> None:
    declare(api, SCRIPT)
    publish(api, SCRIPT, "x")
    rule = {"kind": "depth", "pattern": SCRIPT[:8]}
    assert api("PUT", f"/leveret/alert-rules/{quote(IMAGE, safe='')}", rule).status == 201
    console.enter("alerts")
    console.wait_for_rows(lambda found: bool(found) and found[0][:2] == [IMAGE, SCRIPT])
    console.click("Change…")
    console.see_dialog()
    assert console.script("return window.attacked") is None
    assert console.script("return document.querySelectorAll('main img, body script').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_alerts_are_accessible_and_fit_a_phone(
    console: Console, api: HttpBroker, backlog: str, axe: str, scheme: str, screenshot: Screenshot
) -> None:
    console.prefer(scheme)
    for name, rule in (
        ("long queue", {"kind": "depth", "threshold": 2}),
        ("no consumer", {"kind": "no_consumers", "pattern": "^back", "seconds": 1}),
        ("stuck consumer", {"kind": "no_acks", "threshold": 300}),
        ("memory", {"kind": "memory"}),
    ):
        assert api("PUT", f"/leveret/alert-rules/{quote(name)}", rule).status == 201
    console.enter("alerts")
    console.wait_for_rows(lambda found: len([row for row in found if row[1] == backlog]) == 2)
    console.find("header a", "2 alerts")
    screenshot(f"alerts-{scheme}")
    assert console.findings(axe) == []
    console.use_phone()
    console.see_fit()
    console.click("Add rule")
    console.see_dialog()
    assert console.findings(axe) == []
    console.see_fit()
