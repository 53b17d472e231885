"""Runs commands of `leveret` in this process, against a broker in another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from click.testing import CliRunner, Result

from leveret.cli.app import leveret
from tests.support.broker import LeveretProcess
from tests.support.polling import wait_until


class Commands:
    """`leveret ... --data-dir DIR`, or `leveret ... --url URL`."""

    def __init__(self, data_dir: Path, url: str = "") -> None:
        self.data_dir = data_dir
        self._broker = ["--url", url] if url else ["--data-dir", str(data_dir)]

    def run(self, *arguments: str, input: str | None = None) -> Result:
        return CliRunner().invoke(leveret, [*arguments, *self._broker], input=input)

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
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        wait_until(lambda: connection.process_data_events(time_limit=0.02), "the broker did not close the connection")
    return f"{closed.value.reply_code} {closed.value.reply_text}"


def http_url(broker: LeveretProcess, user: str = "guest", password: str | None = None) -> str:
    """Return the address of the HTTP API of a broker, for a user whose password is the name by default."""
    ready = json.loads((broker.directory / "ready.json").read_text("utf-8"))
    scheme, _, rest = str(ready["management"][0]).partition("://")
    return f"{scheme}://{user}:{user if password is None else password}@{rest}"
