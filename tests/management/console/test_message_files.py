"""Messages that the console exports to a file and imports again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.management.console.conftest import downloaded
from tests.management.console.test_console import declare, publish, queue
from tests.management.http.client import HttpBroker
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from tests.management.console.browser import Console

pytestmark = pytest.mark.timeout(280)


def test_messages_that_match_are_exported_and_imported(
    console: Console, api: HttpBroker, downloads: Path, tmp_path: Path, axe: str
) -> None:
    declare(api, "filed")
    for number in range(3):
        publish(api, "filed", f"<b>{number}</b>", headers={"odd": number % 2})
    console.enter("queues", "/", "filed", tab="messages", selector="odd = 0")
    console.see("2 messages of 3 messages that were looked at")
    console.click("Export")
    console.see("The browser saves all messages that match")
    content = downloaded(downloads / "filed.jsonl")
    assert [json.loads(line)["payload"] for line in content.splitlines()] == ["<b>0</b>", "<b>2</b>"]
    file = tmp_path / "messages.jsonl"
    file.write_bytes(content + b'{"<i>unknown</i>": 1}\n')
    console.click("Import…")
    console.field("File").send_keys(str(file))
    console.click("Import messages", "dialog button")
    console.see("Imported 2 messages of 3 lines; 1 line refused.")
    console.see("Line 3: invalid message: Object contains unknown field `<i>unknown</i>`")
    assert console.findings(axe) == []
    wait_until(lambda: queue(api, "filed")["messages_ready"] == 5, "the messages are imported")
    console.choose("Target", "One exchange")
    console.fill("Exchange", "missing")
    console.click("Import messages", "dialog button")
    console.see("no exchange 'missing' in vhost '/'")
    console.see_problem(404)
    console.press("\ue00c")  # Escape
    console.see_dialog(shown=False)
