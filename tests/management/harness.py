"""A broker in memory with an `Admin` over it, on an event loop of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from leveret.broker.broker import Broker, VhostSettings
from leveret.broker.vhost import Vhost
from leveret.config import Config, VhostConfig
from leveret.management.admin import Admin
from leveret.security.users import UserStore
from leveret.storage.memory import MemoryLog


class FakeSession:
    """A connection that only knows who it is."""

    def __init__(self, number: int, user: str, vhost: str) -> None:
        self.number = number
        self.user = user
        self.vhost = vhost
        self.closed_with: str | None = None

    def describe(self) -> dict[str, Any]:
        return {"number": self.number, "name": f"client {self.number}", "user": self.user, "vhost": self.vhost,
                "client_properties": {"product": b"\xff", "table": {"a": [1, None]}}}

    def describe_channels(self) -> list[dict[str, Any]]:
        return [{"number": 1, "unacked": 2}, {"number": 2, "unacked": 0}]

    def shut_down(self, reason: str) -> None:
        self.closed_with = reason


class FakeLinks:
    """Links that only remember what was done to them."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.done: list[tuple[str, ...]] = []

    def add(self, name: str, **more: str) -> None:
        self.items.append({"vhost": "/", "user": "guest", "container": "c", "role": "sender", "name": name, **more})

    def describe(self) -> list[dict[str, Any]]:
        return self.items

    def release(self, *identity: str) -> int:
        self.done.append(("release", *identity))
        return 3

    def delete(self, *identity: str) -> None:
        self.done.append(("delete", *identity))


class RecordingLog(MemoryLog):
    """Remembers the metadata."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata: dict[tuple[str, str], bytes] = {}

    def put(self, kind: str, key: str, value: bytes | None) -> None:
        super().put(kind, key, value)
        if value is None:
            del self.metadata[kind, key]
        else:
            self.metadata[kind, key] = value


class Harness:
    def __init__(self, config: Config | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.config = config or Config()
        self.log = RecordingLog()
        self.log.open()
        self.log.start(self.post)
        self.broker = Broker(self.log)
        self.users = UserStore(self.log.put, declared_in="leveret.toml")
        self.sessions: list[FakeSession] = []
        self.links = FakeLinks()
        self.admin = Admin(self.broker, self.users, sessions=lambda: self.sessions, config=self.config,
                           config_name="leveret.toml", apply_vhost=self.apply_vhost, facts=lambda: {"version": "1"},
                           alarm=lambda: "", links=self.links)
        for name, vhost in {"/": VhostConfig(), **self.config.vhosts}.items():
            self.apply_vhost(name, vhost)

    def post(self, call: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(call)

    def apply_vhost(self, name: str, vhost: VhostConfig) -> Vhost:
        return self.broker.add_vhost(name, VhostSettings(vhost.compat.strict, vhost.limits.max_queues or -1,
                                                         vhost.limits.max_connections or -1))

    def call(self, name: str, /, **arguments: Any) -> Any:
        """The result of a call, a list for an iterator."""
        result = self.loop.run_until_complete(self.admin.call(name, arguments))
        return list(result) if isinstance(result, Iterator) else result

    def close(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
