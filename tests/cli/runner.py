"""Runs commands of `leveret` in this process, against a broker in another."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
from click.testing import CliRunner, Result

from leveret.cli.app import leveret


class Commands:
    """`leveret ... --data-dir DIR`."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def run(self, *arguments: str, input: str | None = None) -> Result:
        return CliRunner().invoke(leveret, [*arguments, "--data-dir", str(self.data_dir)], input=input)

    def ok(self, *arguments: str, input: str | None = None) -> str:
        """The output of a command that succeeds."""
        result = self.run(*arguments, input=input)
        assert result.exit_code == 0, result.output
        return result.output

    def refused(self, *arguments: str, input: str | None = None) -> str:
        """The message of a command that the broker refuses."""
        result = self.run(*arguments, input=input)
        assert result.exit_code == 1, result.output
        assert result.output.startswith("Error: ")
        return result.output

    def mistaken(self, *arguments: str) -> str:
        """Return the message of an invalid command line."""
        result = self.run(*arguments)
        assert result.exit_code == 2, result.output
        return result.output

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))


def wait_closed(connection: pika.BlockingConnection) -> str:
    """Serve a connection until the broker closes it; its code and text."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            connection.process_data_events(time_limit=1)
        except pika.exceptions.ConnectionClosedByBroker as error:
            return f"{error.reply_code} {error.reply_text}"
    raise AssertionError("the broker did not close the connection")
