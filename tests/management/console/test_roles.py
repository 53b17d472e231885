"""Roles of users in the console."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.management.console.test_console import declare, delete, publish
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)


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
