"""The differences that an import of definitions would make, in the console."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.management.http.client import HttpBroker

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)

EQUAL = "The broker already has everything in this file."
QUEUE = {"name": "planned", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}


def choose(console: Console, path: Path, definitions: dict[str, Any]) -> None:
    """Choose a file with definitions."""
    path.write_text(json.dumps(definitions), "utf-8")
    console.retry(lambda: console.field("File").send_keys(str(path)), "choose a file")
    console.see(f"Differences of {path.name}")


def test_the_tracing_of_a_vhost_differs_only_if_it_changes(console: Console, api: HttpBroker, tmp_path: Path) -> None:
    console.enter("definitions")
    choose(console, tmp_path / "off.json", {"vhosts": [{"name": "/", "tracing": False}]})
    console.see(EQUAL)
    api("PUT", "/vhosts/%2F", {"tracing": True})
    try:
        choose(console, tmp_path / "on.json", {"vhosts": [{"name": "/", "tracing": True}]})
        console.see(EQUAL)
        choose(console, tmp_path / "off-again.json", {"vhosts": [{"name": "/", "tracing": False}]})
        console.see_no(EQUAL)
        console.see('- {"tracing":true}')
        console.see('+ {"tracing":false}')
    finally:
        api("PUT", "/vhosts/%2F", {"tracing": False})


def test_an_import_after_a_look_at_the_differences(console: Console, api: HttpBroker, tmp_path: Path) -> None:
    console.enter("definitions")
    refused = {**QUEUE, "name": "planned-wrong", "arguments": {"x-max-length": "many"}}
    choose(console, tmp_path / "new.json", {"queues": [QUEUE, refused]})
    console.see("+ queue 'planned' in vhost '/'")
    console.see("! queue 'planned-wrong' in vhost '/'")
    console.see("x-max-length")
    choose(console, tmp_path / "right.json", {"queues": [QUEUE]})
    console.click("Import…")
    console.click("Import definitions", "dialog button")
    console.see("Imported 'right.json'")
    assert api.get("/queues/%2F/planned")["durable"] is True
    choose(console, tmp_path / "same.json", {"queues": [QUEUE]})
    console.see(EQUAL)
    choose(console, tmp_path / "changed.json", {"queues": [{**QUEUE, "arguments": {"x-max-length": 5}}]})
    console.see("planned")
    console.see_no(EQUAL)


def test_differences_are_those_of_the_chosen_vhost(console: Console, tmp_path: Path) -> None:
    console.enter("definitions", vhost="/")
    choose(console, tmp_path / "new.json", {"queues": [{key: value for key, value in QUEUE.items() if key != "vhost"}]})
    console.see("+ queue 'planned'")
    console.choose("Vhost", "interop")
    console.see_location("vhost=interop")
    console.see_no("Differences of new.json")


def test_a_read_only_administrator_compares_and_does_not_import(console: Console, tmp_path: Path) -> None:
    console.open("definitions")
    console.sign_in("viewer")
    console.see_heading("Definitions")
    choose(console, tmp_path / "new.json", {"queues": [QUEUE]})
    console.see("+ queue 'planned' in vhost '/'")
