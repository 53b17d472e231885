"""Favourite queues and exchanges in the console."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.management.console.test_console import declare, delete
from tests.management.http.client import HttpBroker

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)

SPACE = "\ue00d"
ENTER = "\ue007"
ESCAPE = "\ue00c"
# Favourites of the signed-in user in the storage.
FILL = """
const key = Object.keys(localStorage).find((name) => name.startsWith("leveret-favourites"));
const items = Array.from({ length: 100 }, (_, number) => ({ kind: "queues", vhost: "/", name: `filled-${number}` }));
localStorage.setItem(key, JSON.stringify(items));
"""
# Entries of other versions, or of a user who edited the storage.
BROKEN = """
const key = Object.keys(localStorage).find((name) => name.startsWith("leveret-favourites"));
const kept = { kind: "queues", vhost: "/", name: "kept" };
localStorage.setItem(key, JSON.stringify([null, 1, { ...kept, name: 5 }, { ...kept, kind: "x" }, kept]));
"""


def focus(console: Console, star: str) -> None:
    console.script("arguments[0].focus()", console.find("button.star", star))


def test_favourites_in_the_list_the_palette_and_the_page(console: Console, api: HttpBroker, axe: str) -> None:
    names = ("star.a(b)|c", "star.two", "starred")
    for name in names:
        declare(api, name)
    console.enter("queues", name="star")
    console.wait_for_rows(lambda rows: len(rows) == 3)
    for star in [f"Favourite {name}" for name in names[:2]]:
        console.retry(partial(focus, console, star), f"focus '{star}'")
        console.press(SPACE)
        console.see_result("true", f"return document.querySelector('[aria-label=\"{star}\"]')?.ariaPressed")
    assert console.findings(axe) == []
    console.check("Favourites")
    console.see_location("favourites=1")
    console.wait_for_rows(lambda rows: [row[0] for row in rows] == ["star.a(b)|c", "star.two"])
    console.driver.refresh()
    console.wait_for_rows(lambda rows: [row[0] for row in rows] == ["star.a(b)|c", "star.two"])
    console.fill("Filter", "two")
    console.wait_for_rows(lambda rows: [row[0] for row in rows] == ["star.two"])
    console.click("Change listed…")
    console.see_dialog()
    console.see("star.two")
    console.see_no("star.a(b)|c")
    console.press(ESCAPE)
    console.see_dialog(False)
    console.script("document.activeElement.blur()")
    console.click("Search", "header button", exact=False)
    console.fill("Go to", "star")
    console.find("[role=option]", "starred", exact=False)
    places = "return [...document.querySelectorAll('[role=option]')].map((entry) => entry.innerText.replace(/\\s+/g, ' '))"
    console.see_result([f"{name} favourite queue in /" for name in names[:2]] + ["starred queue in /"], places)
    console.press(ENTER)
    console.see_heading("star.a(b)|c")
    console.click("Favourite star.a(b)|c", "button.star")
    console.see_result("false", "return document.querySelector('main .title .star')?.ariaPressed")
    console.open("queues", favourites="1")
    console.wait_for_rows(lambda rows: [row[0] for row in rows] == ["star.two"])
    for name in names:
        delete(api, name)
    console.see("Favourites that do not exist any more, or that you may not see: star.two in /")
    console.see("No favourite. Choose the star of a row to add one.")
    console.click("Forget them")
    console.see_no("star.two")


def test_favourite_exchanges_and_streams(console: Console, api: HttpBroker) -> None:
    declare(api, "star-stream", **{"x-queue-type": "stream"})
    console.enter("exchanges", vhost="/")
    for name in ("(default exchange)", "amq.topic"):
        console.click(f"Favourite {name}", "button.star")
    console.check("Favourites")
    console.wait_for_rows(lambda rows: [row[0] for row in rows] == ["(default exchange)", "amq.topic"])
    console.click("(default exchange)")
    console.find("button.star", "Favourite (default exchange)")
    console.see_result("true", "return document.querySelector('main .title .star')?.ariaPressed")
    console.open("streams", name="star-stream")
    console.click("Favourite star-stream", "button.star")
    console.check("Favourites")
    console.wait_for_rows(lambda rows: [row[0] for row in rows] == ["star-stream"])
    console.use_phone()
    console.see_fit()


def test_favourites_are_bounded_and_belong_to_a_user(console: Console, api: HttpBroker) -> None:
    declare(api, "mine-star")
    console.enter("queues", name="mine-star")
    console.click("Favourite mine-star", "button.star")
    console.see_result("true", "return document.querySelector('main td .star')?.ariaPressed")
    console.script(FILL)
    console.driver.refresh()
    console.wait_for_rows(lambda rows: len(rows) == 1)
    console.click("Favourite mine-star", "button.star")
    console.see("100 favourites; expected fewer: remove some")
    console.click("Dismiss")
    console.script(BROKEN)
    console.driver.refresh()
    console.wait_for_rows(lambda rows: len(rows) == 1)
    console.click("Favourite mine-star", "button.star")
    console.check("Favourites")
    console.see("Favourites that do not exist any more, or that you may not see: kept in /")
    console.click("Sign out")
    console.field("User name")
    console.enter("queues", favourites="1")
    console.see("kept in /")
    console.click("Sign out")
    console.field("User name")
    console.open("queues", favourites="1")
    console.sign_in("manager")
    console.see("No favourite.")
