"""Base of state machines over sessions: two clients of a site, with random actions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.protocols.support import Channel, Client, Site

QUEUES = ("one", "two", "three")


class Errors(logging.Handler):
    """Collects the log lines about internal errors of the broker."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage() + str(record.exc_info))


class TwoClients(RuleBasedStateMachine):
    """Three queues, two of them durable, and two clients with any number of channels."""

    def set_up(self, site: Site, connect: Callable[[], Client]) -> None:
        """Start with a new site; `connect` creates its clients."""
        self.errors = Errors()
        logging.getLogger("leveret").addHandler(self.errors)
        self.site = site
        self.connect = connect
        self.clients = [connect(), connect()]
        channel = self.clients[0].channel(1)
        channel.declare("one", durable=True)
        channel.declare(
            "two",
            durable=True,
            arguments={"x-max-length": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "three"},
        )
        channel.declare("three")
        self.count = 0

    @property
    def begun(self) -> bool:
        """Invariants and teardown run even if the machine was not set up."""
        return hasattr(self, "errors")

    def all_leave(self) -> None:
        """Disconnect all clients, and check that the broker has not failed."""
        logging.getLogger("leveret").removeHandler(self.errors)
        for client in self.clients:
            client.drop()
        self.site.run()
        assert not self.errors.lines

    def channel(self, which: int, number: int) -> Channel:
        """Return a channel of a client, reopened if necessary."""
        client = self.clients[which]
        if not client.is_open:
            client.drop()
            client = self.clients[which] = self.connect()
        if number not in client.session.channels:
            while client.refusal()[0]:
                pass  # reply to a close
            return client.channel(number)
        return client.channels[number]

    def settle(self) -> None:
        for client in self.clients:
            client.run()

    def do(self, which: int, number: int, name: str, **arguments: Any) -> None:
        self.channel(which, number).send(name, **arguments)
        self.settle()

    @rule(which=st.integers(0, 1))
    def drop(self, which: int) -> None:
        self.clients[which].drop()

    @rule(which=st.integers(0, 1), full=st.booleans())
    def socket(self, which: int, full: bool) -> None:
        session = self.clients[which].session
        if full:
            session.pause_writing()
        else:
            session.resume_writing()
        self.settle()
